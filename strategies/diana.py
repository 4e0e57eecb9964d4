"""DIANA and VR-DIANA: compressed differences between gradients and shifts that learn them.

Mishchenko et al., Distributed Learning with Compressed Gradient Differences, 2019; Horvath et al.,
Stochastic Distributed Learning with Gradient Quantization and Variance Reduction, 2019. tau = 1.

Down: x. Up: q_i = Q(g_i - h_i). Server state: h, the mean of all clients' shifts. Client state: h_i;
in VR-DIANA also the snapshot w_i and its full gradient.

With sampling, h changes by alpha (s/N) mean(q_i), so that it stays the mean over all N clients;
with all of them that is the papers' rule.
"""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.compression import Compressor
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Update


class Options(Table):
    """DIANA."""

    alpha: float = Field(
        0.0, ge=0, le=1, description="step of the shifts h_i; 0: 1/(1 + q), q of the compressor"
    )


class VROptions(Options):
    """VR-DIANA."""

    probability: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability of a new snapshot w_i; 0: 1/(batches of the client)",
    )


def shift_step(alpha: float, compressor: Compressor | None, size: int) -> float:
    """Return alpha; if it is 0, 1/(1 + q)."""
    return alpha or 1 / (1 + (compressor.variance(size) if compressor else 0.0))


class DIANA(FederatedStrategy[Options]):
    """x <- x - lr * server-lr * (h + mean(q_i)); VR-DIANA differs in its clients only."""

    only_sums = True
    keeps = ("h",)

    def setup(self) -> None:
        """Start with h = 0."""
        self.alpha = shift_step(self.options.alpha, self.compressor, self.x.size)
        self.h = self.zeros()

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the estimated gradient, and move the shift."""
        self.x = self.x - self.lr * self.server_lr * (self.h + self.mean(updates, "q"))
        self.h = self.h + self.alpha * self.total(updates, "q") / self.config.num_clients


NEEDS = Needs(
    uniform_weighting="DIANA's h is the plain mean over all N clients",
    one_local_step=True,
    unbiased_compressor=True,
    no_error_feedback="DIANA's shifts make up for the error",
    plain_sgd="DIANA's clients send gradients and take no steps of their own",
)
ALGORITHM = Algorithm(
    "diana",
    "compressed differences between gradients and shifts",
    DIANA,
    "clients.diana:DIANAClient",
    options=Options,
    needs=NEEDS,
    stateful=True,
    compressor="qsgd",
)
VR = Algorithm(
    "vrdiana",
    "DIANA with variance-reduced gradients",
    DIANA,
    "clients.diana:VRDIANAClient",
    options=VROptions,
    needs=replace(
        NEEDS,
        no_clipping="VR-DIANA's estimate g(x) - g(w) + G(w) is unbiased only if none of them is clipped",
    ),
    stateful=True,
    compressor="qsgd",
)
