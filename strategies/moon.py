"""MOON and MOONM: the server is FedAvg's, or FedAvgM's; see `clients/moon.py`."""

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
