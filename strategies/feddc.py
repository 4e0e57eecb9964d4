"""FedDC: every client tracks how far its model has drifted, and control variates as in SCAFFOLD.

Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction,
CVPR 2022.

Down: x and c. Up: u_i = x - y_i and c_i+ - c_i, two vectors. Server state: h and c, the means of all
clients' h_i and c_i. Client state: h_i and c_i.
"""

from collections.abc import Sequence

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.tables import Table
from fedapp.wire import Update
from strategies.scaffold import PLAIN, UNIFORM, Scaffold


class Options(Table):
    """FedDC."""

    alpha: float = Field(0.1, ge=0, description="weight of the drift term alpha (y + h_i - x)")


class FedDC(Scaffold):
    """h <- h + (1/N) sum(y_i - x); x <- mean(y_i) + h; c as in SCAFFOLD."""

    only_sums = True
    keeps = ("c", "h")

    def setup(self) -> None:
        """Start with h = c = 0."""
        super().setup()
        self.h = self.zeros()

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Renew h, step to the mean model plus h, and renew c."""
        self.h = self.h - self.total(updates, "u") / self.config.num_clients
        self.x = self.x - self.mean(updates, "u") + self.h
        self.renew_c(updates)


ALGORITHM = Algorithm(
    "feddc",
    "drift tracked, and control variates",
    FedDC,
    "clients.feddc:FedDCClient",
    options=Options,
    needs=Needs(
        uniform_weighting=UNIFORM,
        no_server_lr=True,
        low_variance=True,
        no_second_feedback=True,
        plain_sgd=PLAIN,
    ),
    stateful=True,
)
