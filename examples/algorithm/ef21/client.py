"""EF21's client; see `strategy.py`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedapp import Client

if TYPE_CHECKING:
    from ef21.strategy import Options


class EF21Client(Client):
    """Keeps g_i, which is what the server knows of its gradient."""

    options: "Options"
    sends = ("c",)

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Send c_i = C(grad f_i(x) - g_i), then g_i <- g_i + c_i."""
        g = self.state.get("g", torch.full_like(x, self.options.start))
        (batch,) = self.batches()
        c = self.send("c", self.gradient(x, batch) - g)
        self.state["g"] = g + c
        return {"c": c}
