"""GradMA's and GradMA-W's workers; see `strategies/gradma.py`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedapp.client import Client
from fedapp.projection import project_

if TYPE_CHECKING:
    from strategies.gradma import Options


class GradMAClient(Client):
    """Local steps along gradients that agree with the last one, with that at x, and with y - x."""

    options: "Options"

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Step along P(g(y), [g(y_before), g(x), y - x]), all on the same mini-batch."""
        scope = self.objective.layout.tensors if self.options.scope == "layer" else (len(x),)
        y, before = x.clone(), self.state.get("y", x)  # y_{-1} is the last local model
        rows = x.new_empty((4, len(x)))
        v, at_before, at_x, drift = rows
        for batch in self.batches():
            v.copy_(self.gradient(y, batch))
            at_x.copy_(v if self.steps == 1 else self.gradient_aside(x, batch))
            at_before.copy_(at_x if before is x else self.gradient_aside(before, batch))
            torch.sub(y, x, out=drift)
            # After the first step the model before is x itself, whose gradient is known.
            before = x if self.steps == 1 else y.clone()
            y.sub_(project_(rows, scope), alpha=self.lr)
        self.state["y"] = y
        return {"u": x - y}
