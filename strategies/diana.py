"""DIANA and VR-DIANA: compressed differences between gradients and shifts that learn them.

Mishchenko et al., Distributed Learning with Compressed Gradient Differences, 2019; Horvath et al.,
Stochastic Distributed Learning with Gradient Quantization and Variance Reduction, 2019. tau = 1.

Down: x. Up: q_i = Q(g_i - h_i). Server state: h, the mean of all clients' shifts. Client state: h_i;
in VR-DIANA also the snapshot w_i and its full gradient.

With sampling, h changes by alpha (s/N) mean(q_i), so that it stays the mean over all N clients;
with all of them that is the papers' rule.
"""

from collections.abc import Sequence

import numpy as np

from clients.diana import shift_step
from fedapp.errors import ConfigError
from fedapp.strategy import FederatedStrategy
from fedapp.wire import Update


class DIANA(FederatedStrategy):
    """x <- x - lr * server-lr * (h + mean(q_i)); VR-DIANA differs in its clients only."""

    def setup(self) -> None:
        """Start with h = 0."""
        self.demand_uniform_weighting("DIANA's h is the plain mean over all N clients")
        self.demand_one_step("DIANA")
        if self.compressor and not self.compressor.unbiased:
            raise ConfigError(
                "DIANA needs an unbiased compressor: set compressor to qsgd, randk, none or uniform "
                "(with stochastic rounding)."
            )
        if self.config.error_feedback:
            raise ConfigError("DIANA's shifts make up for the error: set error-feedback = false.")
        self.alpha = shift_step(self.options.alpha, self.compressor, self.x.size)
        self.h = np.zeros_like(self.x)

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the estimated gradient, and move the shift."""
        self.x = self.x - self.lr * self.server_lr * (self.h + self.mean(updates, "q"))
        self.h = self.h + self.alpha * self.sum(updates, "q") / self.config.num_clients
