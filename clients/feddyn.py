"""FedDyn's client; see `strategies/feddyn.py`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedapp.client import Client

if TYPE_CHECKING:
    from strategies.feddyn import Options


class FedDynClient(Client):
    """Descends on its own part of the objective, corrected by a linear and a proximal term."""

    options: "Options"

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Descend on f_i(y) - <h_i, y> + alpha/2 |y - x|^2, then h_i <- h_i - alpha (y_i - x)."""
        y, alpha = x.clone(), self.options.alpha
        h_i = self.state.get("h_i", torch.zeros_like(x))
        for batch in self.batches():
            y -= self.lr * self.direction(self.gradient(y, batch) - h_i + alpha * (y - x))
        u = self.send("u", x - y)
        self.state["h_i"] = h_i + alpha * u
        return {"u": u}
