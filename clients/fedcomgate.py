"""The clients of FedCOM, FedGATE and FedCOMGATE; see `strategies/fedcomgate.py`.

delta_i <- delta_i + (D_i - D) / tau needs D, which is known only when all have answered. The client
keeps delta_i + D_i / tau, and takes D / tau off when D comes with its next invitation.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clients.averaging import FedAvgClient
from fedapp.client import Client

if TYPE_CHECKING:
    from strategies.fedcomgate import Options


class FedCOMClient(FedAvgClient):
    """FedAvg's local steps; sends Q(u_i / lr)."""

    sends = ("D",)

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Send u_i / lr; compression is on the way."""
        return {"D": super().update(x)["u"] / self.lr}


class TrackingClient(Client):
    """Local steps corrected by delta_i."""

    def corrected_steps(self, x: Tensor, delta: Tensor) -> Tensor:
        """Return u_i = x - y_i after y <- y - lr (g(y) - delta_i), tau times."""
        y = x.clone()
        for batch in self.batches():
            y.sub_(self.gradient(y, batch), alpha=self.lr).add_(delta, alpha=self.lr)
        return x - y

    def recall(self, name: str, x: Tensor, mean: Tensor | None, weight: Tensor | float) -> Tensor:
        """Return a vector of the state, less the mean of the client's last round, weighted."""
        if name not in self.state or mean is None:
            return torch.zeros_like(x)
        return self.state[name] - weight * mean


class FedGATEClient(TrackingClient):
    """Tracks the difference between its own update and the mean."""

    def update(self, x: Tensor, u: Tensor | None = None) -> dict[str, Tensor]:
        """Train with delta_i, then delta_i <- delta_i + (u_i - u) / (lr tau)."""
        delta = self.recall("delta", x, u, self.state.get("weight", 0.0))
        u_i = self.send("u", self.corrected_steps(x, delta))
        weight = 1 / (self.lr * self.steps)
        self.state["delta"] = delta + weight * u_i
        self.state["weight"] = x.new_tensor([weight])
        return {"u": u_i}


class FedCOMGATEClient(TrackingClient):
    """Tracks the difference between what it sent, compressed, and the mean of that."""

    options: "Options"
    sends = ("D",)

    def update(
        self, x: Tensor, D: Tensor | None = None, s: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Train with delta_i, then delta_i <- delta_i + (D_i - D) / tau."""
        memory = self.options.memory
        delta = self.recall("delta", x, D, self.state.get("weight", 0.0))
        nu = self.recall("nu", x, D, 1.0 if memory == "paper" else 0.0)
        if memory == "paper" and s is not None and "u" in self.state:
            nu = nu + self.state["u"] / s
        u_i = self.corrected_steps(x, delta) / self.lr
        D_i = self.send("D", u_i + nu if memory != "none" else u_i)
        self.state["delta"] = delta + D_i / self.steps
        self.state["weight"] = x.new_tensor([1 / self.steps])
        if memory == "local":
            self.state["nu"] = nu + u_i - D_i
        elif memory == "paper":  # nu_i + u_i / s - D, but s = |S| and D are still to come
            self.state["nu"], self.state["u"] = nu, u_i
        return {"D": D_i}
