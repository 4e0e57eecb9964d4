"""FedDC: every client tracks how far its model has drifted, and control variates as in SCAFFOLD.

Gao et al., FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction,
CVPR 2022.

Down: x and c. Up: u_i = x - y_i and c_i+ - c_i, two vectors. Server state: h and c, the means of all
clients' h_i and c_i. Client state: h_i and c_i.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.wire import Update
from strategies.scaffold import Scaffold


class FedDC(Scaffold):
    """h <- h + (1/N) sum(y_i - x); x <- mean(y_i) + h; c as in SCAFFOLD."""

    def setup(self) -> None:
        """Start with h = c = 0."""
        super().setup()
        self.demand_no_server_lr("FedDC")
        self.warn_of_feedback(self.config.error_feedback)
        self.h = np.zeros_like(self.x)

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Renew h, step to the mean model plus h, and renew c."""
        self.h = self.h - self.sum(updates, "u") / self.config.num_clients
        self.x = self.x - self.mean(updates, "u") + self.h
        self.renew_c(updates)
