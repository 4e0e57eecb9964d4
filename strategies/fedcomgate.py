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
from typing import Literal

import numpy as np
from pydantic import Field

from clients.fedcomgate import FedCOMClient, FedCOMGATEClient, FedGATEClient
from fedapp.algorithm import Algorithm, Needs
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.strategy import FederatedStrategy
from fedapp.tables import NoOptions, Table
from fedapp.wire import Update


class Options(Table):
    """FedCOMGATE."""

    memory: Literal["none", "local", "paper"] = Field(
        "none",
        description='of what compression left out: "local" (error feedback), "paper" (equation 9 as printed), "none"',
    )


class FedCOM(FederatedStrategy[NoOptions]):
    """x <- x - lr * server-lr * mean(D_i)."""

    rule_is_a_mean = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean of the compressed updates."""
        self.x = self.x - self.lr * self.server_lr * self.mean(updates, "D")


class FedGATE(FederatedStrategy[NoOptions]):
    """x <- x - server-lr * u, u = mean(u_i)."""

    delivers = 1

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along u, which the clients need to track it."""
        u = self.mean(updates, "u")
        self.x = self.x - self.server_lr * u
        self.deliver(u=u)


class FedCOMGATE(FederatedStrategy[Options]):
    """x <- x - lr * server-lr * D, D = mean(D_i)."""

    delivers = 1

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along D, which the clients need to track it."""
        D = self.mean(updates, "D")
        self.x = self.x - self.lr * self.server_lr * D
        if self.options.memory == "paper":
            self.deliver(D=D, s=np.array([len(updates)], D.dtype))
        else:
            self.deliver(D=D)


def check_memory(config: RunConfig) -> None:
    """Refuse two memories of what compression left out."""
    if config.table(Options).memory != "none" and config.error_feedback:
        raise ConfigError(
            "fedcomgate.memory and error-feedback both keep what compression left out: "
            'set fedcomgate.memory = "none" or error-feedback = false.'
        )


def has_feedback(config: RunConfig) -> bool:
    """Return whether clients send later what compression left out."""
    return bool(config.error_feedback) or config.table(Options).memory == "local"


PLAIN = (
    "Tracking takes u_i / (tau lr) for the client's mean gradient, which it is for plain steps only"
)
FEDCOM = Algorithm(
    "fedcom", "FedAvg with compressed updates", FedCOM, FedCOMClient, compressor="uniform"
)
FEDGATE = Algorithm(
    "fedgate",
    "local gradient tracking",
    FedGATE,
    FedGATEClient,
    needs=Needs(low_variance=True, no_second_feedback=True, plain_sgd=PLAIN),
    stateful=True,
)
FEDCOMGATE = Algorithm(
    "fedcomgate",
    "local gradient tracking of compressed updates",
    FedCOMGATE,
    FedCOMGATEClient,
    options=Options,
    needs=Needs(low_variance=True, no_second_feedback=True, plain_sgd=PLAIN),
    stateful=True,
    compressor="uniform",
    check=check_memory,
    feedback=has_feedback,
)
