"""FedMLB and FedMLBM: FedAvg, or FedAvgM, with losses along paths through the received model.

Kim et al., Multi-Level Branched Regularization for Federated Learning, ICML 2022.

Down: x. Up: u_i = x - y_i. Server state: m (FedMLBM). No client state.
"""

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.tables import Table
from strategies.averaging import FedAvg, FedAvgM, FedAvgMOptions


class Options(Table):
    """FedMLB."""

    lambda1: float = Field(1.0, ge=0, description="weight of the paths' cross-entropy")
    lambda2: float = Field(
        1.0, ge=0, description="weight of the paths' divergence from the network's output"
    )
    temperature: float = Field(1.0, gt=0, description="T of the divergence")


class MomentumOptions(Options, FedAvgMOptions):
    """FedMLB with server momentum."""


ALGORITHM = Algorithm(
    "fedmlb",
    "FedAvg with paths through x's blocks",
    FedAvg,
    "clients.fedmlb:FedMLBClient",
    options=Options,
    needs=Needs(network=True, classes=True),
)
WITH_MOMENTUM = Algorithm(
    "fedmlbm",
    "FedMLB with momentum on the server",
    FedAvgM,
    "clients.fedmlb:FedMLBClient",
    options=MomentumOptions,
    needs=Needs(network=True, classes=True),
)
