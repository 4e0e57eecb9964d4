"""MOON's and MOONM's client; see `strategies/moon.py`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedapp.client import NetworkClient
from fedapp.models.networks import Network
from fedapp.problems.problem import Batch

if TYPE_CHECKING:
    from strategies.moon import Options


class MOONClient(NetworkClient):
    """Local steps on CE + mu l_con, which draws the representation towards x's, away from its own last one."""

    options: "Options"

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Descend on the contrastive loss from x."""
        y, previous = x.clone(), self.state.get("y", x)
        mu, T = self.options.mu, self.options.temperature
        for batch in self.batches():
            z_x = self.objective.representation(x, batch)
            z_previous = z_x if previous is x else self.objective.representation(previous, batch)

            def loss(
                network: Network, samples: Batch,
                z_x: Tensor = z_x, z_previous: Tensor = z_previous,
            ) -> Tensor:  # fmt: skip
                z = network.representation(*samples[:-1])
                similar = [F.cosine_similarity(z, other, -1) / T for other in (z_x, z_previous)]
                l_con = -F.log_softmax(torch.stack(similar), dim=0)[0].mean()
                return self.objective.criterion(network.head(z), samples) + mu * l_con

            y.sub_(self.direction(self.gradient(y, batch, loss)), alpha=self.lr)
        self.state["y"] = y
        return {"u": x - y}
