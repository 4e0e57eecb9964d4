"""MIFA's client: it sends how its update changed since it last took part."""

import torch
from torch import Tensor

from clients.averaging import FedAvgClient


class MIFAClient(FedAvgClient):
    """FedAvg's local steps; remembers its update."""

    sends = ("d",)
    differences = ("d",)

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Send u_i - g_old, then g_old <- u_i, as far as the server knows it."""
        u = super().update(x)["u"]
        g_old = self.state.get("g_old", torch.zeros_like(u))
        d = self.send("d", u - g_old)
        self.state["g_old"] = g_old + d
        return {"d": d}
