"""EF21: clients send how their gradient has changed, through any compressor, biased ones included.

Richtarik, Sokolov, Fatkhullin, EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback, 2021.

Down: x. Up: c_i = C(grad f_i(x) - g_i). Server state: g, the mean of all clients' g_i. Client state: g_i.

With sampling, clients outside the cohort keep their g_i, and so does their part of g (EF21-PP).
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from ef21.client import EF21Client
from fedapp import Algorithm, FederatedStrategy, Needs, Table, Update


class Options(Table):
    """The keys of EF21, in the table `ef21`."""

    start: float = Field(0.0, description="every coordinate of g before the first round")


class EF21Strategy(FederatedStrategy[Options]):
    """g <- g + sum(c_i)/N; x <- x - lr * server-lr * g."""

    def setup(self) -> None:
        """Start with the same g for all."""
        self.g = np.full_like(self.x, self.options.start)

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Renew the mean of the g_i, and step along it."""
        self.g = self.g + sum(update["c"] for update in updates) / self.config.num_clients
        self.x = self.x - self.lr * self.server_lr * self.g


EF21 = Algorithm(
    "ef21",
    "compressed changes of gradients, with any compressor",
    EF21Strategy,
    EF21Client,
    options=Options,
    needs=Needs(
        uniform_weighting="EF21's g is the plain mean over all N clients",
        one_local_step=True,
        no_error_feedback="EF21 is a form of error feedback itself",
    ),
    stateful=True,
    compressor="topk",
)
