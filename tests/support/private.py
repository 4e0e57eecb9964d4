"""Runs with differential privacy: a config, its strategy, and what it counts."""

from typing import Any

from fedapp.building import make_strategy
from fedapp.config import RunConfig
from fedapp.parsing import parse_run_config
from fedapp.privacy import CountedPrivacy, server_privacy
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import kebab

MEANS = [name for name, a in ALGORITHMS.items() if a.strategy.rule_is_a_mean]
CLIP, Z, S = 0.5, 1.5, 4
KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "quadratic__dim": 200,
    "num_clients": 8,
    "clients_per_round": S,
    "num_rounds": 3,
    "lr": 0.3,
    "dp__clip": CLIP,
    "dp__noise_multiplier": Z,
    "dp__noise_from": "seed",
}


def config_of(**keys: Value) -> RunConfig:
    return parse_run_config(kebab(KEYS | keys))


def strategy_of(**keys: Value) -> Any:
    config = config_of(**keys)
    return make_strategy(config, make_problem(config))


def counted(config: RunConfig) -> CountedPrivacy:
    privacy = server_privacy(config)
    assert isinstance(privacy, CountedPrivacy)
    return privacy
