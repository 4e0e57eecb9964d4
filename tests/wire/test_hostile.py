"""Nodes and servers that mean harm: what they send costs them their own part in a round, and nothing else."""

import copy
import json
import logging
import math
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedapp import client_app, wire
from fedapp.compression.payload import HEADER, OVERHEAD, varint
from fedapp.engine import InlineGrid
from fedapp.engine.pulling import pull_one_by_one
from fedapp.errors import DivergedError
from fedapp.failures import MOST_OF_CLIENT
from fedapp.hosting import Hosting
from fedapp.parsing import parse_run_config
from fedapp.refusals import Reason, Refusal
from fedapp.tables import Value
from fedapp.wire import WireError
from tests.conftest import kebab
from tests.support.arrays import npy
from tests.support.compressors import COMPRESSORS
from tests.support.rounds import (
    CASES,
    CLIENTS,
    KEYS,
    NASTY,
    NODES,
    Claims,
    Outcome,
    Round,
    play,
    played,
)

# A round with real answers: of the real ClientApp, as bytes, as they arrive.


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Do not log every failure of every example; a test that looks at the log sets the level itself."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel("CRITICAL")
    yield
    log.setLevel(level)


@cache
def without(case: str, absent: frozenset[int]) -> Outcome:
    """Return what comes of the round if some clients are not in it."""
    replies = played(case).replies()
    for reply in replies:
        for client in absent:
            reply.content.pop(f"client.{client}", None)
    return played(case).use(replies)


# Ways to spoil answers. Each takes the replies, spoils one client's part or a whole reply, and notes what must come of it.


@dataclass
class Attack:
    """Answers on their way, and what has been done to them."""

    replies: list[Message]
    data: st.DataObject
    refused: set[int] = field(default_factory=set)  # clients that must fail
    touched: set[int] = field(
        default_factory=set
    )  # those that may fail, or count as what they sent

    def __post_init__(self) -> None:
        self.unspoilt = list(self.replies)

    def pick(self, some: Any) -> Any:
        choice = list(some)
        return choice[self.data.draw(st.integers(0, len(choice) - 1))]

    def reply(self) -> Message:
        """Choose an answer that is still as it was."""
        reply: Message = self.pick(self.unspoilt)
        self.unspoilt.remove(reply)
        return reply

    def client(self) -> tuple[RecordDict, int]:
        reply = self.reply()
        return reply.content, self.pick(clients_of(reply))

    def array(self) -> tuple[ArrayRecord, str, int]:
        content, client = self.client()
        record = content.array_records[f"client.{client}"]
        return record, self.pick(record), client


def clients_of(message: Message) -> list[int]:
    return [c for c in range(CLIENTS) if f"client.{c}" in message.content]


def array_with(data: bytes, like: Array) -> Array:
    return Array(like.dtype, like.shape, like.stype, data)


def drop_record(a: Attack) -> None:
    content, client = a.client()
    del content[f"{a.pick(['client', 'metrics'])}.{client}"]
    a.refused.add(client)


def wrong_kind_of_record(a: Attack) -> None:
    content, client = a.client()
    kind = a.pick(["client", "metrics"])
    odd: list[Any] = [ConfigRecord({"a": b"b"}), ArrayRecord(), MetricRecord({"a": [1, 2]})]
    content[f"{kind}.{client}"] = a.pick(odd)
    a.refused.add(client)


def truncate(a: Attack) -> None:
    record, name, client = a.array()
    data = record[name].data
    record[name] = array_with(data[: a.data.draw(st.integers(0, len(data) - 1))], record[name])
    a.refused.add(client)


def oversize(a: Attack) -> None:
    record, name, client = a.array()
    more = a.data.draw(st.binary(min_size=1, max_size=100)) * a.pick([1, 1000])
    record[name] = array_with(record[name].data + more, record[name])
    a.refused.add(client)


def missing_array(a: Attack) -> None:
    record, name, client = a.array()
    del record[name]
    a.refused.add(client)


def renamed_array(a: Attack) -> None:
    record, name, client = a.array()
    record[f"{name}\x1b"] = record.pop(name)
    a.refused.add(client)


def another_array(a: Attack) -> None:
    record, name, client = a.array()
    record["more"] = record[name]
    a.refused.add(client)


def wrong_type_or_shape(a: Attack) -> None:
    record, name, client = a.array()
    array = wire.decode(record[name])
    odd = [
        array.astype(np.float16),
        array.astype(np.int32).reshape(1, -1),
        array.reshape(-1, 1),
        np.append(array, array[:1] if len(array) else np.zeros(1, array.dtype)),
        np.zeros((), array.dtype),
        np.zeros((0, 2**40), array.dtype),
        array.astype("S4"),
    ]
    record[name] = wire.encode(a.pick(odd))
    a.refused.add(client)


def not_finite_or_huge(a: Attack) -> None:
    content, client = a.client()
    record = content.array_records[f"client.{client}"]
    vectors = [n for n in record if n != "buffers"]
    name = a.pick(vectors)
    array = wire.decode(record[name]).copy()
    if array.dtype == np.uint8:  # compressed: bytes that stand for nothing
        array[:] = 255
    else:
        limit = math.sqrt(np.finfo(array.dtype).max)
        odd = a.pick([np.nan, np.inf, -np.inf, limit, -limit / 15, np.finfo(array.dtype).max])
        array[a.pick(range(len(array)))] = odd
    record[name] = wire.encode(array)
    a.refused.add(client)


def wrong_metrics(a: Attack) -> None:
    content, client = a.client()
    name, value = a.pick(
        [
            ("num-examples", 0), ("num-examples", -1), ("num-examples", 2.5), ("num-examples", [1]),
            ("num-examples", 10**6 + 1), ("num-examples", 2**62), ("num-examples", 2**64 - 1),
            ("steps", -1), ("steps", 0.5), ("train-loss", math.nan), ("train-loss", math.inf),
            ("train-loss", 1), ("train-loss", [0.5]),
        ]
    )  # fmt: skip
    content.metric_records[f"metrics.{client}"][name] = value
    a.refused.add(client)


def missing_metric(a: Attack) -> None:
    content, client = a.client()
    del content.metric_records[f"metrics.{client}"][a.pick(["num-examples", "steps", "train-loss"])]
    a.refused.add(client)


def under_another_id(a: Attack) -> None:
    content, client = a.client()
    for kind in ("client", "metrics"):
        content[f"{kind}.{a.pick([client + 100, -1, 'all', 10**30])}"] = content.pop(
            f"{kind}.{client}"
        )
    a.refused.add(client)


def error_instead(a: Attack) -> None:
    reply = a.reply()
    a.refused |= set(clients_of(reply))
    place = a.replies.index(reply)
    a.replies[place] = Message(Error(2, a.pick([NASTY, "", None, "\n\n"])), reply_to=reply)
    told = a.replies[place].metadata.__dict__
    told["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    told["_src_node_id"] = a.pick([reply.metadata.src_node_id, SUPERLINK_NODE_ID])


def no_reply(a: Attack) -> None:
    reply = a.reply()
    a.refused |= set(clients_of(reply))
    a.replies.remove(reply)


def from_another_node(a: Attack) -> None:
    reply = a.reply()
    a.refused |= set(clients_of(reply))
    reply.metadata.__dict__["_src_node_id"] = 99


def of_another_type(a: Attack) -> None:
    reply = a.reply()
    a.refused |= set(clients_of(reply))
    reply.metadata.__dict__["_message_type"] = a.pick(["query", "evaluate", "train.other", ""])


# What must change nothing.


def reorder(a: Attack) -> None:
    content = a.reply().content
    records: list[Any] = [content, *content.array_records.values()]
    for record in records:
        for name in a.data.draw(st.permutations(list(record))):
            record[name] = record.pop(name)


def foreign_records(a: Attack) -> None:
    content, client = a.client()
    for other in (client + 100, (client + 1) % CLIENTS, CLIENTS):  # hosted elsewhere, or nowhere
        if f"client.{other}" not in content:
            content[f"client.{other}"] = content[f"client.{client}"]
            content[f"metrics.{other}"] = content[f"metrics.{client}"]
    content[NASTY[:50]] = ConfigRecord({"x": NASTY})


def say_odd_things(a: Attack) -> None:
    content, client = a.client()
    odd: list[Any] = [NASTY, [NASTY], 7, b"\xff", [1.5], True]
    content["failures"] = ConfigRecord({str(c): a.pick(odd) for c in (client, -1, "x")})


def lie_about_arrays(a: Attack) -> None:
    record, name, _ = a.array()
    lies = [("object", (1,), "pickle"), ("float64", (2**62,) * 9, ""), ("\x1b", (-1,), "x")]
    dtype, shape, stype = a.pick(lies)
    record[name] = Array(dtype, shape, stype, record[name].data)


def a_second_answer(a: Attack) -> None:
    reply = a.reply()
    again = Message(RecordDict(), reply_to=reply)
    again.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    again.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    a.replies.append(again)


def a_forged_answer_first(a: Attack) -> None:
    reply = a.reply()
    forged = Message(a.pick([RecordDict(), Error(2, NASTY)]), reply_to=reply)
    forged.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    forged.metadata.__dict__["_src_node_id"] = 99
    a.replies.insert(0, forged)


def answers_to_nothing(a: Attack) -> None:
    stray = Message(RecordDict(), reply_to=a.reply())
    stray.metadata.__dict__["_reply_to_message_id"] = a.pick(["", "nothing"])
    a.replies.insert(0, stray)


# What may count, if it is sound: nobody can tell that it is not what the client computed.


def flip_bytes(a: Attack) -> None:
    record, name, client = a.array()
    data = bytearray(record[name].data)
    for place in a.data.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        data[place] ^= a.data.draw(st.integers(1, 255))
    record[name] = array_with(bytes(data), record[name])
    a.touched.add(client)


def swap_clients(a: Attack) -> None:
    content = (reply := a.reply()).content
    one, other = a.pick(clients_of(reply)), a.pick(clients_of(reply))
    pair = content[f"client.{one}"], content[f"client.{other}"]
    content[f"client.{other}"], content[f"client.{one}"] = pair
    a.touched |= {one, other}


def repeat_one_for_all(a: Attack) -> None:
    reply = a.reply()
    one = reply.content[f"client.{a.pick(clients_of(reply))}"]
    for client in clients_of(reply):
        reply.content[f"client.{client}"] = one
        a.touched.add(client)


ATTACKS: list[Callable[[Attack], None]] = [
    drop_record, wrong_kind_of_record, truncate, oversize, missing_array, renamed_array, another_array,
    wrong_type_or_shape, not_finite_or_huge, wrong_metrics, missing_metric, under_another_id, error_instead,
    no_reply, from_another_node, of_another_type, reorder, foreign_records, say_odd_things, lie_about_arrays,
    a_second_answer, a_forged_answer_first, answers_to_nothing, flip_bytes, swap_clients, repeat_one_for_all,
]  # fmt: skip


def check(case: str, attack: Attack) -> None:
    """Check what came of a round whose answers were spoilt."""
    honest = without(case, frozenset())
    outcome = played(case).use(attack.replies)
    assert outcome.metrics["clients"] + outcome.metrics["failures"] == CLIENTS
    assert outcome.metrics["clients"] == len(outcome.updates)
    assert not attack.refused & set(outcome.updates)
    assert set(range(CLIENTS)) - attack.refused - attack.touched <= set(outcome.updates)
    for client, update in outcome.updates.items():
        for name, array in update.arrays.items():
            expected = honest.updates[client][name]
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            assert np.isfinite(array).all()
            if client not in attack.touched:
                np.testing.assert_array_equal(array, expected)
    for name, value in outcome.state.items():
        assert np.isfinite(value).all(), name
    if not attack.touched & set(outcome.updates):
        expected_state = without(case, frozenset(range(CLIENTS)) - set(outcome.updates)).state
        assert set(outcome.state) == set(expected_state)
        for name, value in outcome.state.items():
            np.testing.assert_array_equal(value, expected_state[name], err_msg=name)


FUZZED = settings(
    deadline=None, max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@FUZZED
@given(st.data(), st.lists(st.sampled_from(ATTACKS), min_size=1, max_size=2))
def test_spoilt_answers_cost_their_clients_alone(
    case: str, data: st.DataObject, ways: list[Callable[[Attack], None]]
) -> None:
    replies = played(case).replies()
    attack = Attack([replies[n] for n in data.draw(st.permutations(range(NODES)))], data)
    for way in ways:
        way(attack)
    check(case, attack)


@pytest.mark.parametrize("way", ATTACKS, ids=lambda way: way.__name__)
@settings(FUZZED, max_examples=10)
@given(st.data(), st.sampled_from(["fedavg", "fedpaq qsgd"]))
def test_each_attack(
    way: Callable[[Attack], None], data: st.DataObject, case: str
) -> None:  # each of them runs, whatever chance chooses above
    attack = Attack(played(case).replies(), data)
    way(attack)
    check(case, attack)


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


# What nodes say.


def test_what_nodes_say_is_one_short_printable_line(caplog: pytest.LogCaptureFixture) -> None:
    round_ = played("fedavg")
    replies = round_.replies()
    error = Message(Error(2, f"Traceback\n{NASTY}"), reply_to=round_.sent[0])
    clients = clients_of(replies[1])
    replies[1].content["failures"] = ConfigRecord({str(c): NASTY for c in clients})
    for client in clients:
        del replies[1].content[f"client.{client}"]
    record = replies[2].content.array_records[f"client.{clients_of(replies[2])[0]}"]
    record[NASTY] = record["u"]
    with caplog.at_level("WARNING", logger="flwr"):
        round_.use([error, *replies[1:]])
    told = [m for m in caplog.messages if "failed: " in m]
    assert len(told) == 3
    for message in told:
        assert message.isprintable()
        assert len(message) <= len("Client 0 failed: ") + wire.LONGEST_TEXT
    assert any("line" in m and "owned" in m for m in told)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("a\nb\tc", "a b c"), ("\x1b[31mred", " [31mred"), ("é “ü”", "é “ü”"), ("", "")],
)  # fmt: skip
def test_printable(text: str, shown: str) -> None:
    assert wire.printable(text) == shown
    assert wire.printable("x" * 300) == "x" * 300
    assert wire.printable("x" * 301) == "x" * 299 + "…"


def failed(client: int, text: str) -> Refusal:
    return Refusal(client, Reason.FAILED, text)


def test_a_client_that_says_ever_new_things_is_heard_a_few_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = copy.deepcopy(played("fedavg").strategy)
    with caplog.at_level("WARNING", logger="flwr"):
        for number in range(1000):
            strategy.failures.log([failed(0, f"excuse {number}")], {})
        strategy.failures.log([failed(0, "excuse 1000"), failed(1, "a cable is broken")], {})
    assert sum("excuse" in m for m in caplog.messages) == MOST_OF_CLIENT
    assert "Client 1 failed: a cable is broken" in caplog.messages
    assert strategy.failures.logged == MOST_OF_CLIENT + 1


def test_flower_s_own_word_that_a_node_is_gone_counts(caplog: pytest.LogCaptureFixture) -> None:
    from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message

    round_ = played("fedavg")
    told = create_message_error_unavailable_ins_message(round_.sent[0].metadata.message_id, 1)
    with caplog.at_level("WARNING", logger="flwr"):
        round_.use([told, *round_.replies()[1:]])
    (message,) = [m for m in caplog.messages if "failed: " in m]
    assert "no answer in time" not in message


# Which clients nodes claim.


@pytest.mark.parametrize(
    ("claim", "clients"),
    [
        ([2, 2, 0, 2], [2, 0]), ([True, False], []), ([-1, 6, 5, 2**63 - 1], [5]), ([1.0], []), ([], []),
        (["1"], []), ([b"1"], []), ([5] * 10**6, [5]),
    ],
)  # fmt: skip
def test_claims_are_whole_numbers_in_range_each_once(claim: list[Any], clients: list[int]) -> None:
    hosting = Hosting(6)
    hosting.update(Claims(node={"clients": claim}))
    assert hosting.clients == sorted(clients)
    assert [row.clients for row in hosting.rows()] == [clients]


@pytest.mark.parametrize(
    "claim", [{}, {"clients": 3}, {"clients": "0"}, {"error": NASTY}, {"error": [NASTY]}]
)
def test_a_node_that_does_not_say_hosts_nothing(
    claim: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    hosting = Hosting(6)
    with caplog.at_level("WARNING", logger="flwr"):
        hosting.update(Claims(node=claim))
    assert not hosting.clients
    (told,) = caplog.messages
    assert told.isprintable()
    assert len(told) < 400


# Bombs.


def peak_of(read: Callable[[], Any]) -> int:
    """Return the most memory that reading took, which must be refused."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        npy("(1000000000,)"), npy("(1000000000000000000,)"), npy("(100000, 100000)", b""),
        npy("(1000000000,)", descr="|u1"), npy("(1,)", descr="|V2000000000"), npy("(5,)", descr="<U500000000"),
        npy("(1000000000,)").replace(b"False", b"True "), b"\x93NUMPY\x03\x00" + b"\xff" * 4 + b" " * 100,
        npy("(" * 60 + "1" + ")" * 30), npy("(" + "9" * 90 + ",)"),
    ],
)  # fmt: skip
def test_an_array_that_claims_to_be_huge_takes_no_memory(data: bytes) -> None:
    array = Array("float32", (5,), "numpy.ndarray", data)
    for spec in (None, (np.dtype(np.float32), (10,)), (np.dtype(np.float64), (3, 3))):
        assert peak_of(lambda spec=spec: wire.decode(array, spec)) < 100_000  # type: ignore[misc]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_a_payload_that_claims_to_be_huge_takes_no_memory(compressor: Any) -> None:
    size = 1000
    for claimed in (10**9, 2**60, 2**64 - 1):
        frame = HEADER.pack(compressor.codec, 1, claimed)
        body = np.frombuffer((frame + varint(2**60) * 9).ljust(OVERHEAD + 50, b"\xff"), np.uint8)
        expected = wire.Compressed(compressor, size, np.dtype(np.float32))
        assert peak_of(lambda e=expected, b=body: wire.decompress(wire.encode(b), e)) < 100_000  # type: ignore[misc]


# What a server asks of a node.


def invitation(**changed: Any) -> RecordDict:
    x = np.zeros(30, np.float32)
    told = wire.Invitation(1, 4, "run", "", {0: 0}, {}, {}, {0: [2]})
    shared = wire.record_of({"x": x, "buffers": np.zeros(0, np.float32)})
    content = wire.pack_invitation(told, shared)
    for key, value in changed.items():
        content.config_records["round"][key.replace("_", "-")] = value
    return content


@pytest.mark.parametrize(
    "changed",
    [
        *({"run": run} for run in ("../../etc", "..", ".", "", "/etc", "a/b", "a\\b", "C:", "a\0b", "\x1b[2J", 3)),
        {"tag": "../../x"}, {"tag": -1}, {"tag": [4]}, {"round": "1"}, {"round": 1.0}, {"accepted": ["../x"]},
        {"clients": ["../x"]}, {"clients": [True]}, {"clients": [0, 1]}, {"clients": 0}, {"kept_tags": ["/x"]},
        {"kept_clients": [0, 0]}, {"own_clients": [0], "own_names": ["x"], "own_arrays": [7]}, {"state_dir": 3},
    ],
    ids=str,
)  # fmt: skip
def test_an_invitation_that_is_none_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        wire.unpack_invitation(invitation(**changed))


def test_names_that_runs_have_are_taken() -> None:
    for run in ("fedavg-digits-20260101-120000", "run.2", "läuft gut", "-x"):
        assert wire.unpack_invitation(invitation(run=run)).run == run


def test_a_node_makes_no_directory_that_a_server_names(tmp_path: Path) -> None:
    def trained(state_dir: Path, **own: Value) -> list[str]:
        config = parse_run_config(kebab(KEYS | {"algorithm": "mifa"}))
        grid = InlineGrid(client_app.app, config.flat())
        grid.contexts[1].node_config |= own
        message = Message(invitation(state_dir=str(state_dir)), 1, "train")
        (reply,) = grid.send_and_receive([message])
        assert "client.0" in reply.content
        return list(grid.contexts[1].state)

    in_memory = ["state.0.4"]
    assert trained(tmp_path / "away" / "client-state") == in_memory
    assert trained(tmp_path) == in_memory, "it is there, but it is not what servers make"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "client-state").mkdir()  # as the server of a simulation does
    assert trained(tmp_path / "client-state") == []
    assert [p.name for p in tmp_path.rglob("*.safetensors")] == ["4.safetensors"]
    own = tmp_path / "own"
    assert trained(tmp_path / "client-state", **{"state-dir": str(own)}) == []
    assert (own / "run" / "0" / "4.safetensors").is_file(), "the node's own config comes first"


# Answers that Flower itself cannot read.


class Link:
    """What a SuperLink holds for a run, in place of the connection to it: the rest of HttpGrid is as it is."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}  # by the message that they answer
        self.contents: dict[str, bytes] = {}
        self.down = False

    def add(
        self, reply: Message, spoil: Callable[[bytes], bytes] = lambda content: content
    ) -> None:
        stored_for = reply.metadata.reply_to_message_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.messages[stored_for] = reply
        for identity, part in get_all_nested_objects(reply).items():
            self.contents[identity] = spoil(part.deflate())

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        if self.down:
            raise httpx.ConnectError("down")
        found = [self.messages[i] for i in request.message_ids if i in self.messages]
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(m)) for m in found],
            message_object_trees=[get_object_tree(m) for m in found],
        )

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        """Take note."""


def linked(link: Link) -> HttpGrid:
    grid = HttpGrid("127.0.0.1:1", True, None, token="x")
    grid.set_run(Run.create_empty(run_id=1))
    vars(grid)["_client"] = link
    return grid


def unreadable(content: bytes) -> bytes:
    head, _, body = content.partition(b"\0")
    spoilt = head + b"\0" + (b"x" * len(body) if head.startswith(b"ArrayRecord") else body)
    validate_object_content(spoilt)  # a SuperLink takes it
    return spoilt


def test_an_answer_that_flower_cannot_read_fails_alone() -> None:
    round_ = played("fedavg")
    link, replies = Link(), round_.replies()
    asked = [m.metadata.message_id for m in round_.sent]
    bad = clients_of(replies[1])
    for reply, spoil in zip(replies, (lambda c: c, unreadable, lambda c: c), strict=True):
        link.add(reply, spoil)
    with pytest.raises(json.JSONDecodeError):
        linked(link).pull_messages(asked)
    grid = linked(link)
    pull_one_by_one(grid)
    pulled = list(grid.pull_messages([*asked, "not answered yet"]))
    assert [m.metadata.reply_to_message_id for m in pulled] == asked
    assert "cannot be read (JSONDecodeError" in str(pulled[1].error.reason)
    outcome = round_.use(pulled)
    assert set(outcome.updates) == set(range(CLIENTS)) - set(bad)
    link.down = True
    with pytest.raises(httpx.ConnectError):
        grid.pull_messages(asked)


def test_an_answer_that_says_it_answers_another_message_is_refused() -> None:
    round_ = played("fedavg")
    link, replies = Link(), round_.replies()
    asked = [m.metadata.message_id for m in round_.sent]
    replies[0].metadata.__dict__["_reply_to_message_id"] = asked[1]
    replies[0].metadata.__dict__["_src_node_id"] = replies[1].metadata.src_node_id
    mine = clients_of(replies[0])
    for reply in replies:
        link.add(reply)
    link.messages[asked[0]] = replies[0]  # where the SuperLink has it, and what it says of itself
    link.messages[asked[1]] = replies[1]
    grid = linked(link)
    pull_one_by_one(grid)
    outcome = round_.use(list(grid.pull_messages(asked)))
    assert set(outcome.updates) == set(range(CLIENTS)) - set(mine)
