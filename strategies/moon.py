"""MOON and MOONM: FedAvg, or FedAvgM, with a contrastive loss on the clients.

Li et al., Model-Contrastive Federated Learning, CVPR 2021.

Down: x. Up: u_i = x - y_i. Server state: m (MOONM). Client state: its previous local model.
"""

from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.tables import Table
from strategies.averaging import FedAvg, FedAvgM, FedAvgMOptions


class Options(Table):
    """MOON."""

    mu: float = Field(1.0, ge=0, description="weight of the contrastive loss")
    temperature: float = Field(0.5, gt=0, description="T of the contrastive loss")


class MomentumOptions(Options, FedAvgMOptions):
    """MOON with server momentum."""


ALGORITHM = Algorithm(
    "moon",
    "FedAvg with a contrastive loss",
    FedAvg,
    "clients.moon:MOONClient",
    options=Options,
    needs=Needs(network=True),
    stateful=True,
)
WITH_MOMENTUM = Algorithm(
    "moonm",
    "MOON with momentum on the server",
    FedAvgM,
    "clients.moon:MOONClient",
    options=MomentumOptions,
    needs=Needs(network=True),
    stateful=True,
)
