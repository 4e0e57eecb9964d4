"""SCAFFOLD: control variates correct the clients' drift.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Down: x and c. Up: u_i and c_i+ - c_i, two vectors. Server state: c, the mean of all the clients'
c_i. Client state: c_i.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.strategy import FederatedStrategy
from fedapp.wire import Arrays, Update


class Scaffold(FederatedStrategy):
    """x <- x - server-lr * mean(u_i); c <- c + (s/N) mean(c_i+ - c_i)."""

    def setup(self) -> None:
        """Start with c = 0."""
        self.demand_uniform_weighting("The control variate c is the plain mean over all N clients")
        self.warn_of_variance()
        self.c = np.zeros_like(self.x)

    def broadcast(self) -> Arrays:
        """Send x and c."""
        return {"x": self.x, "c": self.c}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean update, and renew c."""
        self.x = self.x - self.server_lr * self.mean(updates, "u")
        self.renew_c(updates)

    def renew_c(self, updates: Sequence[Update]) -> None:
        """Keep c the mean of all the clients' c_i."""
        self.c = self.c + self.sum(updates, "dc") / self.config.num_clients
