"""Numbers out of bounds, in updates, losses, weights and BatchNorm statistics, do no harm to a run."""

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedapp import wire
from fedapp.errors import DivergedError
from fedapp.tables import Value
from tests.support.rounds import CASES, CLIENTS, Round, clients_of, play, played, without

# Numbers out of bounds.


def spoil(round_: Round, clients: set[int], value: float) -> list[Message]:
    """Return the answers, with all of some clients' numbers set to a value."""
    replies = round_.replies()
    for reply in replies:
        for client in clients & set(clients_of(reply)):
            record = reply.content.array_records[f"client.{client}"]
            record["u"] = wire.encode(np.full_like(wire.decode(record["u"]), value))
    return replies


@pytest.mark.parametrize("value", [1e38, 3e18, math.nan])
def test_one_client_s_numbers_do_not_end_a_run_but_all_clients_do(value: float) -> None:
    round_ = played("fedavg")
    outcome = round_.use(spoil(round_, {2}, value))
    assert set(outcome.updates) == set(range(CLIENTS)) - {2}
    np.testing.assert_array_equal(
        outcome.state["vector.x"], without("fedavg", frozenset({2})).state["vector.x"]
    )
    with pytest.raises(DivergedError, match="lower lr"):
        round_.use(spoil(round_, set(range(CLIENTS)), value))


@pytest.mark.parametrize("value", [1e38, math.nan])
def test_one_node_of_several_cannot_say_that_the_run_diverged(value: float) -> None:
    round_ = play({"clients_per_round": 1})
    strategy = copy.deepcopy(round_.strategy)
    arrays, metrics = strategy.aggregate_train(2, spoil(round_, set(range(CLIENTS)), value))
    assert arrays is None, "the round is repeated with others"
    assert (metrics["clients"], metrics["failures"]) == (0, 1)
    alone = play({"clients_per_round": 1}, nodes=1)
    with pytest.raises(DivergedError, match="lower lr"):
        alone.use(spoil(alone, set(range(CLIENTS)), value))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_accepted_can_be_squared_and_added_up(dtype: type[Any]) -> None:
    edge = math.sqrt(float(np.finfo(dtype).max)) / 16
    assert wire.is_moderate(np.array([0.99 * edge, 0], dtype))
    assert not wire.is_moderate(np.array([1.01 * edge, 0], dtype))
    assert not wire.is_moderate(np.full(10_000, edge / 99, dtype)), "it is the norm that counts"
    largest = np.full(1000, 0.99 * edge / math.sqrt(1000), dtype)
    assert np.isfinite(np.square(largest).sum() * 100)
    assert np.isfinite((10**6 * largest).sum())
    assert wire.is_moderate(np.zeros(0, dtype))


def test_means_by_examples_do_not_overflow_whatever_clients_claim() -> None:
    strategy = play(CASES["examples"] | {"max_examples": 0}).strategy

    def mean(*claims: tuple[int, float]) -> Any:
        vectors = [{"u": np.array([value, -value], np.float32)} for _, value in claims]
        return strategy.mean(
            [wire.Update(c, v, claims[c][0], 1, 0.0) for c, v in enumerate(vectors)]
        )

    np.testing.assert_array_equal(mean((1, 4.0), (3, 8.0)), np.array([7, -7], np.float32))
    assert np.isfinite(mean(*[(2**64 - 1, 1e18)] * 50)).all()
    np.testing.assert_allclose(mean((2**62, 1.0), (1, 5.0)), [1, -1])


def test_losses_do_not_overflow() -> None:
    round_ = played("fedavg")
    replies = round_.replies()
    for reply in replies:
        for client in clients_of(reply):
            reply.content.metric_records[f"metrics.{client}"]["train-loss"] = 1.7e308
    assert math.isfinite(round_.use(replies).metrics["train_loss"])


# The model's statistics.

RESNET: dict[str, Value] = {
    "dataset": "digits", "model": "resnet20", "local_steps": 1, "batch_size": 4, "num_clients": 3,
    "clients_per_round": 3, "partition": "iid",
}  # fmt: skip


@cache
def resnet(**keys: Value) -> Round:
    return play(RESNET | keys, nodes=1)


def with_buffers(round_: Round, change: Callable[[Any], Any]) -> list[Message]:
    """Return the answers, with client 1's statistics changed."""
    replies = round_.replies()
    record = replies[0].content.array_records["client.1"]
    record["buffers"] = wire.encode(change(wire.decode(record["buffers"]).copy()))
    return replies


def test_negative_variances_are_refused_and_negative_means_are_not() -> None:
    round_ = resnet()
    (first, end), *_ = round_.strategy.layout.variances
    assert (first, end) == (16, 32), "of the first BatchNorm: 16 means, then 16 variances"
    covered = sum(b - a for a, b in round_.strategy.layout.variances)
    assert 2 * covered == round_.strategy.buffers.size

    def lower(place: int) -> Callable[[Any], Any]:
        return lambda buffers: np.where(np.arange(len(buffers)) == place, np.float32(-1), buffers)

    assert set(round_.use(with_buffers(round_, lower(first))).updates) == {0, 2}
    assert set(round_.use(with_buffers(round_, lower(end - 1))).updates) == {0, 2}
    assert set(round_.use(with_buffers(round_, lower(first - 1))).updates) == {0, 1, 2}


@pytest.mark.parametrize(
    ("keys", "bounded"),
    [({}, False), ({"max_update_norm": 1e6}, True), ({"aggregation": "median"}, True)],
)
def test_one_client_moves_statistics_only_where_nothing_is_set_against_it(
    keys: dict[str, Value], bounded: bool
) -> None:
    round_ = resnet(**keys)
    outcome = round_.use(with_buffers(round_, lambda b: np.full_like(b, 1e9)))
    assert set(outcome.updates) == {0, 1, 2}
    buffers = outcome.state["vector.buffers"]
    assert (np.abs(buffers).max() < 1e3) == bounded
    assert buffers.dtype == np.float32
    if bounded:
        honest = np.stack([outcome.updates[c]["buffers"] for c in (0, 2)])
        assert (buffers >= honest.min(axis=0)).all()
        assert (buffers <= honest.max(axis=0)).all()
