"""The averaging family: FedAvg and FedProx, their momentum variants, and FedAdam.

FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017. FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
FedAvgM, FedProxM: GradMA's appendix, algorithm 5. FedAdam: Reddi et al., Adaptive Federated
Optimization, ICLR 2021.

Down: x. Up: u_i = x - y_i. Server state: m (momentum, FedAdam), v (FedAdam). No client state.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.strategy import FederatedStrategy
from fedapp.wire import Update


class FedAvg(FederatedStrategy):
    """x <- x - server-lr * mean(u_i); FedProx differs in its local steps only."""

    rule_is_a_mean = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean update."""
        self.x = self.x - self.server_lr * self.mean(updates)


class FedAvgM(FederatedStrategy):
    """FedAvg, or FedProx, with server momentum."""

    rule_is_a_mean = True

    def setup(self) -> None:
        """Start without momentum."""
        self.m = np.zeros_like(self.x)

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Add the mean update to the momentum, and step along that."""
        self.m = self.options.beta1 * self.m + self.mean(updates)
        self.x = self.x - self.server_lr * self.m


class FedAdam(FederatedStrategy):
    """Adam on the server, without bias correction."""

    rule_is_a_mean = True

    default_server_lr = 0.02

    def setup(self) -> None:
        """Start both moments at zero."""
        self.m = np.zeros_like(self.x)
        self.v = np.zeros_like(self.x)

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the first moment, scaled by the root of the second."""
        b1, b2, eps = self.options.beta1, self.options.beta2, self.options.eps
        D = -self.mean(updates)
        self.m = b1 * self.m + (1 - b1) * D
        self.v = b2 * self.v + (1 - b2) * D**2
        self.x = self.x + self.server_lr * self.m / (np.sqrt(self.v) + eps)
