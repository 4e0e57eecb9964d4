"""FedPAQ: local steps, partial participation, and quantized differences of models; QSGD.

Reisizadeh et al., FedPAQ: A Communication-Efficient Federated Learning Method with Periodic
Averaging and Quantization, AISTATS 2020. QSGD is the case tau = 1 with all clients.

Down: x. Up: Q(y_i - x). No state on either side.
"""

from collections.abc import Sequence

from fedapp.strategy import FederatedStrategy
from fedapp.wire import Update


class FedPAQ(FederatedStrategy):
    """x <- x + mean(Q(y_i - x))."""

    rule_is_a_mean = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean of the quantized differences."""
        self.x = self.x + self.server_lr * self.mean(updates, "p")


class QSGD(FedPAQ):
    """One local step, and every client in every round."""

    def setup(self) -> None:
        """Refuse anything else."""
        self.demand_one_step("QSGD")
        self.demand_all_clients("QSGD")
