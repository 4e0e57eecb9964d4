"""FedDyn: each client's objective is corrected until all of them share one optimum.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.

Down: x. Up: u_i = x - y_i. Server state: h, the mean of all clients' h_i. Client state: h_i.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.strategy import FederatedStrategy
from fedapp.wire import Update


class FedDyn(FederatedStrategy):
    """h <- h - alpha (1/N) sum(y_i - x); x <- mean(y_i) - h/alpha."""

    def setup(self) -> None:
        """Start with h = 0."""
        self.demand_uniform_weighting("FedDyn's h is the plain mean over all N clients")
        self.demand_no_server_lr("FedDyn")
        self.warn_of_variance()
        self.warn_of_feedback(self.config.error_feedback)
        self.h = np.zeros_like(self.x)

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Renew h, and step to the mean model less h/alpha."""
        alpha = self.options.alpha
        self.h = self.h + alpha * self.sum(updates, "u") / self.config.num_clients
        self.x = self.x - self.mean(updates, "u") - self.h / alpha
