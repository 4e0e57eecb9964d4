"""MIFA and MIFAM: every client's latest update counts, also while it is not sampled.

MIFA: Gu et al., Fast Federated Learning in the Presence of Arbitrary Device Unavailability,
NeurIPS 2021; both as in GradMA's appendix, algorithm 6.

Down: x. Up: d_i = u_i - g_old. Server state: d, the mean of all clients' latest updates, and m.
Client state: g_old, its latest update.
"""

from collections.abc import Sequence

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.strategy import FederatedStrategy
from fedapp.tables import NoOptions, Table
from fedapp.wire import Update


class Options(Table):
    """MIFA with server momentum."""

    beta1: float = Field(0.5, ge=0, lt=1, description="server momentum")


class MIFA(FederatedStrategy[Options | NoOptions]):
    """d <- d + (1/N) sum(d_i); m <- beta1 m + d; x <- x - server-lr * m (MIFA: beta1 = 0)."""

    only_sums = True
    keeps = ("d", "m")

    def setup(self) -> None:
        """Start with no updates and without momentum."""
        self.d = self.zeros()
        self.m = self.zeros()
        self.beta1 = self.options.beta1 if isinstance(self.options, Options) else 0.0

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Bring d up to date, and step along its momentum."""
        self.d = self.d + self.total(updates, "d") / self.config.num_clients
        self.m = self.beta1 * self.m + self.d
        self.x = self.x - self.server_lr * self.m


NEEDS = Needs(uniform_weighting="MIFA adds updates up over all N clients")
ALGORITHM = Algorithm(
    "mifa",
    "mean of every client's latest update",
    MIFA,
    "clients.mifa:MIFAClient",
    needs=NEEDS,
    stateful=True,
)
WITH_MOMENTUM = Algorithm(
    "mifam",
    "MIFA with momentum on the server",
    MIFA,
    "clients.mifa:MIFAClient",
    options=Options,
    needs=NEEDS,
    stateful=True,
)
