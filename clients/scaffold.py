"""SCAFFOLD's client; see `strategies/scaffold.py`."""

import torch
from torch import Tensor

from clients.fedcomgate import TrackingClient
from strategies.fedcomgate import damping
from strategies.scaffold import Options


class ScaffoldClient(TrackingClient):
    """Local steps corrected by c - c_i."""

    options: Options
    sends = ("u", "dc")
    differences = ("dc",)

    def update(self, x: Tensor, c: Tensor) -> dict[str, Tensor]:
        """Train, renew c_i, and send u_i and how c_i changed."""
        c_i = self.state.get("c_i", torch.zeros_like(x))
        u = self.corrected_steps(x, c_i - c)
        if self.options.option == 1:
            renewed = self.full_gradient(x)
        else:
            renewed = u / (self.steps * self.lr) + (c_i - c)
        # Compressed, c_i changes by what the server hears, damped, so that c stays the mean of the c_i.
        dc = self.send("dc", renewed - c_i)
        self.state["c_i"] = c_i + damping(self.options.damping, self.compressor, len(x)) * dc
        return {"u": u, "dc": dc}
