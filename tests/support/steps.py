"""One client of a small quadratic, and a config for each algorithm, for tests of local steps."""

from fedapp.client import Client, State
from fedapp.config import RunConfig
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import kebab
from tests.support.cases import CASES

DIM, CLIENT, ROUNDS = 6, 2, 3
QUADRATIC: dict[str, Value] = {
    "dataset": "quadratic", "quadratic__dim": DIM, "quadratic__noise": 0.5, "dtype": "float64",
    "num_clients": 5, "clients_per_round": 2, "local_steps": 4, "num_rounds": ROUNDS, "lr": 0.1,
    "warmup_rounds": 2, "weight_decay": 0.03, "compressor": "none", "fedbcgd__blocks": 1,
    "optimizer__momentum": 0.8, "optimizer__beta1": 0.7, "optimizer__beta2": 0.9, "optimizer__eps": 1e-3,
    "fedprox__mu": 0.4, "fedproxm__mu": 0.4, "feddyn__alpha": 0.3, "gradma__memory_size": 3,
}  # fmt: skip


def client_of(config: RunConfig, round_: int, state: State) -> Client:
    """Return the client of the config's algorithm in a round."""
    return ALGORITHMS[config.algorithm].client(
        make_problem(config).objective(CLIENT), config, CLIENT, state, round_=round_
    )


def keys_of(name: str) -> dict[str, Value]:
    """Return keys with which an algorithm runs, all 4 clients in every round."""
    case = next((case for case in CASES.values() if case.algorithm == name), None)
    common: dict[str, Value] = {"num_clients": 4, "clients_per_round": 4, "num_rounds": 2}
    own: dict[str, Value] = {"dataset": "quadratic"} if case else {"model": "mlp-4-8"}
    own |= case.keys if case else {}
    return common | own | {"algorithm": name, "gradma__memory_size": 4}


def config_of(name: str, **keys: Value) -> RunConfig:
    """Return such a config, with other keys."""
    return parse_run_config(kebab(keys_of(name) | keys))
