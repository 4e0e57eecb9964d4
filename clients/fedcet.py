"""FedCET's client; see `strategies/fedcet.py`."""

import torch
from torch import Tensor

from fedapp.client import Client
from strategies.fedcet import Options, exchange_gain


class FedCETClient(Client):
    """Steps along g + d_i; sends z_i as its difference to the model that it received."""

    options: Options
    sends = ("p",)

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Exchange z_i for z = x, which is the mean over all clients, and step on to the next z_i."""
        if self.round == 1:  # from the common start x, and then at once an exchange
            start, *batches = self.batches(steps=2)
            d = torch.zeros_like(x)
            x_i = x - self.lr * self.gradient(x, start)
        else:
            batches = list(self.batches())
            c, alpha = exchange_gain(self.options.c, self.config), self.config.lr_at(self.round - 1)
            z_i, d = self.remembered("z", "d")
            d = d + c * (z_i - x)
            x_i = z_i - alpha * c * (z_i - x)
        for batch in batches:  # tau - 1 local steps, and the exchange step, which is like them
            x_i = x_i - self.lr * (self.gradient(x_i, batch) + d)
        p = self.send("p", x_i - x)
        self.state["z"], self.state["d"] = x + p, d  # z_i as the server sees it
        return {"p": p}
