"""FedPAQ: local steps, partial participation, and quantized differences of models; QSGD.

Reisizadeh et al., FedPAQ: A Communication-Efficient Federated Learning Method with Periodic
Averaging and Quantization, AISTATS 2020. QSGD is the case tau = 1 with all clients.

Down: x. Up: Q(y_i - x). No state on either side.
"""

from collections.abc import Sequence

from fedapp.algorithm import Algorithm, Needs
from fedapp.strategy import FederatedStrategy
from fedapp.tables import NoOptions
from fedapp.wire import Update


class FedPAQ(FederatedStrategy[NoOptions]):
    """x <- x + server-lr * mean(Q(y_i - x))."""

    only_sums = True
    rule_is_a_mean = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean of the quantized differences."""
        self.x = self.x + self.server_lr * self.mean(updates, "p")


class QSGD(FedPAQ):
    """x <- x + server-lr * mean(Q(y_i - x)), with one local step and all clients."""


FEDPAQ = Algorithm(
    "fedpaq",
    "mean of quantized differences",
    FedPAQ,
    "clients.fedpaq:FedPAQClient",
    compressor="qsgd",
)
ONE_STEP = Algorithm(
    "qsgd",
    "FedPAQ with one local step and all clients",
    QSGD,
    "clients.fedpaq:FedPAQClient",
    needs=Needs(
        one_local_step=True,
        all_clients=True,
        plain_sgd="QSGD sends one gradient, and that is its one step; fedpaq takes others",
    ),
    compressor="qsgd",
)
