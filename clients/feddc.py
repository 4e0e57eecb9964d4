"""FedDC's client; see `strategies/feddc.py`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedapp.client import Client

if TYPE_CHECKING:
    from strategies.feddc import Options


class FedDCClient(Client):
    """Local steps held back towards x - h_i, and corrected by c - c_i."""

    options: "Options"
    sends = ("u", "dc")
    differences = ("dc",)

    def update(self, x: Tensor, c: Tensor) -> dict[str, Tensor]:
        """Train, add the drift to h_i, renew c_i, and send u_i and how c_i changed."""
        y, alpha, zero = x.clone(), self.options.alpha, torch.zeros_like(x)
        h_i, c_i = self.state.get("h_i", zero), self.state.get("c_i", zero)
        for batch in self.batches():
            y -= self.lr * (self.gradient(y, batch) + alpha * (y + h_i - x) - c_i + c)
        u = self.send("u", x - y)
        renewed = c_i - c + (x - y) / (self.steps * self.lr)
        dc = self.send("dc", renewed - c_i)
        self.state["h_i"], self.state["c_i"] = h_i - u, c_i + dc
        return {"u": u, "dc": dc}
