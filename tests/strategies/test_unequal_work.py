"""Clients that take different numbers of local steps: every algorithm against its pseudocode, and where it converges to.

With `local-epochs` client i takes tau_i steps. The pseudocode and the limits are those of ALGORITHMS.md's rules; docs/tracking.md
has the limits as a table, whose numbers come from here.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.config import RunConfig
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.problems import make_problem
from fedapp.problems.quadratic import Quadratic
from fedapp.registry import ALGORITHMS
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from tests import oracles
from tests.support.cases import (
    CASES,
    EXAMPLES,
    N,
    config_for,
    expected,
    groups_of,
    oracle_inputs,
    quantizer,
    trajectory,
)

TRACKING = Path(__file__).parents[2] / "docs" / "tracking.md"


def give_examples(patch: pytest.MonkeyPatch, examples: list[int]) -> None:
    """Give the clients of quadratics these numbers of examples."""
    make = Quadratic.objective

    def objective(self: Quadratic, client: int) -> Any:
        made: Any = make(self, client)
        made.num_examples = examples[client]
        return made

    patch.setattr(Quadratic, "objective", objective)


@pytest.fixture
def unequal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the clients of quadratics different numbers of examples."""
    give_examples(monkeypatch, EXAMPLES)


def unequal_config(algorithm: str, **keys: Value) -> RunConfig:
    work: dict[str, Value] = {"local_epochs": 1, "batch_size": 1, "dtype": "float64", "lr": 0.1}
    return config_for(algorithm, **(work | keys))


# Against the pseudocode.


def one_step(algorithm: str) -> bool:
    return ALGORITHMS[algorithm].needs.one_local_step


def cases() -> Iterator[tuple[str, str]]:
    """Yield the cases that may be unequal, in their steps or weights, and how they are weighted."""
    for name, case in CASES.items():
        needs = ALGORITHMS[case.algorithm].needs
        if "lr decays" in name or needs.equal_local_steps:
            continue
        if not one_step(case.algorithm):
            yield name, "uniform"
        if not needs.uniform_weighting:
            yield name, "examples"


def far(ours: list[oracles.Vector], theirs: list[oracles.Vector]) -> float:
    """Return the largest relative difference between two trajectories."""
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


@pytest.mark.usefixtures("unequal")
@pytest.mark.parametrize(("name", "weighting"), cases())
def test_every_algorithm_equals_its_pseudocode(name: str, weighting: str) -> None:
    """Four rounds of 9 of 12 clients, tau from 1 to 9, so that most clients come back."""
    case = CASES[name]
    count = 9 if case.sampled else N
    keys = case.keys | {"num_rounds": 4, "clients_per_round": count, "weighting": weighting}
    keys |= {"lr": 0.1, "gradma__memory_size": N}
    if one_step(case.algorithm):
        config = config_for(case.algorithm, dtype="float64", **keys)
        tau: oracles.Tau = 1
    else:
        config = unequal_config(case.algorithm, **keys)
        tau = EXAMPLES
    own: dict[str, Any] = {"tau": tau, "lr": 0.1}
    own |= {"m": N} if "m" in case.numbers else {}
    weights = {"weights": EXAMPLES} if weighting == "examples" else {}
    ours = trajectory(config, nodes=2)
    assert far(ours, expected(case, config, **own, **weights)) < 1e-6
    if tau == EXAMPLES:
        assert far(ours, expected(case, config, **(own | {"tau": 1}), **weights)) > 1e-3
    if weights:
        assert far(ours, expected(case, config, **own)) > 1e-3


def test_what_must_be_equal_is_refused() -> None:
    """FedCET has one tau, and DIANA's and QSGD's is 1."""
    refused = set()
    for name, algorithm in ALGORITHMS.items():
        if algorithm.needs.network:
            continue
        count = N if algorithm.needs.all_clients else 4
        try:
            config = unequal_config(name, clients_per_round=count)
            make_strategy(config, make_problem(config))
        except ConfigError as error:
            assert "set local-steps" in str(error)
            refused.add(name)
    assert refused == {"fedcet", "qsgd", "diana", "vrdiana"}


@pytest.mark.usefixtures("unequal")
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("algorithm", ["fedgate", "fedcomgate", "fedcomgate with memory"])
def test_tracking_with_each_client_s_own_tau_would_be_noticed(
    algorithm: str, weighting: str
) -> None:
    name = algorithm.partition(" ")[0]
    keys: dict[str, Value] = {"compressor": "qsgd", "qsgd__levels": 8, f"{name}__damping": 0.7}
    numbers: dict[str, Any] = {"a": 0.7}
    if algorithm != name:
        keys |= {"compressor": "topk", "topk__ratio": 0.5, "fedcomgate__memory": "paper"}
        numbers |= {"memory": "paper"}
    config = unequal_config(name, weighting=weighting, clients_per_round=9, num_rounds=6, **keys)
    weights = EXAMPLES if weighting == "examples" else None
    numbers |= {"lr": 0.1, "tau": EXAMPLES, "weights": weights, "Q": quantizer(config)}
    case = replace(CASES["fedgate"], oracle=getattr(oracles, name))
    ours = trajectory(config, nodes=3)
    assert far(ours, expected(case, config, server_lr=1.0, **numbers)) < 1e-5
    wrong = expected(case, config, server_lr=1.0, mistake="own tau", **numbers)
    assert far(ours, wrong) > 1e-3


@pytest.mark.parametrize("algorithm", ["fedgate", "fedcomgate"])
def test_some_cohorts_take_equal_steps_and_others_do_not(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D goes down where a cohort's tau_i are equal, else mean(D_j / tau_j); tau_i is that of the round, not local-steps."""
    examples = [3] * 9 + [7] * 3
    give_examples(monkeypatch, examples)
    config = unequal_config(algorithm, clients_per_round=2, num_rounds=30, compressor="none")
    case = replace(CASES["fedgate"], oracle=oracles.fedgate)
    cohorts = oracle_inputs(config)[2]
    kinds = [len({examples[i] for i in cohort}) for cohort in cohorts]
    assert min(kinds.count(1), kinds.count(2)) > 5
    ours = trajectory(config)
    assert far(ours, expected(case, config, server_lr=1.0, lr=0.1, tau=examples)) < 1e-6


@pytest.mark.usefixtures("unequal")
@pytest.mark.parametrize("algorithm", ["fedgate", "fedcomgate", "scaffold"])
def test_a_step_size_that_decays_counts_as_it_is_in_its_round(algorithm: str) -> None:
    """What is tracked is divided by the round's own lr tau_i, not by the first round's."""
    keys: dict[str, Value] = {"lr_schedule": "exponential", "lr_decay": 0.8, "compressor": "none"}
    config = unequal_config(algorithm, clients_per_round=9, num_rounds=6, **keys)
    x, g, cohorts = oracle_inputs(config)
    exact = [lambda name, k, i, v: v] if algorithm == "fedcomgate" else []
    oracle = partial(getattr(oracles, algorithm), x, g, cohorts, EXAMPLES, 0.1, 1.0, N, *exact)
    ours = trajectory(config, nodes=2)
    assert far(ours, list(oracle(decay=0.8))) < 1e-6
    assert far(ours, list(oracle())) > 1e-3


# Where they converge to, on quadratics f_i = 1/2 (x - b_i)' A_i (x - b_i) without noise, all clients in every round. The
# pseudocode runs, which the code equals (above); the points come from what the update rules leave where they are.

LR, MU, BETA = 0.1, 0.3, 0.7
EXACT = 1e-6
Matrix = oracles.Vector


class Clients:
    """Quadratics, and points that rules converge to."""

    def __init__(self, lr: float = LR, rounds: int = 300) -> None:
        keys: dict[str, Value] = {"weight_decay": 0.0, "quadratic__condition": 3.0}
        self.config = config_for("fedbcgd", clients_per_round=N, num_rounds=rounds, dtype="float64",
                                 fedbcgd__blocks=2, **keys)  # fmt: skip
        self.x, self.g, self.cohorts = oracle_inputs(self.config)
        problem = make_problem(self.config)
        assert isinstance(problem, Quadratic)
        self.A, self.b, self.lr = problem.A.numpy(), problem.b.numpy(), lr
        self.one = np.eye(len(self.x))

    def noisy(self, k: int, i: int, t: int, y: oracles.Vector) -> oracles.Vector:
        """Return the gradient; there is no noise."""
        return self.g(i, y)

    def zero_of(self, maps: list[Matrix], weights: list[int] | None = None) -> oracles.Vector:
        """Return where the weighted sum of M_i (x - b_i) is zero."""
        n = weights or [1] * N
        left = sum(w * M for w, M in zip(n, maps, strict=True))
        right = sum(w * M @ b for w, M, b in zip(n, maps, self.b, strict=True))
        return np.linalg.solve(left, right)

    def optimum(self, weights: list[int] | None = None) -> oracles.Vector:
        """Return the optimum of the weighted sum of the f_i."""
        return self.zero_of(list(self.A), weights)

    def local_maps(self, mu: float = 0.0) -> list[Matrix]:
        """Return M_i, u_i = M_i (x - b_i): tau_i steps on f_i + mu/2 |y - x|^2 from x."""
        found = []
        for A, tau in zip(self.A, EXAMPLES, strict=True):
            H = A + mu * self.one
            left_over = np.linalg.matrix_power(self.one - self.lr * H, tau)
            found.append((self.one - left_over) @ np.linalg.solve(H, A))
        return found

    def mimelite_point(self) -> oracles.Vector:
        """Return where the u_i of steps along (1 - beta) g(y) + beta grad f(x) sum up to zero."""
        mean_A, total = self.A.mean(0), np.zeros_like(self.A[0])
        offset = np.zeros_like(self.x)
        mean_Ab = np.einsum("cij,cj->i", self.A, self.b) / N
        for A, b, tau in zip(self.A, self.b, EXAMPLES, strict=True):
            B = self.one - self.lr * (1 - BETA) * A
            powers = sum(np.linalg.matrix_power(B, t) for t in range(tau))
            M, along = self.one - np.linalg.matrix_power(B, tau), self.lr * BETA * powers
            total += M + along @ mean_A
            offset += M @ b + along @ mean_Ab
        return np.linalg.solve(total, offset)

    def slope(self, x: oracles.Vector) -> float:
        """Return |grad f(x)|."""
        return float(np.linalg.norm(sum(self.g(i, x) for i in range(N))) / N)


def runs(clients: Clients) -> dict[str, Any]:
    """Return the pseudocode of every algorithm that takes unequal steps, ready to run."""
    c, tau, lr = clients, EXAMPLES, clients.lr
    begin = c.x, c.g, c.cohorts, tau, lr
    blocks = [list(range(10)), list(range(10, 20))]
    groups, shared = groups_of(c.config, c.cohorts), list[int]()
    rest = groups, tau, lr, blocks, shared, 0.0
    gradma = (c.x, c.noisy, c.cohorts[:200], tau, lr, 1.0, N, (len(c.x),), 0.5, 0.5, N)

    def exact(name: str, k: int, i: int, v: oracles.Vector) -> oracles.Vector:
        return v

    return {
        "fedavg": oracles.fedavg(*begin, 1.0),
        "fedavgm": oracles.fedavgm(*begin, 0.5, 0.5),
        "fedadam": oracles.fedadam(*begin, 0.3, 0.9, 0.99, 1.0),
        "mifa": oracles.mifam(*begin, 1.0, 0.0, N),
        "mifam": oracles.mifam(*begin, 0.5, 0.5, N),
        "fedpaq": oracles.fedpaq(*begin, 1.0, exact),
        "fedcom": oracles.fedcom(*begin, 1.0, exact),
        "fedprox": oracles.fedavg(*begin, 1.0, MU),
        "fedproxm": oracles.fedavgm(*begin, 0.5, 0.5, MU),
        "mimelite": oracles.mimelite(*begin, 1.0, BETA, c.noisy),
        "fedgate": oracles.fedgate(*begin, 1.0, N),
        "fedcomgate": oracles.fedcomgate(*begin, 1.0, N, exact),
        "scaffold": oracles.scaffold(*begin, 1.0, N),
        "feddyn": oracles.feddyn(*begin, N, 0.4),
        "feddc": oracles.feddc(*begin, N, 0.05),
        "fedbcgd": oracles.fedbcgd(c.x, c.noisy, *rest),
        "fedbcgd-plus": oracles.fedbcgd_plus(c.x, c.noisy, c.g, *rest, N, "consistent"),
        "gradma-s": oracles.gradma(*gradma, worker=False),
        "gradma-w": oracles.gradma(*gradma, server=False),
        "gradma": oracles.gradma(*gradma),
    }


@pytest.fixture(scope="module")
def clients() -> Clients:
    return Clients()


@pytest.fixture(scope="module")
def ends(clients: Clients) -> dict[str, list[oracles.Vector]]:
    """Return the last models of each."""
    return {name: list(run)[-60:] for name, run in runs(clients).items()}


OPTIMUM = {"fedgate", "fedcomgate", "scaffold", "feddyn", "feddc", "fedbcgd-plus"}
MEANS = {"fedavg", "fedavgm", "fedadam", "mifa", "mifam", "fedpaq", "fedcom"}
PROXIMAL = {"fedprox", "fedproxm"}


def test_every_algorithm_has_a_limit(ends: dict[str, Any]) -> None:
    refused = {"fedcet", "qsgd", "diana", "vrdiana"}
    # Networks' own algorithms are compared with FedAvg in test_contrast.py.
    networks = {a.name for a in ALGORITHMS.values() if a.needs.network}
    assert set(ends) == set(ALGORITHMS) - refused - networks


def test_corrected_methods_reach_the_optimum(clients: Clients, ends: dict[str, Any]) -> None:
    optimum = clients.optimum()
    for name in OPTIMUM:
        assert clients.slope(ends[name][-1]) < EXACT, name
        assert np.linalg.norm(ends[name][-1] - optimum) < EXACT, name


def test_means_stop_where_their_updates_sum_up_to_zero(
    clients: Clients, ends: dict[str, Any]
) -> None:
    """sum u_i = 0, u_i = (I - (I - lr A_i)^tau_i) (x - b_i): nearer to the optimum of sum tau_i f_i than to that of f."""
    point, optimum = clients.zero_of(clients.local_maps()), clients.optimum()
    for name in MEANS:
        assert np.linalg.norm(ends[name][-1] - point) < EXACT, name
    to_weighted = np.linalg.norm(point - clients.optimum(EXAMPLES))
    assert to_weighted < 0.25 * np.linalg.norm(point - optimum)


def test_small_steps_bring_means_to_the_optimum_weighted_by_tau() -> None:
    """Half the step size, half the distance: the limit of small lr is the optimum of sum tau_i f_i, not of f."""
    away = []
    for lr in (0.02, 0.01, 0.005):
        small = Clients(lr, 1)
        point = small.zero_of(small.local_maps())
        away.append(float(np.linalg.norm(point - small.optimum(EXAMPLES))))
        assert np.linalg.norm(point - small.optimum()) > 1
    assert away[0] / away[1] == pytest.approx(2, rel=0.1)
    assert away[1] / away[2] == pytest.approx(2, rel=0.1)


def test_weights_by_examples_count_beside_the_steps(clients: Clients) -> None:
    """With `weighting = "examples"` and tau_i in proportion to n_i, FedAvg weights f_i by about n_i^2, FedGATE by n_i."""
    begin = clients.x, clients.g, clients.cohorts, EXAMPLES, LR, 1.0
    *_, fedavg = oracles.fedavg(*begin, weights=EXAMPLES)
    *_, fedgate = oracles.fedgate(*begin, N, weights=EXAMPLES)
    point = clients.zero_of(clients.local_maps(), EXAMPLES)
    assert np.linalg.norm(fedavg - point) < 1e-10
    assert np.linalg.norm(fedgate - clients.optimum(EXAMPLES)) < 1e-10
    squared = clients.optimum([n * n for n in EXAMPLES])
    assert np.linalg.norm(point - squared) < 0.5 * np.linalg.norm(point - clients.optimum(EXAMPLES))


def test_proximal_steps_stop_where_theirs_sum_up_to_zero(
    clients: Clients, ends: dict[str, Any]
) -> None:
    point = clients.zero_of(clients.local_maps(MU))
    for name in PROXIMAL:
        assert np.linalg.norm(ends[name][-1] - point) < EXACT, name


def test_mimelite_stops_between(clients: Clients, ends: dict[str, Any]) -> None:
    """The more momentum, the nearer to the optimum: beta of each step is along grad f(x) for all."""
    point, optimum = clients.mimelite_point(), clients.optimum()
    assert np.linalg.norm(ends["mimelite"][-1] - point) < EXACT
    fedavg = clients.zero_of(clients.local_maps())
    assert np.linalg.norm(point - optimum) < 0.5 * np.linalg.norm(fedavg - optimum)


def test_fedbcgd_hovers_about_the_point_of_the_means(
    clients: Clients, ends: dict[str, Any]
) -> None:
    """Each block's mean is over another half of the clients in every round: the model moves on, about FedAvg's point."""
    point = clients.zero_of(clients.local_maps())
    last = np.array(ends["fedbcgd"])
    steps = np.linalg.norm(np.diff(last, axis=0), axis=1)
    assert steps.min() > 0.1
    assert np.linalg.norm(last.mean(0) - point) < 0.5 * np.linalg.norm(last - point, axis=1).mean()


def test_gradma_s_stops_where_some_weights_of_the_updates_give_zero(
    clients: Clients, ends: dict[str, Any]
) -> None:
    """Where no direction agrees with all of them any more. Which such point depends on the start; it is not FedAvg's."""
    x = ends["gradma-s"][-1]
    updates = np.stack([M @ (x - b) for M, b in zip(clients.local_maps(), clients.b, strict=True)])
    weights, rest = nnls(np.vstack([updates.T, np.ones(N)]), np.append(np.zeros(len(x)), 1))
    assert rest < 1e-6
    assert (weights > 1e-6).all()
    assert weights.max() > 1.1 * weights.min()
    assert np.linalg.norm(x - clients.zero_of(clients.local_maps())) > 0.1
    assert np.linalg.norm(x - clients.optimum()) > 0.1


def test_gradma_s_workers_take_about_one_step_whatever_tau_is(
    clients: Clients, ends: dict[str, Any]
) -> None:
    """After a step, <p, g(x)> >= 0 and <p, y - x> >= 0 with y - x = -lr g(x) leave only what is orthogonal to g(x)."""
    optimum = clients.optimum()
    fedavg = clients.zero_of(clients.local_maps())
    away = float(np.linalg.norm(ends["gradma-w"][-1] - optimum))
    assert 1e-3 < away < 0.1 * np.linalg.norm(fedavg - optimum)
    g = clients.g(1, clients.x)
    second = clients.g(1, clients.x - LR * g)
    step = oracles.quadratic_program(second, np.stack([g, g, -LR * g]))
    assert abs(step @ g) < 1e-9 * (g @ g)


def test_the_documented_table_is_what_the_pseudocode_gives(
    clients: Clients, ends: dict[str, Any]
) -> None:
    """Every row names algorithms and |grad f| at their ends, to two digits; below 1e-6 it is called 0."""
    section = TRACKING.read_text().split("## Unequal local work")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z, -]+) \| .* \| ([0-9.e-]+) \|$", section, re.M)
    named = {name: float(slope) for names, slope in rows for name in names.split(", ")}
    found = {name: clients.slope(np.asarray(models[-1])) for name, models in ends.items()}
    # FedBCGD does not stop at a point.
    found["fedbcgd"] = float(np.mean([clients.slope(x) for x in ends["fedbcgd"]]))
    assert set(named) == set(found)
    for name, slope in found.items():
        assert named[name] == pytest.approx(0 if slope < EXACT else slope, rel=0.06), name


@pytest.mark.usefixtures("unequal")
@pytest.mark.parametrize(
    ("algorithm", "weighting"), [("fedgate", "uniform"), ("fedcomgate", "examples")]
)
def test_unequal_work_does_not_move_the_optimum(algorithm: str, weighting: str) -> None:
    """The code itself; with the client's own tau under the mean it would."""
    keys: dict[str, Value] = {"weight_decay": 0.0, "quadratic__condition": 3.0, "lr": 0.2}
    config = unequal_config(
        algorithm,
        weighting=weighting,
        clients_per_round=N,
        num_rounds=120,
        compressor="none",
        **keys,
    )
    weights = EXAMPLES if weighting == "examples" else [1] * N
    optimum = Clients().optimum(weights)
    assert np.linalg.norm(trajectory(config)[-1] - optimum) < 1e-10
    x, gradient, cohorts = oracle_inputs(config)
    *_, last = oracles.fedgate(x, gradient, cohorts, EXAMPLES, 0.2, 1.0, N, weights=weights, mistake="own tau")  # fmt: skip
    assert np.linalg.norm(last - optimum) > 1e-2


class Boasting(InlineGrid):
    """Client 3 claims another number of steps, and client 5 another number of examples, than they used."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        for reply in replies:
            metrics: Any = reply.content.metric_records
            if "metrics.3" in metrics:
                metrics["metrics.3"]["steps"] += 1
                metrics["metrics.5"]["num-examples"] += 1
        return replies


@pytest.mark.usefixtures("unequal")
@pytest.mark.parametrize(
    ("algorithm", "keys", "refused"),
    [
        ("fedgate", {}, 2),
        ("fedcomgate", {}, 2),
        # With local-steps, tau does not depend on the number of examples.
        ("fedgate", {"local_epochs": 0, "local_steps": 3}, 1),
        ("fedavg", {}, 0),
    ],
)
def test_a_number_of_steps_that_the_config_does_not_allow_is_refused(
    algorithm: str, keys: dict[str, Value], refused: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = unequal_config(algorithm, clients_per_round=N, num_rounds=2, **keys)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = Boasting(client_app.app, config.flat())
    failures = [record["failures"] for record in run_rounds(grid, strategy, problem, config)]
    assert failures == [refused, refused]
    assert any("local steps, and the config" in m for m in caplog.messages) == bool(refused)
