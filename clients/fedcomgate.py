"""The clients of FedCOM, FedGATE and FedCOMGATE; see `strategies/fedcomgate.py`.

delta_i <- delta_i + a (D_i / tau_i - T), T = mean_S(D_j / tau_j), needs T, which is known only when all have answered.
The client keeps delta_i + a D_i / tau_i, and takes a T off when it comes with its next invitation. Where all took
the same tau, T = D / tau, and it is D that comes.
"""

import torch
from torch import Tensor

from clients.averaging import FedAvgClient
from fedapp.client import Client
from fedapp.errors import ClientError
from strategies.fedcomgate import GateOptions, Options, damping


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


class GateClient(TrackingClient):
    """What FedGATE and FedCOMGATE share: where to start, and what is left of delta_i."""

    options: GateOptions

    def damping(self, x: Tensor) -> float:
        """Return the damping a."""
        return damping(self.options.damping, self.compressor, len(x))

    def start(self, x: Tensor | None, mean: Tensor | None) -> Tensor:
        """Return x; without one (option 1), that of the client's last round less the server's step."""
        if x is not None:
            return x
        last, step = self.remembered("x", "step")
        if mean is None:
            raise ClientError("the server sent neither x nor the mean to derive it from")
        return last - step * mean

    def recall(self, x: Tensor, mean: Tensor | None, T: Tensor | None) -> Tensor:
        """Return delta_i: what the client kept, less what the mean of its last round takes off."""
        if "delta" in self.state and T is not None:
            return self.state["delta"] - self.damping(x) * T
        if "delta" in self.state and mean is not None:
            return self.state["delta"] - self.state["weight"] * mean
        return torch.zeros_like(x)

    def keep(self, x: Tensor, delta: Tensor, weight: float, step: float) -> None:
        """Remember delta_i, the weight of the mean to come, and with option 1 what gives the next x."""
        self.state["delta"], self.state["weight"] = delta, x.new_tensor([weight])
        if self.options.option == 1:
            self.state["x"], self.state["step"] = x, x.new_tensor([step])


class FedGATEClient(GateClient):
    """Tracks the difference between its own update and the mean."""

    def update(
        self, x: Tensor | None = None, u: Tensor | None = None, T: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Train with delta_i, then delta_i <- delta_i + a (u_i / tau_i - mean(u_j / tau_j)) / lr."""
        x = self.start(x, u)
        delta = self.recall(x, u, T)
        u_i = self.send("u", self.corrected_steps(x, delta))
        weight = self.damping(x) / (self.lr * self.steps)
        self.keep(x, delta + weight * u_i, weight, self.config.server_lr or 1.0)
        return {"u": u_i}


class FedCOMGATEClient(GateClient):
    """Tracks the difference between what it sent, compressed, and the mean of that."""

    options: Options
    sends = ("D",)

    def update(
        self,
        x: Tensor | None = None,
        D: Tensor | None = None,
        T: Tensor | None = None,
        s: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Train with delta_i, then delta_i <- delta_i + a (D_i / tau_i - mean(D_j / tau_j))."""
        x = self.start(x, D)
        delta = self.recall(x, D, T)
        nu = self.recall_memory(x, D, s)
        u_i = self.corrected_steps(x, delta) / self.lr
        D_i = self.send("D", u_i + nu if self.options.memory != "none" else u_i)
        tracked = D_i if self.options.track == "sent" else u_i
        a, step = self.damping(x), self.lr * (self.config.server_lr or 1.0)
        self.keep(x, delta + a * (tracked / self.steps), a / self.steps, step)
        if self.options.memory != "none":
            self.state["nu_lr"] = torch.tensor([self.lr], dtype=torch.float64)
        if self.options.memory == "local":
            self.state["nu"] = nu + u_i - D_i
        elif self.options.memory != "none":  # nu_i + u_i / m - D, but D is still to come
            self.state["nu"], self.state["u"] = nu, u_i
        return {"D": D_i}

    def recall_memory(self, x: Tensor, D: Tensor | None, s: Tensor | None) -> Tensor:
        """Return nu_i / lr; as the paper has it, D of the client's last round is taken off, and u_i / m added, now.

        The state holds it over the step size of that round: nu_i is a part of the model, as u_i is.
        """
        memory, nu = self.options.memory, self.state.get("nu", torch.zeros_like(x))
        if memory != "local" and "nu" in self.state:
            if D is None:
                return torch.zeros_like(x)
            m = s if memory == "paper-sampled" and s is not None else self.config.num_clients
            nu = nu - D + self.state["u"] / m
        before = float(self.state["nu_lr"]) if "nu_lr" in self.state else self.lr
        return nu if before == self.lr else nu * (before / self.lr)
