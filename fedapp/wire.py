"""Named arrays in Flower's parameter channel: the one place that knows how they are laid out.

To a node, one message a round:
  round      config record: round, tag, run, state-dir, the invited clients, and for each the tag
             of its last accepted update
  shared     array record: what every client receives
  client.<c> array record: what client c alone receives (only if there is anything)
From a node:
  client.<c> array record: what client c sends
  metrics.<c> metric record: num-examples, steps, train-loss, state-lost
  failures   config record: client -> why it sent nothing

Whatever a node sends is checked against what the server expects before it is decoded.
"""

import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Spec = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]


class WireError(ValueError):
    """A message that does not say what it should; the text says what is wrong with it."""


@dataclass(frozen=True)
class Invitation:
    """What a node is asked to do in a round."""

    round: int
    tag: int
    run: str
    state_dir: str
    accepted: dict[int, int]  # invited client -> tag of its last accepted update, or 0
    shared: Arrays
    own: dict[int, Arrays] = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What one client sent, checked."""

    client: int
    arrays: Arrays
    num_examples: int
    steps: int
    train_loss: float
    state_lost: bool = False

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return an array by name."""
        return self.arrays[name]


@dataclass
class Reply:
    """What a node answered, client by client."""

    updates: list[Update] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    uplink_bytes: int = 0


def record_of(arrays: Arrays) -> ArrayRecord:
    """Put named arrays into a record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def arrays_of(record: ArrayRecord) -> Arrays:
    """Take named arrays out of a record."""
    return {name: decode(array) for name, array in record.items()}


def nbytes(record: ArrayRecord) -> int:
    """Return the bytes of a record's arrays, as they are sent."""
    return sum(len(array.data) for array in record.values())


def decode(array: Array) -> NDArray[Any]:
    """Decode without a copy, and without allocating what the sender merely claims to send."""
    stream = io.BytesIO(array.data)
    try:
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
    except Exception as error:
        raise WireError(f"undecodable array: {error}") from None
    if dtype.hasobject or (fortran and len(shape) > 1):
        raise WireError(f"an array of {dtype} in this order is not accepted")
    if math.prod(shape) * dtype.itemsize != len(array.data) - stream.tell():
        raise WireError(f"an array of {len(array.data)} bytes cannot have the shape {shape}")
    return np.frombuffer(array.data, dtype, offset=stream.tell()).reshape(shape)


def _checked(record: ArrayRecord, spec: Spec) -> Arrays:
    if set(record) != set(spec):
        raise WireError(f"it sent {sorted(record)} instead of {sorted(spec)}")
    arrays = {}
    for name, (dtype, shape) in spec.items():
        decoded = decode(record[name])
        if decoded.dtype != dtype:
            raise WireError(f"'{name}' is {decoded.dtype} instead of {dtype}")
        if decoded.shape != shape:
            raise WireError(f"'{name}' has the shape {decoded.shape} instead of {shape}")
        if not np.isfinite(decoded).all():
            raise WireError(f"'{name}' holds numbers that are not finite")
        arrays[name] = decoded
    return arrays


def pack_invitation(invitation: Invitation, shared: ArrayRecord) -> RecordDict:
    """Write a node's message; `shared` is encoded once for all nodes of a round."""
    content = RecordDict(
        {
            "round": ConfigRecord(
                {
                    "round": invitation.round,
                    "tag": invitation.tag,
                    "run": invitation.run,
                    "state-dir": invitation.state_dir,
                    "clients": list(invitation.accepted),
                    "accepted": list(invitation.accepted.values()),
                }
            ),
            "shared": shared,
        }
    )
    for client, arrays in invitation.own.items():
        content[f"client.{client}"] = record_of(arrays)
    return content


def unpack_invitation(content: RecordDict) -> Invitation:
    """Read a node's message."""
    head: dict[str, Any] = dict(content.config_records["round"])
    records = content.array_records
    own = {c: records[f"client.{c}"] for c in head["clients"] if f"client.{c}" in records}
    return Invitation(
        round=head["round"],
        tag=head["tag"],
        run=head["run"],
        state_dir=head["state-dir"],
        accepted=dict(zip(head["clients"], head["accepted"], strict=True)),
        shared=arrays_of(records["shared"]),
        own={client: arrays_of(record) for client, record in own.items()},
    )


def pack_reply(updates: Iterable[Update], failures: Mapping[int, str]) -> RecordDict:
    """Write a node's answer."""
    content = RecordDict()
    for update in updates:
        content[f"client.{update.client}"] = record_of(update.arrays)
        content[f"metrics.{update.client}"] = MetricRecord(
            {
                "num-examples": update.num_examples,
                "steps": update.steps,
                "train-loss": update.train_loss,
                "state-lost": int(update.state_lost),
            }
        )
    content["failures"] = ConfigRecord({str(c): reason for c, reason in failures.items()})
    return content


def unpack_reply(message: Message, invited: Iterable[int], spec: Spec) -> Reply:
    """Read a node's answer; a client whose part of it is not as expected has failed.

    Only invited clients are looked for: what a node sends beside them is not read at all.
    """
    reply = Reply()
    if message.has_error():
        reason = message.error.reason or f"Flower reported error {message.error.code}"
        reply.failures = dict.fromkeys(invited, reason.strip().splitlines()[-1])
        return reply
    content = message.content
    told = content.config_records.get("failures", ConfigRecord())
    for client in invited:
        record = content.array_records.get(f"client.{client}")
        if record is None:
            reply.failures[client] = str(told.get(str(client), "it sent nothing"))[:300]
            continue
        reply.uplink_bytes += nbytes(record)
        try:
            metrics = content.metric_records.get(f"metrics.{client}", MetricRecord())
            reply.updates.append(_update(client, _checked(record, spec), metrics))
        except WireError as error:
            reply.failures[client] = str(error)
    return reply


def _update(client: int, arrays: Arrays, metrics: MetricRecord) -> Update:
    examples, steps = metrics.get("num-examples"), metrics.get("steps")
    loss, lost = metrics.get("train-loss"), metrics.get("state-lost", 0)
    if not isinstance(examples, int) or examples < 1 or not isinstance(steps, int) or steps < 0:
        raise WireError("it does not say how many examples and steps it used")
    if not isinstance(loss, float) or not math.isfinite(loss):
        raise WireError("its training loss is not a finite number")
    return Update(client, arrays, examples, steps, loss, bool(lost))
