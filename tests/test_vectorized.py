"""Clients that train side by side: the same results as one after the other, whoever is trained with whom."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fedapp.building import check
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import kind_of, make_problem
from fedapp.registry import ALGORITHMS, find_algorithm
from fedapp.tables import Value
from fedapp.vectorized import Asking, in_groups
from tests.conftest import kebab
from tests.support.cases import CASES, trajectory

SMALL: dict[str, Value] = {
    "dataset": "digits",
    "model": "mlp-6",
    "train-samples": 200,
    "partition": "dirichlet",  # clients hold different numbers of samples
    "num-clients": 8,
    "clients-per-round": 5,
    "num-rounds": 3,
    "batch-size": 10,
    "lr": 0.1,
    "dtype": "float64",
    "eval-every": 100,
}
TOGETHER = sorted(name for name, a in ALGORITHMS.items() if not a.needs.network)


def config_of(algorithm: str, **keys: Value) -> RunConfig:
    """Return a run of an algorithm with the terms of its test case, and unequal work where it allows that."""
    case = next(case for case in CASES.values() if case.algorithm == algorithm)
    own = {k: v for k, v in case.keys.items() if not k.startswith("quadratic") and k != "lr"}
    needs = find_algorithm(algorithm).needs
    work: dict[str, Value] = {"local_epochs": 0 if needs.equal_local_steps else 1}
    if needs.one_local_step:
        work = {"local_steps": 1}
    if needs.all_clients:
        work["clients_per_round"] = 8
    return parse_run_config(SMALL | {"algorithm": algorithm} | kebab(own | work | keys))


def difference(a: list[Any], b: list[Any]) -> float:
    """Return the largest difference of two trajectories, over the largest number."""
    return float(np.abs(np.subtract(a, b)).max() / np.abs(a).max())


@pytest.mark.parametrize("algorithm", TOGETHER)
def test_every_algorithm_gives_what_it_gives_one_client_at_a_time(algorithm: str) -> None:
    plain = trajectory(config_of(algorithm))
    together = trajectory(config_of(algorithm, vectorize=4))
    assert difference(plain, together) < 1e-11
    # Bit for bit the same with other groups, on other nodes:
    assert np.array_equal(together, trajectory(config_of(algorithm, vectorize=3), nodes=3))


@pytest.mark.parametrize(
    "keys",
    [
        {"client_optimizer": "adam", "optimizer__state": "keep", "clip_gradient": 0.5},
        {"compressor": "topk", "topk__ratio": 0.3, "error_feedback": True, "weight_decay": 0.01},
        {"model": "logistic"},
        {"model": "sigmoid-erm", "batch_size": 0},
        {"dataset": "quadratic", "quadratic__noise": 0.5, "local_epochs": 0},
        {"dataset": "diabetes", "model": "mlp-5-3", "lr": 0.01},
        {"dataset": "wine", "model": "logreg", "lr": 0.01, "train_samples": 0},
    ],
    ids=["optimizer", "compressed", "logistic", "sigmoid", "quadratic", "regression", "table"],
)
def test_everything_else_is_as_before(keys: dict[str, Value]) -> None:
    plain = trajectory(config_of("fedavg", **keys))
    assert difference(plain, trajectory(config_of("fedavg", **keys, vectorize=4))) < 1e-11


@pytest.mark.parametrize("algorithm", TOGETHER)
def test_float32_differs_by_its_rounding(algorithm: str) -> None:
    keys: dict[str, Value] = {"dtype": "float32", "num_rounds": 2}
    plain, together = (trajectory(config_of(algorithm, **keys, vectorize=size)) for size in (0, 4))
    assert difference(plain, together) < 1e-5


def test_a_client_that_fails_costs_only_itself() -> None:
    config = config_of("fedavg", vectorize=4)
    problem = make_problem(config)
    x = torch.tensor(problem.initial()[0])

    def train(client: int) -> float:
        objective = Asking(problem.objective(client))
        total = 0.0
        for step in range(3):
            if client == 2 and step == 1:
                raise RuntimeError("it is lost")
            total += float(objective.loss_gradient(x, np.array([client, step]))[0])
        return total

    trainings: dict[int, Callable[[], float]] = {c: partial(train, c) for c in range(4)}
    grouped = in_groups(trainings, config, problem)
    with pytest.raises(RuntimeError, match="it is lost"):
        grouped[2]()
    for client in (3, 0, 1):
        rows = [problem.objective(client).loss_gradient(x, np.array([client, s])) for s in range(3)]
        assert grouped[client]() == pytest.approx(sum(float(loss) for loss, _ in rows))


def test_what_one_client_asks_wrongly_fails_and_does_not_hang() -> None:
    config = config_of("fedavg", vectorize=2)
    problem = make_problem(config)
    x = torch.tensor(problem.initial()[0])

    def train(client: int) -> Any:
        y = x[:5] if client else x
        return Asking(problem.objective(client)).loss_gradient(y, np.array([0]))

    grouped = in_groups({c: partial(train, c) for c in range(2)}, config, problem)
    for client in range(2):
        with pytest.raises(RuntimeError, match="stack"):
            grouped[client]()


@pytest.mark.parametrize(
    ("algorithm", "keys", "said"),
    [
        ("moon", {}, "looks into the network"),
        ("fedavg", {"model": "lenet5"}, "not lenet5"),
        ("fedavg", {"trainable": "head"}, "not trained"),
        ("fedavg", {"lora__rank": 2}, "this one has others"),
        ("fedavg", {"augmentation": "crop-flip"}, "augment"),
        ("fedavg", {"precision": "bf16", "dtype": "float32"}, "by itself"),
        ("fedavg", {"compile": True}, "by itself"),
    ],
)
def test_what_cannot_be_computed_at_once_is_refused(
    algorithm: str, keys: dict[str, Value], said: str
) -> None:
    own = kebab(keys) | {"algorithm": algorithm, "vectorize": 8}
    config = parse_run_config(SMALL | own)
    with pytest.raises(ConfigError, match=f"{said}.*set (vectorize = 0|augmentation)"):
        check(config, make_problem(config))


def test_a_dry_run_refuses_it_too() -> None:
    config = parse_run_config(SMALL | {"model": "lenet5", "vectorize": 8})
    with pytest.raises(ConfigError, match="set vectorize = 0"):
        check(config, kind_of(config).outline(config))
    fitting = parse_run_config(SMALL | {"vectorize": 8})
    check(fitting, kind_of(fitting).outline(fitting))
