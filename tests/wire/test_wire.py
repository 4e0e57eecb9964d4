"""The wire: what is packed comes back, and what does not fit is refused."""

import io
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedapp import wire
from fedapp.refusals import Reason, Refusal
from fedapp.wire import Invitation, Update, WireError
from tests.support.arrays import npy

SPEC: wire.Spec = {"u": (np.dtype("float32"), (5,)), "buffers": (np.dtype("float32"), (0,))}
ILL = Refusal(5, Reason.FAILED, "ill")
GOOD = {"u": np.arange(5, dtype=np.float32), "buffers": np.zeros(0, np.float32)}


def message(content: RecordDict | Error) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    asked = Message(RecordDict(), 7, "train")
    return Message(content, reply_to=asked)


def answer(update: Update, *refusals: Refusal) -> RecordDict:
    content = RecordDict()
    wire.add_update(content, update)
    wire.add_refusals(content, refusals)
    return content


def reply_with(arrays: ArrayRecord, **metrics: Any) -> wire.Reply:
    told = {"num-examples": 3, "steps": 2, "train-loss": 0.5} | {
        key.replace("_", "-"): value for key, value in metrics.items()
    }
    content = RecordDict({"client.4": arrays, "metrics.4": MetricRecord(told)})
    return wire.unpack_reply(message(content), dict.fromkeys([4], SPEC))


def refused(reply: wire.Reply) -> list[int]:
    return [refusal.client for refusal in reply.refusals]


@settings(max_examples=50)
@given(
    hnp.arrays(
        st.sampled_from(["<f4", "<f8", "u1", "<i8"]),
        hnp.array_shapes(min_dims=1, max_dims=2, min_side=0),
    )
)
def test_arrays_survive(array: np.ndarray[Any, Any]) -> None:
    out = wire.arrays_of(wire.record_of({"a": array}))["a"]
    assert out.dtype == array.dtype
    np.testing.assert_array_equal(out, array)


def test_an_invitation_survives() -> None:
    shared = {"x": np.arange(3, dtype=np.float32), "buffers": np.zeros(2, np.float32)}
    own = {9: {"D": np.ones(3, np.float32)}}
    sent = Invitation(3, 12, "run", "/state", {2: 8, 9: 0}, {}, own)
    got = wire.unpack_invitation(wire.pack_invitation(sent, wire.record_of(shared)))
    assert (got.round, got.tag, got.run, got.state_dir) == (3, 12, "run", "/state")
    assert got.accepted == {2: 8, 9: 0}
    np.testing.assert_array_equal(got.shared["x"], shared["x"])
    np.testing.assert_array_equal(got.per_client[9]["D"], own[9]["D"])
    assert set(got.per_client) == {9}


def test_a_reply_survives() -> None:
    update = Update(4, dict(GOOD), 3, 2, 0.5, state_lost=True)
    reply = wire.unpack_reply(message(answer(update, ILL)), dict.fromkeys([4, 5, 6], SPEC))
    (got,) = reply.updates
    np.testing.assert_array_equal(got["u"], GOOD["u"])
    assert (got.client, got.num_examples, got.steps, got.train_loss) == (4, 3, 2, 0.5)
    assert got.state_lost
    assert reply.refusals == [ILL, Refusal(6, Reason.MALFORMED, "it sent nothing")]
    assert reply.uplink_bytes == sum(len(Array(a).data) for a in GOOD.values())


def test_a_client_that_was_not_invited_is_not_read() -> None:
    update = Update(8, dict(GOOD), 3, 2, 0.5)
    reply = wire.unpack_reply(message(answer(update)), dict.fromkeys([4], SPEC))
    assert not reply.updates
    assert refused(reply) == [4]


def test_an_error_fails_everyone_it_concerns() -> None:
    reply = wire.unpack_reply(
        message(Error(2, "first line\nlast line")), dict.fromkeys([4, 5], SPEC)
    )
    assert reply.refusals == [Refusal(c, Reason.FAILED, "last line") for c in (4, 5)]
    for silent in (None, "", "  \n "):
        reply = wire.unpack_reply(message(Error(7, silent)), dict.fromkeys([4], SPEC))
        assert reply.refusals == [Refusal(4, Reason.FAILED, "Flower reported error 7")]


def test_an_error_from_flower_itself_is_no_answer() -> None:
    told = message(Error(3, "the node is gone"))
    told.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
    reply = wire.unpack_reply(told, {4: SPEC})
    assert reply.refusals == [Refusal(4, Reason.NO_ANSWER, "the node is gone")]


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [
        ("NOT_FINITE", Reason.NOT_FINITE), ("FAILED", Reason.FAILED), ("NO_ANSWER", Reason.FAILED),
        ("MALFORMED", Reason.FAILED), ("TOO_LONG", Reason.FAILED), ("NOT_CREDIBLE", Reason.FAILED),
        ("not_finite", Reason.FAILED), ("", Reason.FAILED), (3, Reason.FAILED), (["NOT_FINITE"], Reason.FAILED),
    ],
)  # fmt: skip
def test_a_node_may_say_of_its_clients_only_that_they_failed_or_overflowed(
    claimed: Any, reason: Reason
) -> None:
    texts = ConfigRecord({"4": "numbers that are not finite"})
    content = RecordDict({"failures": texts, "reasons": ConfigRecord({"4": claimed})})
    reply = wire.unpack_reply(message(content), {4: SPEC})
    assert reply.refusals == [Refusal(4, reason, "numbers that are not finite")]


def test_reasons_of_the_wrong_kind_are_not_read() -> None:
    for odd in (MetricRecord({"4": 1}), wire.record_of(GOOD)):
        content = RecordDict({"failures": ConfigRecord({"4": "ill"}), "reasons": odd})
        reply = wire.unpack_reply(message(content), {4: SPEC})
        assert reply.refusals == [Refusal(4, Reason.FAILED, "ill")]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_distinguished_from_one_that_is_no_number(loss: float) -> None:
    reasons = [
        reply_with(wire.record_of(GOOD), train_loss=said).refusals[0].reason for said in (loss, 3)
    ]
    assert reasons == [Reason.NOT_FINITE, Reason.MALFORMED]


def test_an_invitation_in_parts_is_the_same_invitation() -> None:
    shared = {"x": np.arange(3, dtype=np.float32), "buffers": np.zeros(2, np.float32)}
    own = {9: {"D": np.ones(3, np.float32)}}
    whole = Invitation(3, 12, "run", "/state", {2: 8, 5: 1, 9: 0}, {}, own)
    content = wire.pack_invitation(whole, wire.record_of(shared))
    taken, clients = wire.take_shared(content)
    assert clients == [2, 5, 9]
    parts = []
    for some in ([5], [9, 2]):
        part = wire.part_of(content, some)
        part.update(taken)
        parts.append(wire.unpack_invitation(part))
    assert [p.accepted for p in parts] == [{5: 1}, {9: 0, 2: 8}]
    assert [set(p.per_client) for p in parts] == [set(), {9}]
    assert wire.take_shared(RecordDict()) == (RecordDict(), [])


def test_replies_in_parts_make_one() -> None:
    parts = [
        answer(Update(4, dict(GOOD), 3, 2, 0.5), ILL),
        answer(Update(6, dict(GOOD), 3, 2, 0.5), Refusal(8, Reason.NOT_FINITE, "inf")),
    ]
    merged = message(wire.merge(parts, {7: "its worker died"}))
    reply = wire.unpack_reply(merged, dict.fromkeys([4, 5, 6, 7, 8], SPEC))
    assert [u.client for u in reply.updates] == [4, 6]
    assert reply.refusals == [
        ILL,
        Refusal(7, Reason.FAILED, "its worker died"),
        Refusal(8, Reason.NOT_FINITE, "inf"),
    ]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"u": np.zeros(4, np.float32)}, "shape (4,) instead of (5,)"),
        ({"u": np.zeros((5, 1), np.float32)}, "shape (5, 1) instead of (5,)"),
        ({"u": np.zeros(5, np.float64)}, "float64 instead of float32"),
        ({"u": np.zeros(5, np.int32)}, "int32 instead of float32"),
        ({"u": np.full(5, np.nan, np.float32)}, "not finite"),
        ({"u": np.array([1, 2, np.inf, 4, 5], np.float32)}, "not finite"),
        ({"v": np.zeros(5, np.float32)}, "instead of ['buffers', 'u']"),
        ({"u": np.zeros(10**6, np.float32)}, "shape (1000000,)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changed: dict[str, Any], said: str) -> None:
    reply = reply_with(wire.record_of(GOOD | changed))
    assert not reply.updates
    (refusal,) = reply.refusals
    assert said in refusal.text
    assert refusal.reason is (Reason.NOT_FINITE if "finite" in said else Reason.MALFORMED)


def test_a_missing_array_is_refused() -> None:
    reply = reply_with(wire.record_of({"u": GOOD["u"]}))
    assert "instead of ['buffers', 'u']" in reply.refusals[0].text


@pytest.mark.parametrize(
    "metrics",
    [
        {"num_examples": 0}, {"num_examples": -5}, {"num_examples": 2.5}, {"steps": -1},
        {"train_loss": float("nan")}, {"train_loss": 3}, {"num_examples": [1, 2]},
    ],
)  # fmt: skip
def test_metrics_that_make_no_sense_are_refused(metrics: dict[str, Any]) -> None:
    assert refused(reply_with(wire.record_of(GOOD), **metrics)) == [4]


def test_records_of_the_wrong_kind_are_refused_not_raised() -> None:
    content = RecordDict(
        {
            "client.4": MetricRecord({"a": 1}),
            "client.5": wire.record_of(GOOD),
            "metrics.5": ConfigRecord({"num-examples": "many"}),
            "failures": wire.record_of(GOOD),
        }
    )
    reply = wire.unpack_reply(message(content), dict.fromkeys([4, 5], SPEC))
    assert refused(reply) == [4, 5]


def test_missing_metrics_are_refused() -> None:
    content = RecordDict({"client.4": wire.record_of(GOOD), "failures": ConfigRecord()})
    assert refused(wire.unpack_reply(message(content), dict.fromkeys([4], SPEC))) == [4]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x93NUMPY", npy("(5,)")[:-1], npy("(5,)") + b"\0", npy("(1000000000000,)"),
        npy("(-5,)"), npy("(5,)", descr="|O"), b"\x80\x04\x95pickle", npy("(2, 3)"), npy("'x'"),
        npy("(-1, -5)"), npy("(0, 10000000000000000000000000000)", b""), npy("(True,)"),
        npy("(5,)", descr="|V0"), npy("(5,)", descr="|S0"), npy("()", b""),
        npy("(1,) * 100"), npy("(" + "1," * 40 + ")", b"\0" * 4),
    ],
)  # fmt: skip
def test_bytes_that_are_no_array_are_refused(data: bytes) -> None:
    array = Array("float32", (5,), "numpy.ndarray", data)
    record = ArrayRecord({"u": array, "buffers": Array(GOOD["buffers"])})
    assert refused(reply_with(record)) == [4]
    with pytest.raises(WireError):
        wire.decode(array, (np.dtype(np.float32), (5,)))


@settings(max_examples=200)
@given(st.integers(0, 147), st.integers(0, 255))
def test_any_changed_byte_gives_a_wire_error_or_an_array_of_the_right_kind(
    at: int, value: int
) -> None:
    buffer = io.BytesIO()
    np.save(buffer, GOOD["u"])
    data = bytearray(buffer.getvalue())
    data[at % len(data)] = value
    record = ArrayRecord(
        {
            "u": Array("float32", (5,), "numpy.ndarray", bytes(data)),
            "buffers": Array(GOOD["buffers"]),
        }
    )
    reply = reply_with(record)
    assert len(reply.updates) + len(reply.refusals) == 1
    for update in reply.updates:
        assert update["u"].shape == (5,)
        assert np.isfinite(update["u"]).all()
