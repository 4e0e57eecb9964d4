"""The clients of DIANA and VR-DIANA; see `strategies/diana.py`."""

from typing import Any

import torch
from torch import Tensor

from fedapp.client import Client
from fedapp.randomness import generator
from strategies.diana import Options, VROptions, shift_step


class DIANAClient(Client):
    """Sends the compressed difference between its gradient and its shift h_i."""

    options: Options
    sends = ("q",)

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Send Q(g_i(x) - h_i), then h_i <- h_i + alpha q_i."""
        (batch,) = self.batches()
        h = self.state.get("h", torch.zeros_like(x))
        q = self.send("q", self.estimate(x, batch) - h)
        self.state["h"] = h + shift_step(self.options.alpha, self.compressor, len(x)) * q
        return {"q": q}

    def estimate(self, x: Tensor, batch: Any) -> Tensor:
        """Return g_i(x)."""
        return self.gradient(x, batch)


class VRDIANAClient(DIANAClient):
    """DIANA with the loopless SVRG estimator."""

    options: VROptions

    def estimate(self, x: Tensor, batch: Any) -> Tensor:
        """Return g_i(x) - g_i(w_i) + G_i(w_i), then w_i <- x with probability p."""
        if "w" not in self.state:
            self._take_snapshot(x)
        g = self.gradient(x, batch).clone()
        g -= self.gradient_aside(self.state["w"], batch)
        g += self.state["G_w"]
        work, examples = self.config.local_work, self.objective.num_examples
        p = self.options.probability or 1 / -(-examples // work.batch(examples))
        if generator(self.config.seed, "snapshot", self.round, self.client).random() < p:
            self._take_snapshot(x)
        return g

    def _take_snapshot(self, x: Tensor) -> None:
        self.state["w"], self.state["G_w"] = x.clone(), self.full_gradient(x)
