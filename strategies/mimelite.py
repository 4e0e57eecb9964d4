"""MimeLite: local steps mimic a server's SGD with momentum.

Karimireddy et al., Breaking the Centralized Barrier for Cross-Device Federated Learning, NeurIPS 2021.

Down: x and m. Up: u_i = x - y_i and G_i(x), two vectors. Server state: m. No client state.
"""

from collections.abc import Sequence

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Arrays, Update


class Options(Table):
    """MimeLite with the momentum of SGD."""

    beta: float = Field(0.9, ge=0, lt=1, description="momentum")


class MimeLite(FederatedStrategy[Options]):
    """x <- x - server-lr * mean(u_i); m <- (1 - beta) mean(G_i(x)) + beta m."""

    only_sums = True
    keeps = ("m",)

    def setup(self) -> None:
        """Start without momentum."""
        self.m = self.zeros()

    def broadcast(self) -> Arrays:
        """Send x and m."""
        return {"x": self.x, "m": self.m}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean update, and renew the momentum from full gradients."""
        beta = self.options.beta
        self.x = self.x - self.server_lr * self.mean(updates, "u")
        self.m = (1 - beta) * self.mean(updates, "G") + beta * self.m


ALGORITHM = Algorithm(
    "mimelite",
    "local steps with the server's momentum",
    MimeLite,
    "clients.mimelite:MimeLiteClient",
    options=Options,
    needs=Needs(
        plain_sgd="MimeLite's clients use the server's momentum, which must not change during a round",
        no_clipping="MimeLite's momentum is made of full gradients, which are not clipped",
    ),
)
