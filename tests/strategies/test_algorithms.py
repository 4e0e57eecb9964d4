"""Every algorithm against its pseudocode, through the real Strategy, ClientApp and Client."""

from dataclasses import replace

import numpy as np
import pytest

from fedapp.errors import ConfigError
from fedapp.problems import make_problem
from fedapp.problems.quadratic import Quadratic
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from fedapp.wire import Update
from tests.support.cases import (
    CASES,
    LR,
    WEIGHT_DECAY,
    Case,
    N,
    S,
    config_for,
    expected,
    largest_difference,
    trajectory,
)

DECAY: dict[str, Value] = {"lr_schedule": "exponential", "lr_decay": 0.9}
MEMORY = ("fedcomgate, topk with local memory", "fedcomgate, topk with the paper's memory")
for _name in ("fedcom", "fedgate", "fedcomgate", "scaffold", "fedcet", *MEMORY):
    _case = CASES[_name]
    CASES[f"{_name}, lr decays"] = replace(
        _case, keys=_case.keys | DECAY, numbers=_case.numbers | {"decay": 0.9}
    )


def runs(case: Case) -> list[tuple[int, str]]:
    """Return the numbers of clients in a round, and the types, with which a case is compared."""
    counts = [count for count, wanted in ((S, case.sampled), (N, case.full)) if wanted]
    dtypes = ["float64", "float32"] if case.float32 else ["float64"]
    return [(count, dtype) for count in counts for dtype in dtypes]


# The first run of each case is quick to have; the others are slow.
RUNS = [
    pytest.param(
        name, count, dtype, id=f"{name}, {'full' if count == N else 'sampled'}, {dtype}",
        marks=[pytest.mark.slow] if place else [],
    )
    for name, case in CASES.items()
    for place, (count, dtype) in enumerate(runs(case))
]  # fmt: skip


def test_every_algorithm_has_an_oracle() -> None:
    networks = {a.name for a in ALGORITHMS.values() if a.needs.network}  # theirs: test_contrast.py
    assert {case.algorithm for case in CASES.values()} == set(ALGORITHMS) - networks


MEANS = [
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedproxm",
    "fedadam",
    "moon",
    "moonm",
    "fedmlb",
    "fedmlbm",
    "fedpaq",
    "qsgd",
    "fedcom",
    "gradma-w",
]
EACH_UPDATE = ("gradma", "gradma-s")  # their server's memory keeps the updates themselves
DELIVERED = ("fedgate", "fedcomgate")  # and their rule divides by the local steps
KEPT = {  # vectors of the model's size beside x
    **dict.fromkeys(("fedavgm", "fedproxm", "moonm", "fedmlbm", "mimelite", "gradma", "gradma-s"), "m"),
    "fedadam": "mv", "diana": "h", "vrdiana": "h", "feddyn": "h", "feddc": "ch", "scaffold": "c",
    "fedbcgd": "v", "fedbcgd-plus": "vc", "mifa": "dm", "mifam": "dm",
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_strategy_says_of_itself_is_so(name: str) -> None:
    """What may be added up before it arrives, which rules may replace the mean, what takes memory."""
    strategy = ALGORITHMS[name].strategy
    assert strategy.only_sums == (name not in EACH_UPDATE)
    assert strategy.rule_is_a_mean == (name in MEANS)
    assert strategy.default_server_lr == (0.02 if name == "fedadam" else 1.0)
    assert sorted(strategy.keeps) == sorted(KEPT.get(name, ""))
    assert strategy.delivers == (1 if name in DELIVERED else 0)
    assert strategy.checks_steps == (name in DELIVERED)
    assert strategy.begins_on_grid == (name == "fedcet")


@pytest.mark.parametrize(("name", "count", "dtype"), RUNS)
def test_trajectory_equals_the_pseudocode(name: str, count: int, dtype: str) -> None:
    case = CASES[name]
    config = config_for(case.algorithm, clients_per_round=count, dtype=dtype, **case.keys)
    assert largest_difference(trajectory(config, nodes=3), expected(case, config)) <= 1e-5


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
    for weighting, mean in (("uniform", 2.5), ("examples", 3.0)):
        config = config_for("fedavg", weighting=weighting)
        x = np.array([10.0], np.float32)
        fedavg = ALGORITHMS["fedavg"]
        strategy = fedavg.strategy(fedavg, config, x, np.zeros(0, np.float32))
        strategy.aggregate(updates)
        np.testing.assert_allclose(strategy.x, [10 - mean], rtol=1e-6)


def test_mifa_refuses_weights() -> None:
    config = config_for("mifa", weighting="examples")
    with pytest.raises(ConfigError, match="uniform"):
        trajectory(config)


def test_mifa_reaches_the_fedavg_point_of_full_participation() -> None:
    """MIFA's d is the mean of everyone's latest update, so with all sampled it is FedAvg."""
    full = {"clients_per_round": N}
    mifa, fedavg = (trajectory(config_for(a, **full))[-1] for a in ("mifa", "fedavg"))
    np.testing.assert_allclose(mifa, fedavg, rtol=1e-4, atol=1e-5)
