"""The algorithms by name: server side, client side, and what each needs."""

from dataclasses import dataclass

from clients.averaging import FedAvgClient, FedProxClient
from clients.mifa import MIFAClient
from fedapp.client import Client
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.strategy import FederatedStrategy
from strategies.averaging import FedAdam, FedAvg, FedAvgM
from strategies.mifa import MIFA


@dataclass(frozen=True)
class Algorithm:
    """An algorithm; `stateful` if its clients remember something between rounds."""

    name: str
    summary: str
    strategy: type[FederatedStrategy]
    client: type[Client]
    stateful: bool = False


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("fedavg", "local SGD, then the mean of the updates", FedAvg, FedAvgClient),
        Algorithm("fedprox", "FedAvg whose clients are held back towards x", FedAvg, FedProxClient),
        Algorithm("fedavgm", "FedAvg with momentum on the server", FedAvgM, FedAvgClient),
        Algorithm("fedproxm", "FedProx with momentum on the server", FedAvgM, FedProxClient),
        Algorithm("fedadam", "FedAvg's clients, Adam on the server", FedAdam, FedAvgClient),
        Algorithm("mifa", "mean of every client's latest update", MIFA, MIFAClient, stateful=True),
        Algorithm("mifam", "MIFA with momentum on the server", MIFA, MIFAClient, stateful=True),
    )
}


def find_algorithm(config: RunConfig) -> Algorithm:
    """Return the config's algorithm, or say which there are."""
    if config.algorithm not in ALGORITHMS:
        raise ConfigError(
            f"algorithm = {config.algorithm!r} is not known: choose {', '.join(ALGORITHMS)}."
        )
    return ALGORITHMS[config.algorithm]
