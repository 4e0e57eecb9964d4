"""The averaging family: FedAvg and FedProx, their momentum variants, and FedAdam.

FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017. FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
FedAvgM, FedProxM: GradMA's appendix, algorithm 5. FedAdam: Reddi et al., Adaptive Federated
Optimization, ICLR 2021.

Down: x. Up: u_i = x - y_i. Server state: m (momentum, FedAdam), v (FedAdam). No client state.
"""

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from fedapp.algorithm import Algorithm
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Update


class FedProxOptions(Table):
    """FedProx."""

    mu: float = Field(0.01, ge=0, description="weight of the proximal term mu (y - x)")


class FedAvgMOptions(Table):
    """FedAvg with server momentum."""

    beta1: float = Field(0.5, ge=0, lt=1, description="server momentum")


class FedProxMOptions(FedProxOptions, FedAvgMOptions):
    """FedProx with server momentum."""


class FedAdamOptions(Table):
    """FedAdam, in the notation of Reddi et al."""

    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(0.99, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(1e-3, gt=0, description="added to the root of the second moment")


class FedAvg(FederatedStrategy[Table]):
    """x <- x - server-lr * mean(u_i)."""

    only_sums = True
    rule_is_a_mean = True

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the mean update."""
        self.x = self.x - self.server_lr * self.mean(updates)


class FedAvgM(FederatedStrategy[FedAvgMOptions]):
    """m <- beta1 m + mean(u_i); x <- x - server-lr * m."""

    only_sums = True
    rule_is_a_mean = True
    keeps = ("m",)

    def setup(self) -> None:
        """Start without momentum."""
        self.m = self.zeros()

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Add the mean update to the momentum, and step along that."""
        self.m = self.options.beta1 * self.m + self.mean(updates)
        self.x = self.x - self.server_lr * self.m


class FedAdam(FederatedStrategy[FedAdamOptions]):
    """Adam on the server, without bias correction."""

    only_sums = True
    rule_is_a_mean = True
    keeps = ("m", "v")

    default_server_lr = 0.02

    def setup(self) -> None:
        """Start both moments at zero."""
        self.m = self.zeros()
        self.v = self.zeros()

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along the first moment, scaled by the root of the second."""
        b1, b2, eps = self.options.beta1, self.options.beta2, self.options.eps
        D = -self.mean(updates)
        self.m = b1 * self.m + (1 - b1) * D
        self.v = b2 * self.v + (1 - b2) * D**2
        self.x = self.x + self.server_lr * self.m / (np.sqrt(self.v) + eps)


FEDAVG = Algorithm(
    "fedavg", "local SGD, then the mean of the updates", FedAvg, "clients.averaging:FedAvgClient"
)
FEDPROX = Algorithm(
    "fedprox",
    "FedAvg whose clients are held back towards x",
    FedAvg,
    "clients.averaging:FedProxClient",
    options=FedProxOptions,
)
FEDAVGM = Algorithm(
    "fedavgm",
    "FedAvg with momentum on the server",
    FedAvgM,
    "clients.averaging:FedAvgClient",
    options=FedAvgMOptions,
)
FEDPROXM = Algorithm(
    "fedproxm",
    "FedProx with momentum on the server",
    FedAvgM,
    "clients.averaging:FedProxClient",
    options=FedProxMOptions,
)
FEDADAM = Algorithm(
    "fedadam",
    "FedAvg's clients, Adam on the server",
    FedAdam,
    "clients.averaging:FedAvgClient",
    options=FedAdamOptions,
)
