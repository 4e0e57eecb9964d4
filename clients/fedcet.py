"""FedCET's client; see `strategies/fedcet.py`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedapp.client import Client
from fedapp.config import RunConfig

if TYPE_CHECKING:
    from strategies.fedcet import Options


def largest_gain(config: RunConfig) -> float:
    """Return what c must stay below: 2/((tau + 3) alpha)."""
    return 2 / ((config.local_steps + 3) * config.largest_lr)


def exchange_gain(c: float, config: RunConfig) -> float:
    """Return c; if it is 0, nine tenths of what is allowed, which was fastest."""
    return c or 0.9 * largest_gain(config)


class FedCETClient(Client):
    """Steps along g + d_i; sends z_i as its difference to the model that it received."""

    options: "Options"
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
