"""Drift correction: exact where FedAvg stalls, its invariants, and mistakes that it must not make."""

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from clients.fedcomgate import TrackingClient
from fedapp import client_app
from fedapp.building import make_strategy, warnings
from fedapp.compression import Compressor, make_compressor
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, DivergedError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.randomness import generator
from fedapp.registry import find_compressor
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from strategies.diana import shift_step
from strategies.fedcomgate import damping
from tests import oracles
from tests.conftest import RunInline, kebab
from tests.support.cases import (
    CASES,
    LR,
    ROUNDS,
    TAU,
    N,
    S,
    config_for,
    expected,
    largest_difference,
    oracle_inputs,
    quantizer,
    trajectory,
)
from tests.support.steps import CLIENT, QUADRATIC, client_of

EXACT: dict[str, Value] = {
    "dataset": "quadratic",
    "dtype": "float64",
    "num_clients": 4,
    "clients_per_round": 4,
    "local_steps": 4,
    "lr": 0.3,
    "num_rounds": 130,
}
SIX: dict[str, Value] = {"num_clients": 6, "clients_per_round": 6}

ONE_STEP: dict[str, Value] = {
    "compressor": "qsgd",
    "qsgd__levels": 8,
    "local_steps": 1,
    "lr": 0.6,
    "num_rounds": 220,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "fedgate"},
        {"algorithm": "fedcomgate", "compressor": "qsgd", "qsgd__levels": 8},
        {"algorithm": "scaffold"},
        {"algorithm": "scaffold", "scaffold__option": 1},
        {"algorithm": "scaffold", "compressor": "topk", "topk__ratio": 0.5, "error_feedback": True},
        {"algorithm": "scaffold", "clients_per_round": 2, "num_rounds": 160},
        {"algorithm": "fedcet"},
        {"algorithm": "fedcet", "local_steps": 1, "lr": 0.6, "num_rounds": 220},
        {"algorithm": "fedcet", "compressor": "qsgd", "qsgd__levels": 8},
        {"algorithm": "feddyn", "local_steps": 20, "num_rounds": 100, "feddyn__alpha": 0.3},
        {"algorithm": "feddc", "feddc__alpha": 0.02, "num_rounds": 220},
        {"algorithm": "fedgate", "clients_per_round": 2, "num_rounds": 160},
        ONE_STEP | {"algorithm": "diana"},
        ONE_STEP | {"algorithm": "vrdiana", "vrdiana__probability": 0.3, "quadratic__noise": 1.0},
    ],
)
def test_the_optimum_is_reached(keys: dict[str, Value]) -> None:
    assert distances(EXACT | keys)[-1] < 1e-6


def test_the_grid_s_rounding_is_made_up_for_when_steps_shrink() -> None:
    """What was taken off u is owed over the step size of its round, and paid over another."""
    shrinking = EXACT | {"algorithm": "fedgate", "lr_schedule": "exponential", "lr_decay": 0.97}
    *_, exact = distances(shrinking)
    *_, on_grid = distances(shrinking | {"downlink": "grid"})
    assert on_grid < 1.5 * exact  # 36 times as far if it is paid in the same units


def distances(keys: dict[str, Value]) -> list[float]:
    """Run without files; return how far from the optimum each round ends."""
    config = parse_run_config(kebab(keys))
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = InlineGrid(client_app.app, config.flat())
    return [float(r["distance"]) for r in run_rounds(grid, strategy, problem, config)]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedpaq", "fedcom"])
def test_without_correction_it_is_not(algorithm: str) -> None:
    keys: dict[str, Value] = {"algorithm": algorithm, "compressor": "none"}
    *_, before, last = distances(EXACT | keys)
    assert last > 1e-2
    assert last == pytest.approx(before, rel=1e-6), "it stalled"


@pytest.mark.parametrize("algorithm", ["fedgate", "fedcomgate"])
def test_tracking_vectors_sum_to_zero(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all clients; and they are not zero themselves."""
    used: dict[int, list[torch.Tensor]] = defaultdict(list)
    steps = TrackingClient.corrected_steps

    def spy(self: TrackingClient, x: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
        used[self.round].append(delta)
        return steps(self, x, delta)

    monkeypatch.setattr(TrackingClient, "corrected_steps", spy)
    trajectory(config_for(algorithm, clients_per_round=N, dtype="float64"))
    assert len(used) == ROUNDS
    for deltas in used.values():
        assert len(deltas) == N
        assert float(torch.stack(deltas).sum(0).norm()) < 1e-10
    assert all(float(delta.norm()) > 0.1 for delta in used[ROUNDS])


@pytest.mark.parametrize(
    ("mistake", "count"),
    [
        ("tracks unquantized", S),
        ("tracks unquantized", N),
        ("divides by N", S),
        ("quantizes u/s", S),
        ("quantizes u/s", N),
    ],
)
def test_a_known_mistake_would_be_noticed(mistake: str, count: int) -> None:
    """The pseudocode with the mistake in it is far from what the clients and the server do."""
    case = CASES["fedcomgate"]
    config = config_for("fedcomgate", clients_per_round=count, dtype="float64", **case.keys)
    ours = trajectory(config)
    assert largest_difference(ours, expected(case, config)) < 1e-5
    with np.errstate(all="ignore"):
        wrong = expected(case, config, mistake=mistake)
    assert not largest_difference(ours, wrong) < 1e-3


def test_the_server_keeps_only_the_means_that_somebody_waits_for() -> None:
    config = config_for("fedcomgate", num_rounds=60)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = InlineGrid(client_app.app, config.flat(), 2)
    kept = []
    for _ in run_rounds(grid, strategy, problem, config):
        waiting = {strategy.ledger.accepted[c] for c in strategy.ledger.accepted}
        assert strategy.ledger.deliveries.tags == waiting
        kept.append(len(strategy.ledger.deliveries.tags))
    assert max(kept) < N
    full = config_for("fedcomgate", clients_per_round=N, num_rounds=3)
    strategy = make_strategy(full, problem)
    for _ in run_rounds(InlineGrid(client_app.app, full.flat(), 2), strategy, problem, full):
        assert len(strategy.ledger.deliveries.tags) == 1


@pytest.mark.parametrize("algorithm", ["fedgate", "fedcomgate", "scaffold", "feddyn", "feddc"])
def test_lost_answers_are_those_of_a_smaller_cohort(algorithm: str) -> None:
    """The pseudocode, run with the clients whose answers arrived, gives the same models."""
    keys: dict[str, Value] = (
        {"compressor": "topk", "topk__ratio": 0.5} if algorithm == "fedcomgate" else {}
    )
    if keys:
        keys |= {"fedcomgate__memory": "paper"}
    config = config_for(algorithm, dtype="float64", clients_per_round=N, **keys)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = Interrupted(client_app.app, config.flat(), 3)
    ours = [strategy.x.copy() for _ in run_rounds(grid, strategy, problem, config)]
    x, gradient, _ = oracle_inputs(config)
    arrived = [i for i in range(N) if i % 3 != 1]  # not those of the second of three nodes
    cohorts = [arrived if k % 3 == 0 else list(range(N)) for k in range(1, ROUNDS + 1)]
    numbers: dict[str, Any] = {"tau": TAU, "lr": LR, "N": N}
    numbers |= {"alpha": 0.1} if algorithm in ("feddyn", "feddc") else {"server_lr": 1.0}
    if algorithm == "fedcomgate":
        numbers |= {"Q": quantizer(config), "memory": "paper"}
    theirs = list(getattr(oracles, algorithm)(x, gradient, cohorts, **numbers))
    assert largest_difference(ours, theirs) < 1e-9


class Interrupted(InlineGrid):
    """Loses the answers of one node in every third round."""

    trained = 0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if any(r.metadata.message_type == "train" for r in replies):
            self.trained += 1
            if self.trained % 3 == 0:
                return [r for r in replies if r.metadata.src_node_id != 2]
        return replies


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["fedgate", "fedcomgate", "scaffold", "diana", "feddyn", "feddc"]
)
def test_lost_answers_do_not_spoil_exactness(algorithm: str) -> None:
    """A client whose answer was lost goes on from what the server knows of it."""
    rounds = {"diana": 140, "feddyn": 250}.get(algorithm, 110)
    keys = EXACT | SIX | (ONE_STEP if algorithm == "diana" else {})
    keys |= {"algorithm": algorithm, "num_rounds": rounds}
    config = parse_run_config(kebab(keys | {"compressor": "qsgd", "qsgd__levels": 16}))
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = Interrupted(client_app.app, config.flat(), 3)
    failures = [r["failures"] for r in run_rounds(grid, strategy, problem, config)]
    assert sum(failures) > 0.6 * config.num_rounds
    assert problem.evaluate(strategy.x, strategy.buffers)["distance"] < 1e-6


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"algorithm": "qsgd", "local_steps": 2}, "set local-steps = 1"),
        ({"algorithm": "qsgd", "local_steps": 1}, "set clients-per-round = 20"),
        ({"algorithm": "diana", "local_steps": 2}, "set local-steps = 1"),
        ({"algorithm": "diana", "local_steps": 1, "compressor": "topk"}, "unbiased"),
        (
            {"algorithm": "diana", "local_steps": 1, "error_feedback": True},
            "error-feedback = false",
        ),
        ({"algorithm": "scaffold", "weighting": "examples"}, 'set weighting = "uniform"'),
        ({"algorithm": "feddyn", "weighting": "examples"}, 'set weighting = "uniform"'),
        ({"algorithm": "feddyn", "server_lr": 0.5}, "leave server-lr = 0"),
        ({"algorithm": "feddc", "server_lr": 0.5}, "leave server-lr = 0"),
        ({"algorithm": "fedcet"}, "set clients-per-round = 20"),
        ({"algorithm": "fedcet", "clients_per_round": 20, "local_epochs": 1}, "set local-steps"),
        # tau = 5 and lr = 0.2: 2 / (8 * 0.2)
        ({"algorithm": "fedcet", "clients_per_round": 20, "fedcet__c": 1.25}, r"lr\) = 1.25,"),
        ({"algorithm": "fedcet", "clients_per_round": 20, "fedcet__c": -1.0}, r"lr\) = 1.25,"),
        (
            {"algorithm": "fedcomgate", "fedcomgate__memory": "local", "error_feedback": True},
            "error-feedback = false",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    keys: dict[str, Value], said: str, run_inline: RunInline
) -> None:
    with pytest.raises(ConfigError, match=said):
        run_inline(**keys)


@pytest.mark.parametrize(
    ("keys", "warned"),
    [
        ({"compressor": "qsgd", "qsgd__levels": 16}, True),  # sqrt(15010) / 16 = 7.7
        ({"compressor": "qsgd", "qsgd__levels": 16, "qsgd__bucket": 128}, False),  # 0.5
        ({"compressor": "qsgd", "qsgd__levels": 130}, False),
        ({"compressor": "uniform"}, False),
        ({"compressor": "uniform", "uniform__bits": 2}, True),
        ({"compressor": "randk", "randk__ratio": 0.1}, True),  # 9
    ],
)
def test_a_compressor_that_is_too_coarse_for_tracking_is_told(
    keys: dict[str, Value], warned: bool, run_inline: RunInline, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="flwr"):
        run_inline(algorithm="fedcomgate", num_rounds=1, **keys)
    assert any("relative variance q" in message for message in caplog.messages) == warned


def test_the_shift_step_of_diana_is_one_over_one_plus_q() -> None:
    assert shift_step(0.0, None, 30) == 1.0
    assert shift_step(0.0, make_compressor("qsgd", levels=2), 9) == pytest.approx(1 / 2.5)
    assert shift_step(0.3, None, 30) == 0.3


def test_the_shift_step_of_diana_is_known_to_both_sides() -> None:
    config = parse_run_config(
        kebab({"algorithm": "diana", "local_steps": 1, "dataset": "quadratic"})
    )
    problem = make_problem(config)
    compressor = find_compressor(config, problem.layout.pieces)
    assert compressor is not None
    strategy: Any = make_strategy(config, problem)
    assert strategy.alpha == 1 / (1 + compressor.variance(30)) == 1 / (1 + 30 / 16**2)


def test_vr_diana_renews_its_snapshot_once_in_a_pass() -> None:
    """Nine examples in batches of two are five batches: w_i <- x where the round's draw is below 1/5."""
    keys = QUADRATIC | {
        "algorithm": "vrdiana",
        "local_steps": 1,
        "local_epochs": 0,
        "batch_size": 2,
    }
    config = parse_run_config(kebab(keys))
    x, renewed = np.ones(6), []
    for round_ in range(1, 41):
        state = {"w": torch.zeros(6), "G_w": torch.zeros(6)}
        client = client_of(config, round_, {name: v.double() for name, v in state.items()})
        vars(client.objective)["num_examples"] = 9
        client.train({"x": x}, np.zeros(0))
        draw = generator(config.seed, "snapshot", round_, CLIENT).random()
        renewed.append(bool(client.state["w"].any()))
        assert renewed[-1] == (draw < 0.2)
    assert 2 <= sum(renewed) <= 16


def test_scaffold_by_hand() -> None:
    """One client, f = (x - b)^2 / 2, tau = 2, lr = 1/2: u = -0.75 b, c = c_1 = u / (tau lr)."""
    config = parse_run_config(
        {
            "algorithm": "scaffold",
            "dataset": "quadratic",
            "quadratic.dim": 1,
            "num-clients": 1,
            "clients-per-round": 1,
            "num-rounds": 1,
            "local-steps": 2,
            "lr": 0.5,
            "dtype": "float64",
        }
    )
    problem: Any = make_problem(config)
    strategy: Any = make_strategy(config, problem)
    grid = InlineGrid(client_app.app, config.flat())
    for _ in run_rounds(grid, strategy, problem, config):
        pass
    a, b = float(problem.A[0]), float(problem.b[0])
    assert a == pytest.approx(1.0)
    np.testing.assert_allclose(strategy.x, [0.75 * b])
    np.testing.assert_allclose(strategy.c, [-0.75 * b])


def test_the_oracle_s_quantizer_is_unbiased() -> None:
    """What the pseudocode is run with is itself right."""
    rng = np.random.default_rng(0)
    v = rng.standard_normal(7)
    draws = np.stack([oracles.qsgd(v, 3, rng.random(7, np.float32)) for _ in range(20_000)])
    error = draws.std(axis=0) / len(draws) ** 0.5
    assert (np.abs(draws.mean(axis=0) - v) < 5 * error).all()


# Damping.

COARSE: dict[str, Value] = {"compressor": "qsgd", "qsgd__levels": 1}  # q = sqrt(30) = 5.5


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedgate", "fedcomgate", "scaffold"])
def test_damping_makes_a_coarse_compressor_converge(algorithm: str) -> None:
    """Undamped, it diverges at once: 60 rounds are enough to see that."""
    keys = EXACT | COARSE | {"algorithm": algorithm, "quadratic__condition": 3.0}
    keys |= {"num_rounds": 400}
    assert distances(keys)[-1] < 1e-12
    undamped: dict[str, Value] = {f"{algorithm}__damping": 1.0, "num_rounds": 60}
    assert last_distance(keys | undamped) > 1e3


def last_distance(keys: dict[str, Value]) -> float:
    """Return how far from the optimum a run ends; infinity if its numbers are no longer finite."""
    try:
        return distances(keys)[-1]
    except DivergedError:
        return math.inf


@pytest.mark.parametrize(
    ("compressor", "size", "a"),
    [
        (None, 30, 1.0),
        (make_compressor("qsgd", levels=1), 30, 1 / (1 + 30**0.5)),
        (make_compressor("qsgd", levels=6), 30, 1.0),
        (make_compressor("qsgd", levels=2), 4, 1.0),  # q = 1
        (make_compressor("qsgd", levels=2), 9, 1 / 2.5),  # q = 1.5
        (make_compressor("uniform"), 10**7, 1.0),  # at worst q = 77, but not for real updates
        (make_compressor("uniform", bits=1), 30, 1 / (1 + 2 * math.log(30))),
        (make_compressor("topk", ratio=0.01), 1000, 1.0),
        (make_compressor("randk", ratio=0.1), 1000, 0.1),
    ],
)
def test_the_damping_follows_the_relative_variance(
    compressor: Compressor | None, size: int, a: float
) -> None:
    assert damping(0.0, compressor, size) == pytest.approx(a)
    assert damping(0.25, compressor, size) == 0.25


@pytest.mark.parametrize("key", ["fedgate__damping", "fedcomgate__damping", "scaffold__damping"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_damping_out_of_bounds_is_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match="damping"):
        parse_run_config(kebab({key: value}))


# What is tracked, and what is remembered beside it.

TOPK: dict[str, Value] = {"algorithm": "fedcomgate", "compressor": "topk", "topk__ratio": 0.1}
LOCAL: dict[str, Value] = {"fedcomgate__memory": "local"}
OWN: dict[str, Value] = {"fedcomgate__track": "own"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "lowest", "highest"),
    [
        ({}, 0, 1e-5),
        (OWN | LOCAL, 0, 1e-5),
        (LOCAL, 1e3, math.inf),
        (OWN, 0.1, 100),  # stalls
    ],
)
def test_what_is_tracked_decides_whether_a_memory_helps(
    keys: dict[str, Value], lowest: float, highest: float
) -> None:
    """What stalls or diverges does so within 40 rounds."""
    common = EXACT | SIX | TOPK | {"num_rounds": 120 if lowest else 250, "max_update_ratio": 0.0}
    assert lowest <= last_distance(common | keys) <= highest


def test_error_feedback_is_the_local_memory() -> None:
    keys: dict[str, Value] = {"compressor": "topk", "fedcomgate__track": "own", "num_rounds": 6}
    kinds: list[dict[str, Value]] = [{"error_feedback": True}, LOCAL]
    feedback, memory = (trajectory(config_for("fedcomgate", **(keys | kind))) for kind in kinds)
    for a, b in zip(feedback, memory, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (TOPK, ""),
        (TOPK | LOCAL, "counts twice"),
        (TOPK | {"error_feedback": True}, "counts twice"),
        (TOPK | OWN, "the run stalls"),
        (TOPK | OWN | LOCAL, ""),
        (TOPK | OWN | {"error_feedback": True}, ""),
        (COARSE | OWN | LOCAL | {"algorithm": "fedcomgate"}, "may grow without bound"),
        (COARSE | {"algorithm": "fedcomgate"}, "takes up only 0.15"),
        (COARSE | {"algorithm": "fedcomgate", "fedcomgate__damping": 1.0}, "is stable only"),
        (COARSE | {"algorithm": "scaffold"}, "takes up only 0.15"),
        (COARSE | {"algorithm": "fedgate", "fedgate__damping": 0.1}, "takes up only 0.1 "),
        (COARSE | {"algorithm": "fedavg", "error_feedback": True}, "may grow without bound"),
    ],
)
def test_pairs_that_are_not_sound_are_told(keys: dict[str, Value], said: str) -> None:
    config = parse_run_config(kebab(keys | {"dataset": "quadratic"}))
    told = warnings(make_strategy(config, make_problem(config)))
    assert any(said in text for text in told) if said else not told
