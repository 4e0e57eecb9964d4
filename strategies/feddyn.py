"""FedDyn: each client's objective is corrected until all of them share one optimum.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

Down: x. Up: u_i = x - y_i. Server state: h, the mean of all clients' h_i. Client state: h_i.
"""

from collections.abc import Sequence

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Update


class Options(Table):
    """FedDyn."""

    alpha: float = Field(0.1, gt=0, description="weight of the proximal term, and step of h_i")


class FedDyn(FederatedStrategy[Options]):
    """h <- h - alpha (1/N) sum(y_i - x); x <- mean(y_i) - h/alpha."""

    only_sums = True
    keeps = ("h",)

    def setup(self) -> None:
        """Start with h = 0."""
        self.h = self.zeros()

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Renew h, and step to the mean model less h/alpha."""
        alpha = self.options.alpha
        self.h = self.h + alpha * self.total(updates, "u") / self.config.num_clients
        self.x = self.x - self.mean(updates, "u") - self.h / alpha


ALGORITHM = Algorithm(
    "feddyn",
    "dynamic regularization of each client",
    FedDyn,
    "clients.feddyn:FedDynClient",
    options=Options,
    needs=Needs(
        uniform_weighting="FedDyn's h is the plain mean over all N clients",
        no_server_lr=True,
        low_variance=True,
        no_second_feedback=True,
    ),
    stateful=True,
)
