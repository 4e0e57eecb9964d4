"""Every algorithm against its pseudocode, through the real Strategy, ClientApp and Client."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from clients.averaging import FedAvgClient
from fedapp import client_app
from fedapp.config import RunConfig, Value, parse_run_config
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.models import make_problem
from fedapp.models.quadratic import Quadratic
from fedapp.randomness import sample_cohort
from fedapp.registry import ALGORITHMS, find_algorithm
from fedapp.rounds import run_rounds
from fedapp.wire import Update
from tests import oracles
from tests.conftest import kebab

N, S, TAU, LR, ROUNDS = 12, 4, 5, 0.3, 30
WEIGHT_DECAY = 0.01


def trajectory(config: RunConfig, nodes: int = 1) -> list[oracles.Vector]:
    algorithm, problem = find_algorithm(config), make_problem(config)
    strategy = algorithm.strategy(config, algorithm.client, *problem.initial())
    grid = InlineGrid(client_app.app, config.flat(), nodes)
    rounds = run_rounds(grid, strategy, problem, config, "test")
    return [strategy.x.astype(np.float64) for _ in rounds]


def config_for(algorithm: str, **keys: Value) -> RunConfig:
    common: dict[str, Value] = {
        "algorithm": algorithm,
        "dataset": "quadratic",
        "num-clients": N,
        "clients-per-round": S,
        "num-rounds": ROUNDS,
        "local-steps": TAU,
        "lr": LR,
        "weight-decay": WEIGHT_DECAY,
        "quadratic.dim": 20,
        "quadratic.heterogeneity": 2.0,
    }
    return parse_run_config(common | kebab(keys))


def oracle_inputs(config: RunConfig) -> tuple[oracles.Vector, oracles.Gradient, oracles.Cohorts]:
    problem = make_problem(config)
    assert isinstance(problem, Quadratic)
    A, b = problem.A.double().numpy(), problem.b.double().numpy()

    def gradient(i: int, y: oracles.Vector) -> oracles.Vector:
        slope: oracles.Vector = A[i] @ (y - b[i]) + config.weight_decay * y
        return slope

    cohorts = [
        sample_cohort(list(range(N)), config.clients_per_round, config.seed, r)
        for r in range(1, config.num_rounds + 1)
    ]
    return problem.initial()[0].astype(np.float64), gradient, cohorts


# algorithm -> (its keys, the oracle with the same numbers)
CASES: dict[
    str, tuple[dict[str, Value], Callable[..., Iterator[oracles.Vector]], dict[str, Any]]
] = {
    "fedavg": ({"server_lr": 0.8}, oracles.fedavg, {"server_lr": 0.8}),
    "fedprox": ({"fedprox__mu": 0.3}, oracles.fedavg, {"server_lr": 1.0, "mu": 0.3}),
    "fedavgm": (
        {"fedavgm__beta1": 0.7, "server_lr": 0.5},
        oracles.fedavgm,
        {"server_lr": 0.5, "beta1": 0.7},
    ),
    "fedproxm": (
        {"fedproxm__beta1": 0.6, "fedproxm__mu": 0.2, "server_lr": 0.5},
        oracles.fedavgm,
        {"server_lr": 0.5, "beta1": 0.6, "mu": 0.2},
    ),
    "fedadam": (
        {"server_lr": 0.1, "fedadam__beta1": 0.8, "fedadam__beta2": 0.95, "fedadam__eps": 0.01},
        oracles.fedadam,
        {"server_lr": 0.1, "b1": 0.8, "b2": 0.95, "eps": 0.01},
    ),
    "mifa": ({"server_lr": 0.5}, oracles.mifam, {"server_lr": 0.5, "beta1": 0.0, "N": N}),
    "mifam": (
        {"mifam__beta1": 0.5, "server_lr": 0.2},
        oracles.mifam,
        {"server_lr": 0.2, "beta1": 0.5, "N": N},
    ),
}


def test_every_algorithm_has_an_oracle() -> None:
    assert set(CASES) == set(ALGORITHMS)


@pytest.mark.parametrize("name", CASES)
def test_trajectory_equals_the_pseudocode(name: str) -> None:
    keys, oracle, numbers = CASES[name]
    config = config_for(name, **keys)
    x, gradient, cohorts = oracle_inputs(config)
    expected = list(oracle(x, gradient, cohorts, tau=TAU, lr=LR, **numbers))
    actual = trajectory(config, nodes=3)
    assert len(actual) == ROUNDS
    for ours, theirs in zip(actual, expected, strict=True):
        assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(theirs)


@pytest.mark.parametrize("changed", ["fedprox__mu", "lr", "weight_decay"])
def test_the_comparison_notices_a_change(changed: str) -> None:
    """The tolerance is tight enough to tell a term that is a thousandth off."""
    reference = config_for("fedprox", fedprox__mu=0.3)
    value = {"fedprox__mu": 0.3003, "lr": LR * 1.001, "weight_decay": WEIGHT_DECAY * 1.01}[changed]
    other = config_for("fedprox", **({"fedprox__mu": 0.3} | {changed: value}))
    a, b = trajectory(reference)[-1], trajectory(other)[-1]
    assert np.linalg.norm(a - b) > 1e-5 * np.linalg.norm(a)


def test_one_step_by_hand() -> None:
    """One client, f(x) = (x - b)^2 / 2, so A = 1: from 0, two steps of lr 0.5 reach 0.75 b."""
    keys: dict[str, Value] = {"quadratic__dim": 1, "quadratic__condition": 1.0, "weight_decay": 0.0}
    config = config_for(
        "fedavg", num_clients=1, clients_per_round=1, num_rounds=1, local_steps=2, lr=0.5, **keys
    )
    problem = make_problem(config)
    assert isinstance(problem, Quadratic)
    (x,) = trajectory(config)
    np.testing.assert_allclose(x, 0.75 * problem.b[0].double().numpy(), rtol=1e-6)


def test_examples_weighting_by_hand() -> None:
    """Two updates, 1 and 4, from 1 and 2 examples: the mean is 2.5 or 3."""
    updates = [
        Update(c, {"u": np.array([v], np.float32)}, n, 1, 0.0) for c, v, n in ((0, 1, 1), (1, 4, 2))
    ]
    for weighting, expected in (("uniform", 2.5), ("examples", 3.0)):
        config = config_for("fedavg", weighting=weighting)
        x = np.array([10.0], np.float32)
        strategy = find_algorithm(config).strategy(config, FedAvgClient, x, np.zeros(0, np.float32))
        strategy.aggregate(updates)
        np.testing.assert_allclose(strategy.x, [10 - expected], rtol=1e-6)


def test_mifa_refuses_weights() -> None:
    config = config_for("mifa", weighting="examples")
    with pytest.raises(ConfigError, match="uniform"):
        trajectory(config)


def test_mifa_reaches_the_fedavg_point_of_full_participation() -> None:
    """MIFA's d is the mean of everyone's latest update, so with all sampled it is FedAvg."""
    full = {"clients_per_round": N}
    mifa, fedavg = (trajectory(config_for(a, **full))[-1] for a in ("mifa", "fedavg"))
    np.testing.assert_allclose(mifa, fedavg, rtol=1e-4, atol=1e-5)
