"""FedCOM, FedGATE and FedCOMGATE: compressed updates, and local gradient tracking.

Haddadpour et al., Federated Learning with Compression: Unified Analysis and Sharp Guarantees,
AISTATS 2021: algorithm 1 (FedCOM), 3 (FedGATE), 2 and, with sampling, 4 (FedCOMGATE); equations 8
and 9 for sparsification with memory.

FedCOM.     Down: x. Up: D_i = Q(u_i / lr). No state.
FedGATE.    Down: x, and u of the client's last round. Up: u_i. Client state: delta_i.
FedCOMGATE. Down: x, and D of the client's last round. Up: D_i = Q(u_i / lr).
            Client state: delta_i, and with memory nu_i (and u_i, as the paper has it).

A client needs the mean of its last round only when it next takes part: it comes with that
invitation, and the server keeps the means that some client still waits for.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.errors import ConfigError
from fedapp.strategy import FederatedStrategy
from fedapp.wire import Update


class FedCOM(FederatedStrategy):
    """x <- x - lr * server-lr * mean(D_i)."""

    rule_is_a_mean = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean of the compressed updates."""
        self.x = self.x - self.lr * self.server_lr * self.mean(updates, "D")


class FedGATE(FederatedStrategy):
    """x <- x - server-lr * u, u = mean(u_i)."""

    delivers = 1

    def setup(self) -> None:
        """Look at the compressor, if one is set."""
        self.warn_of_variance()
        self.warn_of_feedback(self.config.error_feedback)

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along u, which the clients need to track it."""
        u = self.mean(updates, "u")
        self.x = self.x - self.server_lr * u
        self.deliver(u=u)


class FedCOMGATE(FederatedStrategy):
    """x <- x - lr * server-lr * D, D = mean(D_i)."""

    delivers = 1

    def setup(self) -> None:
        """Look at the compressor."""
        if self.options.memory != "none" and self.config.error_feedback:
            raise ConfigError(
                "fedcomgate.memory and error-feedback both keep what compression left out: "
                'set fedcomgate.memory = "none" or error-feedback = false.'
            )
        self.warn_of_variance()
        self.warn_of_feedback(self.config.error_feedback or self.options.memory == "local")

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along D, which the clients need to track it."""
        D = self.mean(updates, "D")
        self.x = self.x - self.lr * self.server_lr * D
        if self.options.memory == "paper":
            self.deliver(D=D, s=np.array([len(updates)], D.dtype))
        else:
            self.deliver(D=D)
