"""Ways to spoil answers: each spoils one client's part or a whole reply, and notes which clients must fail."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from hypothesis import strategies as st

from fedapp import wire
from tests.support.rounds import CLIENTS, NASTY, clients_of


@dataclass
class Attack:
    """Answers on their way, and what has been done to them."""

    replies: list[Message]
    data: st.DataObject
    refused: set[int] = field(default_factory=set)  # clients that must fail
    # Clients that may fail, or count as what they sent.
    touched: set[int] = field(default_factory=set)

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
