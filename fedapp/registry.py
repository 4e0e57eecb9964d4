"""The algorithms by name: server side, client side, and what each needs."""

from dataclasses import dataclass
from functools import lru_cache

from clients.averaging import FedAvgClient, FedProxClient
from clients.diana import DIANAClient, VRDIANAClient
from clients.fedbcgd import FedBCGDClient, FedBCGDPlusClient
from clients.fedcet import FedCETClient
from clients.fedcomgate import FedCOMClient, FedCOMGATEClient, FedGATEClient
from clients.feddc import FedDCClient
from clients.feddyn import FedDynClient
from clients.fedmlb import FedMLBClient
from clients.fedpaq import FedPAQClient
from clients.gradma import GradMAClient
from clients.mifa import MIFAClient
from clients.mimelite import MimeLiteClient
from clients.moon import MOONClient
from clients.scaffold import ScaffoldClient
from fedapp.client import Client
from fedapp.compression import Compressor, make_compressor
from fedapp.config import QsgdKeys, RandKKeys, RunConfig, TopKKeys, UniformKeys, Value
from fedapp.errors import ConfigError
from fedapp.names import did_you_mean
from fedapp.problems import kind_of
from fedapp.problems.problem import Start
from fedapp.strategy import FederatedStrategy
from strategies.averaging import FedAdam, FedAvg, FedAvgM
from strategies.diana import DIANA
from strategies.fedbcgd import FedBCGD, FedBCGDPlus
from strategies.fedcet import FedCET
from strategies.fedcomgate import FedCOM, FedCOMGATE, FedGATE
from strategies.feddc import FedDC
from strategies.feddyn import FedDyn
from strategies.fedpaq import QSGD, FedPAQ
from strategies.gradma import GradMA
from strategies.mifa import MIFA
from strategies.mimelite import MimeLite
from strategies.scaffold import Scaffold


@dataclass(frozen=True)
class Algorithm:
    """An algorithm; `stateful` if its clients remember something between rounds.

    `compressor` is what its clients use unless the config names another; `network` if it looks into
    one, and so cannot do with another kind of problem. `unread` are the keys of its table that it has no use for,
    because it shares the table with others; `server_lr` if its server step has a size.
    """

    name: str
    summary: str
    strategy: type[FederatedStrategy]
    client: type[Client]
    stateful: bool = False
    compressor: str = "none"
    network: bool = False
    unread: tuple[str, ...] = ()
    server_lr: bool = True


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
        Algorithm(
            "fedpaq", "mean of quantized differences", FedPAQ, FedPAQClient, compressor="qsgd"
        ),
        Algorithm(
            "qsgd",
            "FedPAQ with one local step and all clients",
            QSGD,
            FedPAQClient,
            compressor="qsgd",
        ),
        Algorithm(
            "fedcom", "FedAvg with compressed updates", FedCOM, FedCOMClient, compressor="uniform"
        ),
        Algorithm("fedgate", "local gradient tracking", FedGATE, FedGATEClient, stateful=True),
        Algorithm(
            "fedcomgate",
            "local gradient tracking of compressed updates",
            FedCOMGATE,
            FedCOMGATEClient,
            stateful=True,
            compressor="uniform",
        ),
        Algorithm(
            "scaffold", "control variates against drift", Scaffold, ScaffoldClient, stateful=True
        ),
        Algorithm(
            "fedcet",
            "exact, one vector each way, all clients",
            FedCET,
            FedCETClient,
            stateful=True,
            server_lr=False,
        ),
        Algorithm(
            "feddyn",
            "dynamic regularization of each client",
            FedDyn,
            FedDynClient,
            stateful=True,
            server_lr=False,
        ),
        Algorithm(
            "feddc",
            "drift tracked, and control variates",
            FedDC,
            FedDCClient,
            stateful=True,
            server_lr=False,
        ),
        Algorithm("mimelite", "local steps with the server's momentum", MimeLite, MimeLiteClient),
        Algorithm("moon", "FedAvg with a contrastive loss", FedAvg, MOONClient, True, network=True),
        Algorithm(
            "moonm", "MOON with momentum on the server", FedAvgM, MOONClient, True, network=True
        ),
        Algorithm(
            "fedmlb", "FedAvg with paths through x's blocks", FedAvg, FedMLBClient, network=True
        ),
        Algorithm(
            "fedmlbm", "FedMLB with momentum on the server", FedAvgM, FedMLBClient, network=True
        ),
        Algorithm("gradma", "GradMA-W's workers and GradMA-S's server", GradMA, GradMAClient, True),
        Algorithm(
            "gradma-w",
            "local steps that agree with earlier ones",
            FedAvg,
            GradMAClient,
            True,
            unread=("beta1", "beta2", "memory-size"),
        ),
        Algorithm("gradma-s", "a server step that agrees with a memory", GradMA, FedAvgClient),
        Algorithm(
            "fedbcgd",
            "each group uploads one block",
            FedBCGD,
            FedBCGDClient,
            unread=("control",),
            server_lr=False,
        ),
        Algorithm(
            "fedbcgd-plus",
            "FedBCGD with control variates and variance reduction",
            FedBCGDPlus,
            FedBCGDPlusClient,
            stateful=True,
            server_lr=False,
        ),
        Algorithm(
            "diana",
            "compressed differences between gradients and shifts",
            DIANA,
            DIANAClient,
            stateful=True,
            compressor="qsgd",
        ),
        Algorithm(
            "vrdiana",
            "DIANA with variance-reduced gradients",
            DIANA,
            VRDIANAClient,
            stateful=True,
            compressor="qsgd",
        ),
    )
}


def find_algorithm(config: RunConfig) -> Algorithm:
    """Return the config's algorithm, or say which there are."""
    if config.algorithm not in ALGORITHMS:
        raise ConfigError(
            f"algorithm = {config.algorithm!r} is not known{did_you_mean(config.algorithm, ALGORITHMS)}: "
            "`fedapp algorithms` lists those there are."
        )
    return ALGORITHMS[config.algorithm]


def keys_of(algorithm: Algorithm) -> dict[str, Value]:
    """Return the config keys that an algorithm reads beside those of every run, with their values by default."""
    keys: dict[str, Value] = {}
    if algorithm.server_lr:
        keys["server-lr"] = algorithm.strategy.default_server_lr
    if algorithm.compressor != "none":
        keys["compressor"] = algorithm.compressor
    options = RunConfig(algorithm=algorithm.name).options
    table = algorithm.name.partition("-")[0]
    for key, value in options.model_dump(by_alias=True).items() if options else ():
        if key not in algorithm.unread:
            keys[f"{table}.{key}"] = value
    return keys


def keeps_state(config: RunConfig) -> bool:
    """Tell whether the config's clients remember something between rounds."""
    return find_algorithm(config).stateful or config.error_feedback


def find_compressor(config: RunConfig, tensor_sizes: tuple[int, ...]) -> Compressor | None:
    """Return what the config's clients compress with; None if they do not."""
    name = config.compressor or find_algorithm(config).compressor
    tables = (config.qsgd, config.uniform, config.topk, config.randk)
    return _make_compressor(name, tables, tensor_sizes)


@lru_cache(maxsize=8)
def _make_compressor(
    name: str,
    tables: tuple[QsgdKeys, UniformKeys, TopKKeys, RandKKeys],
    tensor_sizes: tuple[int, ...],
) -> Compressor | None:
    qsgd, uniform, topk, randk = tables
    if name == "none":
        return None
    if name == "qsgd":
        return make_compressor(name, **qsgd.model_dump())
    if name == "uniform":
        tensors = tensor_sizes if uniform.scope == "tensor" else ()
        return make_compressor(name, **uniform.model_dump(exclude={"scope"}), tensors=tensors)
    if name in ("topk", "randk"):
        keys = topk if name == "topk" else randk
        values = _make_compressor(keys.values, tables, ()) or make_compressor("none")
        return make_compressor(name, ratio=keys.ratio, values=values)
    return make_compressor(name)


def make_strategy(config: RunConfig, problem: Start) -> FederatedStrategy:
    """Return the config's algorithm on the server's side, at the problem's start."""
    algorithm = find_algorithm(config)
    kind = kind_of(config)
    if algorithm.network and not kind.is_network:
        raise ConfigError(
            f"{algorithm.name} looks into a network: choose an image data set and a network as model."
        )
    if config.weight_decay and kind.regularizer:
        raise ConfigError(
            f"{config.model} has a regulariser of its own, and weight-decay would move the optimum that "
            f"`gap` counts from: set weight-decay = 0, and {kind.regularizer}."
        )
    compressor = find_compressor(config, problem.layout.tensors)
    start = problem.initial()
    strategy = algorithm.strategy(config, algorithm.client, *start, compressor, problem.layout)
    strategy.keeps_state = keeps_state(config)
    return strategy
