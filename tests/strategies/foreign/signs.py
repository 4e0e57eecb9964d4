"""The server's side, its options and its declaration."""

from collections.abc import Sequence

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Update
from tests.strategies.foreign.sign_client import SignClient


class Options(Table):
    """Mean of signs."""

    step: float = Field(0.1, gt=0, description="how far the server goes")


class SignMean(FederatedStrategy[Options]):
    """x <- x - step * mean(sign(u_i))."""

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean of the signs."""
        self.x = self.x - self.options.step * self.mean(updates, "sign")


SIGNS = Algorithm(
    "signs",
    "mean of the signs of the updates",
    SignMean,
    SignClient,
    options=Options,
    needs=Needs(uniform_weighting="Signs have no weights", no_server_lr=True),
    stateful=True,
)
