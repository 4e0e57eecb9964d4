"""Sums that nodes add up themselves: the same bits as from single updates, in any order and any parts."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clients.averaging import FedAvgClient
from fedapp import client_app, registry, rounds, server_app
from fedapp import strategy as strategy_module
from fedapp.aggregation import PER_STEP, Sums, sums
from fedapp.aggregation.sums import ExactSum
from fedapp.algorithm import Algorithm
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from fedapp.wire import Update, WireError
from strategies.averaging import FedAvg
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.runs import assert_same

KEYS: dict[str, Value] = {
    "dataset": "digits", "model": "mlp-6", "num_clients": 8, "clients_per_round": 4, "num_rounds": 3,
    "local_steps": 2, "batch_size": 8, "lr": 0.05, "seed": 3,
}  # fmt: skip
SIZE = 40


@pytest.fixture(autouse=True)
def nodes_add_up_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy_module, "WORTH_ADDING_UP", 1)


def vectors(seed: int, count: int, dtype: Any) -> list[Any]:
    """Make vectors whose lengths differ by many orders of magnitude, some with zeros."""
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.uniform(-14, 9, count)
    made = [(scale * rng.standard_normal(SIZE)).astype(dtype) for scale in scales]
    made[0][rng.random(SIZE) < 0.5] = 0
    return made


def summed(rows: list[Any], order: Any) -> ExactSum:
    exact = ExactSum(SIZE, rows[0].dtype)
    for place in order:
        exact.add(rows[place])
    return exact


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.integers(1, 5),
    st.sampled_from(["float32", "float64"]),
)
def test_order_and_grouping_change_no_bit(seed: int, count: int, groups: int, dtype: str) -> None:
    rows = vectors(seed, count, dtype)
    whole = summed(rows, range(count)).total()
    order = np.random.default_rng(seed).permutation(count)
    parts = [summed(rows, part) for part in np.array_split(order, groups)]
    first, *others = parts
    for other in others:
        first.merge(other)
    assert first.count == count
    assert first.total().tobytes() == whole.tobytes()
    exact = [sum(Fraction(float(row[i])) for row in rows) for i in range(SIZE)]
    largest = max(float(np.abs(row).max()) for row in rows)
    cut_off = 2.0 ** (-35 if dtype == "float32" else -53)
    errors = [abs(float(exact[i] - Fraction(whole[i]))) for i in range(SIZE)]
    assert max(errors) <= count * cut_off * largest


def test_numbers_at_the_edge_of_a_grid_are_cut_alike() -> None:
    """A number that the next grid would round to a step of its own, or just not."""
    edges = [
        2.0 ** (36 * k + e) * f for k in (-2, -1, 0, 1) for e in (-1, 0, 35, 36) for f in (1, -1)
    ]
    near = [np.nextafter(edge, to) for edge in edges for to in (-np.inf, np.inf)]
    rows = [np.full(SIZE, edge) for edge in edges + near]
    whole = summed(rows, range(len(rows))).total()
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(rows))
        parts = [summed(rows, part) for part in np.array_split(order, 6)]
        for part in parts[1:]:
            parts[0].merge(part)
        assert parts[0].total().tobytes() == whole.tobytes()


def test_weights_steps_and_places_enter_the_sum() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((3, 10)).astype(np.float32)
    places = [(slice(0, 4), slice(6, 12)), (slice(4, 6), slice(4, 12)), (slice(2, 12),)]
    updates = [Update(c, {"u": rows[c]}, 2 + c, 1 + c, 0.0) for c in range(3)]
    added = Sums(["u", "u" + PER_STEP], 12, weighted=True)
    expected = np.zeros((2, 12))
    for update, parts in zip(updates, places, strict=True):
        added.add(update, parts)
        start = 0
        for part in parts:
            piece = update["u"][start : (start := start + part.stop - part.start)].astype(float)
            expected[0, part] += update.num_examples * piece
            expected[1, part] += update.num_examples * piece / update.steps
    np.testing.assert_allclose(added.exact["u"].total(), expected[0], rtol=1e-9)
    np.testing.assert_allclose(added.exact["u" + PER_STEP].total(), expected[1], rtol=1e-9)


@pytest.mark.parametrize(("times", "over"), [(1, 1), (7, 1), (7, 3)])
def test_the_compiled_loop_gives_the_same_bits(
    times: int, over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [np.tile(row, 40) for row in vectors(5, 6, "float32")]
    totals = []
    for long in (1 << 60, 1):
        monkeypatch.setattr(sums, "LONG", long)
        exact = ExactSum(rows[0].size, rows[0].dtype)
        for row in rows:
            exact.add(row, times=times, over=over)
        totals.append(exact.total().tobytes())
    assert totals[0] == totals[1]


def test_what_is_no_sum_of_these_vectors_is_refused() -> None:
    added = Sums(["u"], SIZE, weighted=False)
    good = np.zeros((2, SIZE))
    wrong: list[tuple[Any, Any]] = [
        ({"v": good}, {"v": [0, 1]}),
        ({"u": good}, {}),
        ({"u": np.zeros((2, 7))}, {"u": [0, 1]}),
        ({"u": np.zeros((2, SIZE), np.float32)}, {"u": [0, 1]}),
        ({"u": np.zeros((5, SIZE))}, {"u": [0, 1]}),
    ]
    for slices, heads in wrong:
        with pytest.raises(WireError, match=r"it has sums|its sum of"):
            added.merge_packed((slices, heads))
    added.merge_packed(({"u": good}, {"u": [0, 1]}))
    assert added.count == 1


# Whole runs: nodes that add up against nodes that send every client's update.


def keys_of(name: str) -> dict[str, Value]:
    keys: dict[str, Value] = {"algorithm": name}
    needs = ALGORITHMS[name].needs
    if needs.all_clients:
        keys |= {"clients_per_round": 8}
    if needs.one_local_step:
        keys |= {"local_steps": 1}
    return keys


SUMMED = [name for name, each in ALGORITHMS.items() if each.strategy.only_sums]
CASES: list[dict[str, Value]] = [
    *(keys_of(name) for name in SUMMED if not ALGORITHMS[name].needs.network),
    {"weighting": "examples", "partition": "dirichlet", "partition_alpha": 0.3},
    {
        "algorithm": "fedcomgate",
        "local_epochs": 1,
        "partition": "dirichlet",
        "partition_alpha": 0.3,
    },
    {
        "algorithm": "fedavg",
        "compressor": "topk",
        "error_feedback": "ef21",
        "on_lost_state": "reset",
    },
    {"algorithm": "scaffold", "compressor": "contextual", "downlink": "grid"},
    {"model": "resnet20", "norm": "batch", "local_steps": 1},
    {"dataset": "quadratic", "algorithm": "fedbcgd-plus", "dtype": "float64"},
]


def test_only_rules_that_need_single_updates_get_them() -> None:
    assert set(ALGORITHMS) - set(SUMMED) == {"gradma", "gradma-s"}


@pytest.mark.parametrize("keys", CASES, ids=lambda keys: " ".join(map(str, keys.values())))
def test_nodes_that_add_up_change_nothing(
    keys: dict[str, Value], run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KEYS, "run_name", "sums")
    asked = spy(monkeypatch)
    summed = run_inline(nodes=3, **(KEYS | keys))
    assert asked and all(asked)
    asked.clear()
    monkeypatch.setattr(rounds, "may_add_up", lambda grid: False)
    single = run_inline(nodes=1, **(KEYS | keys | {"run_name": "single"}))
    assert asked and not any(asked)
    assert_same(summed, single, sums=True)


def spy(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note for every message to train whether it asks for sums."""
    asked: list[bool] = []
    serve = InlineGrid.serve

    def noted(self: InlineGrid, message: Any) -> Any:
        if message.metadata.message_type == "train":
            asked.append("sums" in message.content["round"])
        return serve(self, message)

    monkeypatch.setattr(InlineGrid, "serve", noted)
    return asked


class Giant(FedAvgClient):
    """Sends an update that is far too long in its first round."""

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Train, and multiply."""
        u = super().update(x)["u"]
        return {"u": u * (1e9 if self.client == 5 and self.round == 2 else 1)}


@pytest.mark.long_updates
def test_a_refused_client_is_taken_out_of_its_sum(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.ALGORITHMS, "giant", Algorithm("giant", "", FedAvg, Giant))
    keys = KEYS | {"algorithm": "giant", "clients_per_round": 8}
    asked = spy(monkeypatch)
    summed = run_inline(**keys)
    assert asked == [True, True, False, True], "the second round is asked for client by client"
    assert [record["failures"] for record in read_rounds(summed)] == [0, 1, 0]
    monkeypatch.setattr(rounds, "may_add_up", lambda grid: False)
    assert_same(summed, run_inline(**(keys | {"run_name": "single"})))


def test_the_server_holds_sums_and_no_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_run_config(kebab(KEYS | {"results_dir": str(tmp_path)}))
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    received: list[Any] = []
    aggregate = strategy.aggregate

    def noted(updates: Any) -> None:
        received.extend(updates)
        aggregate(updates)

    monkeypatch.setattr(strategy, "aggregate", noted)
    grid = InlineGrid(client_app.app, config.flat())
    next(iter(rounds.run_rounds(grid, strategy, problem, config)))
    assert len(received) == 4
    assert not any(update.arrays for update in received)
    assert all(update.lengths["u"] > 0 for update in received)


@pytest.mark.parametrize(
    "keys",
    [
        {"aggregation": "median"},
        {"dp__clip": 1.0},
        {"dp__clip": 1.0, "dp__where": "client"},
        {"max_update_norm": 5.0},
        {"algorithm": "gradma-s"},
    ],
)
def test_rules_on_single_updates_get_single_updates(
    keys: dict[str, Value], run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spy(monkeypatch)
    run_inline(**(KEYS | keys | {"num_rounds": 1}))
    assert asked == [False]


def test_a_small_cohort_sends_single_updates(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_module, "WORTH_ADDING_UP", 5)
    asked = spy(monkeypatch)
    run_inline(**(KEYS | {"num_rounds": 1}))
    run_inline(**(KEYS | {"num_rounds": 1, "clients_per_round": 5}))
    assert asked == [False, True]


def test_a_wrong_count_is_asked_for_again(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node whose sum does not hold the clients that it tells of is asked for each of them."""
    good = run_inline(**KEYS)
    asked = spy(monkeypatch)
    serve = InlineGrid.serve

    def spoiled(self: InlineGrid, message: Any) -> Any:
        reply = serve(self, message)
        if reply.has_content() and "sum-heads" in reply.content:
            heads: Any = reply.content["sum-heads"]
            heads["u"] = [heads["u"][0], heads["u"][1] + 1]
        return reply

    monkeypatch.setattr(InlineGrid, "serve", spoiled)
    config = parse_run_config(kebab(KEYS | {"results_dir": str(tmp_path / "other")}))
    path = server_app.run(InlineGrid(client_app.app, config.flat()), config).path
    assert asked == [True, False] * 3
    assert_same(good, path)
