"""MIFA's client: it sends how its update changed since it last took part."""

import torch
from torch import Tensor

from clients.averaging import FedAvgClient


class MIFAClient(FedAvgClient):
    """FedAvg's local steps; remembers its update."""

    sends = ("d",)

    def update(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Send u_i - g_old, then g_old <- u_i."""
        u = super().update(x)["u"]
        g_old = self.state.get("g_old", torch.zeros_like(u))
        self.state["g_old"] = u
        return {"d": u - g_old}
