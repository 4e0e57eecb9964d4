"""Named arrays in Flower's parameter channel: the one place that knows how they are laid out.

To a node, one message a round:
  round      config record: round, tag, run, state-dir, the invited clients, and for each the tag
             of its last accepted update and the digest of the state that it left (0: unknown); with
             checkpoints, kept-clients and kept-tags: which others to keep; durable: whether states
             must survive a power loss at once; image-shape, num-classes, pixel-mean and pixel-std, if the model sees images
  shared     array record: what every client receives
  own        array record: what some clients alone receive, each array once (only if there is any);
             who receives which is in the config record: own-clients, own-names, own-arrays
From a node:
  client.<c> array record: what client c sends
  metrics.<c> metric record: num-examples, steps, train-loss, state-lost, state-digest
  failures   config record: client -> why it sent nothing

A compressed vector travels as an array of bytes. Whatever a node sends is checked against what the
server expects before it is decoded.
"""

import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedapp.compression import Compressor, PayloadError
from fedapp.data import ImageFacts
from fedapp.names import is_file_name

Arrays = dict[str, NDArray[Any]]
Shape = tuple[int, ...]
MAX_HEADER = 1024  # bytes of an .npy header
LONGEST_TEXT = 300  # of what a node says
# The lists of whole numbers in an invitation
LISTS = ("clients", "accepted", "digests", "kept-clients", "kept-tags", "own-clients", "own-arrays")


class WireError(ValueError):
    """A message that does not say what it should; the text says what is wrong with it."""


@dataclass(frozen=True)
class Compressed:
    """That an array holds the payload of a vector."""

    compressor: Compressor
    size: int
    dtype: np.dtype[Any]  # of the vector


Spec = Mapping[str, tuple[np.dtype[Any], Shape] | Compressed]


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
    kept: dict[int, list[int]] = field(default_factory=dict)  # tags that a checkpoint would ask for
    facts: ImageFacts | None = None  # of the images, for nodes with data of their own
    digests: dict[int, int] = field(default_factory=dict)  # client -> digest of its accepted state
    durable: bool = False  # states must survive a power loss as soon as they are saved


@dataclass(frozen=True)
class Update:
    """What one client sent, checked."""

    client: int
    arrays: Arrays
    num_examples: int
    steps: int
    train_loss: float
    state_lost: bool = False
    state_digest: int = 0  # of the state that this update left on disk; 0: unknown

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
    return ArrayRecord({name: encode(array) for name, array in arrays.items()})


def arrays_of(record: ArrayRecord) -> Arrays:
    """Take named arrays out of a record."""
    return {name: decode(array) for name, array in record.items()}


def nbytes(record: ArrayRecord) -> int:
    """Return the bytes of a record's arrays, as they are sent."""
    return sum(len(array.data) for array in record.values())


def encode(array: NDArray[Any]) -> Array:
    """Encode as Flower does, in the .npy format, with one copy instead of two."""
    array = np.ascontiguousarray(array)
    header = _header(array.dtype, array.shape)
    data = b"".join((header, array.ravel().view(np.uint8).data))
    return Array(str(array.dtype), array.shape, SType.NUMPY, data)


@lru_cache
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    fields = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, fields)
    return stream.getvalue()


def decode(array: Array, spec: tuple[np.dtype[Any], Shape] | None = None) -> NDArray[Any]:
    """Decode without a copy, and without allocating what the sender merely claims to send."""
    if spec and array.data[: len(header := _header(*spec))] == header:  # the usual case, and fast
        if len(array.data) != len(header) + math.prod(spec[1]) * spec[0].itemsize:
            raise WireError(f"it has {len(array.data)} bytes, which do not fit the shape {spec[1]}")
        return np.frombuffer(array.data, spec[0], offset=len(header)).reshape(spec[1])
    try:
        shape, fortran, dtype, offset = _read_header(_header_of(array.data))
    except Exception as error:
        raise WireError(f"it is no array: {error}") from None
    if spec and dtype != spec[0]:
        raise WireError(f"it is {dtype} instead of {spec[0]}")
    if spec and (shape != spec[1] or fortran):
        raise WireError(f"it has the shape {shape} instead of {spec[1]}")
    try:
        return np.frombuffer(array.data, dtype, offset=offset).reshape(
            shape, order="F" if fortran else "C"
        )
    except Exception as error:
        raise WireError(f"it is no array: {error}") from None


def _header_of(data: bytes) -> bytes:
    """Return the header, or, where it is not one that `encode` writes, all that may belong to it."""
    usual = data[:8] == b"\x93NUMPY\x01\x00"
    end = 10 + int.from_bytes(data[8:10], "little") if usual else MAX_HEADER
    return bytes(data[: min(end, MAX_HEADER)])


@lru_cache
def _read_header(header: bytes) -> tuple[Shape, bool, np.dtype[Any], int]:
    """Return the shape, whether it is Fortran's order, the type, and where the numbers begin.

    NumPy takes a tenth of a millisecond for it, and the same headers come again and again.
    """
    stream = io.BytesIO(header)
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    return (*read_header(stream), stream.tell())


def _checked(record: ArrayRecord, spec: Spec) -> Arrays:
    if set(record) != set(spec):
        raise WireError(f"it sent {sorted(record)} instead of {sorted(spec)}")
    arrays = {}
    for name, expected in spec.items():
        try:
            if isinstance(expected, Compressed):
                arrays[name] = _decompressed(record[name], expected)
            else:
                arrays[name] = decode(record[name], expected)
        except WireError as error:
            raise WireError(f"of '{name}': {error}") from None
        if not is_moderate(arrays[name]):
            wrong = "so large that sums would not be" if is_finite(arrays[name]) else "not"
            raise WireError(f"'{name}' holds numbers that are {wrong} finite")
    return arrays


def _decompressed(array: Array, expected: Compressed) -> NDArray[Any]:
    payload = decode(array)
    if payload.dtype != np.uint8 or payload.ndim != 1:
        raise WireError(f"it is {payload.dtype} of shape {payload.shape} instead of bytes")
    try:
        vector = expected.compressor.decode(payload.data, expected.size)
    except PayloadError as error:
        raise WireError(str(error)) from None
    return vector.astype(expected.dtype, copy=False)


def is_finite(vector: NDArray[Any]) -> bool:
    """Tell whether all numbers of a vector are finite; its square norm nearly always tells."""
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.dot(vector, vector)) or np.isfinite(vector).all())


def is_moderate(vector: NDArray[Any]) -> bool:
    """Tell whether squares and sums over clients of a vector stay finite; it may be so long, and no longer.

    Of float32 that is a Euclidean norm of 1e18, where a hostile client's would spoil the honest ones' sum.
    """
    with np.errstate(all="ignore"):
        return bool(np.dot(vector, vector) < np.finfo(vector.dtype).max / 256)


def printable(text: str) -> str:
    """Return what a node says as one short line that a terminal can be shown."""
    shown = "".join(c if c.isprintable() else " " for c in text[: LONGEST_TEXT + 1])
    return shown if len(text) <= LONGEST_TEXT else f"{shown[: LONGEST_TEXT - 1]}…"


def reason_of(message: Message) -> str:
    """Return why a message is an error: the last line that it gives."""
    end = (message.error.reason or "")[-10 * LONGEST_TEXT :]
    lines = end.strip().splitlines()
    return printable(lines[-1]) if lines else f"Flower reported error {message.error.code}"


def pack_invitation(invitation: Invitation, shared: ArrayRecord) -> RecordDict:
    """Write a node's message; `shared` is encoded once for all nodes of a round."""
    head: dict[str, Any] = {
        "round": invitation.round,
        "tag": invitation.tag,
        "run": invitation.run,
        "state-dir": invitation.state_dir,
        "clients": list(invitation.accepted),
        "accepted": list(invitation.accepted.values()),
        "digests": [invitation.digests.get(client, 0) for client in invitation.accepted],
        "durable": invitation.durable,
    }
    if pairs := [(client, tag) for client, tags in invitation.kept.items() for tag in tags]:
        head["kept-clients"], head["kept-tags"] = (
            list(column) for column in zip(*pairs, strict=True)
        )
    head |= facts_head(invitation.facts)
    owned = [(c, name, a) for c, arrays in invitation.own.items() for name, a in arrays.items()]
    if not owned:
        return RecordDict({"round": ConfigRecord(head), "shared": shared})
    distinct = {id(array): array for _, _, array in owned}
    place = {key: index for index, key in enumerate(distinct)}
    head |= {
        "own-clients": [client for client, _, _ in owned],
        "own-names": [name for _, name, _ in owned],
        "own-arrays": [place[id(array)] for _, _, array in owned],
    }
    own = record_of({str(place[key]): array for key, array in distinct.items()})
    return RecordDict({"round": ConfigRecord(head), "shared": shared, "own": own})


def own_nbytes(content: RecordDict) -> int:
    """Return the bytes of what clients alone receive, for each client that receives it."""
    places: Any = content.config_records["round"].get("own-arrays", [])
    return sum(len(content.array_records["own"][str(place)].data) for place in places)


def unpack_invitation(content: RecordDict) -> Invitation:
    """Read a node's message; what of it becomes a path on the node's disk is what it should be."""
    record, shared = content.get("round"), content.get("shared")
    if not isinstance(record, ConfigRecord) or not isinstance(shared, ArrayRecord):
        raise WireError("it is no invitation")
    head: dict[str, Any] = dict(record)
    if (
        not isinstance(head.get("run"), str)
        or not is_file_name(head["run"])
        or not isinstance(head.get("state-dir"), str)
    ):
        raise WireError("its run is no name, or its state-dir no text")
    whole = ([head.get("round"), head.get("tag")], *(head.get(name, []) for name in LISTS))
    if not all(_are_whole(numbers) for numbers in whole):
        raise WireError("a round, tag or client in it is no whole number")
    records = content.array_records
    arrays = arrays_of(records["own"]) if "own" in records else {}
    own: dict[int, Arrays] = {}
    kept: dict[int, list[int]] = {}
    try:
        for client, name, place in _owned(head):
            own.setdefault(client, {})[str(name)] = arrays[str(place)]
        for client, tag in zip(
            head.get("kept-clients", []), head.get("kept-tags", []), strict=True
        ):
            kept.setdefault(client, []).append(tag)
        accepted = dict(zip(head["clients"], head["accepted"], strict=True))
        digests = dict(zip(head["clients"], head["digests"], strict=True))
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"its lists do not fit together: {error}") from None
    return Invitation(
        round=head["round"],
        tag=head["tag"],
        run=head["run"],
        state_dir=head["state-dir"],
        accepted=accepted,
        shared=arrays_of(shared),
        own=own,
        kept=kept,
        facts=facts_of(head),
        digests=digests,
        durable=head.get("durable") is True,
    )


def facts_head(facts: ImageFacts | None) -> dict[str, Any]:
    """Write what nodes with data of their own must know of the images."""
    if facts is None:
        return {}
    return {
        "image-shape": list(facts.shape),
        "num-classes": facts.num_classes,
        "pixel-mean": list(facts.mean),
        "pixel-std": list(facts.std),
    }


def facts_of(head: Mapping[str, Any]) -> ImageFacts | None:
    """Read what `facts_head` wrote."""
    if "image-shape" not in head:
        return None
    keys = ("image-shape", "num-classes", "pixel-mean", "pixel-std")
    shape, classes, mean, std = (head.get(key, []) for key in keys)
    sound = isinstance(shape, list) and len(shape) == 3 and _are_whole([*shape, classes])
    if not sound or not all(_are_numbers(numbers, shape[0]) for numbers in (mean, std)):
        raise WireError("what it says of the images makes no sense")
    return ImageFacts(tuple(shape), classes, tuple(mean), tuple(std))


def _are_numbers(numbers: Any, count: int) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) == count
        and all(isinstance(n, float) and math.isfinite(n) for n in numbers)
    )


def _are_whole(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)


def _owned(head: dict[str, Any]) -> Iterable[tuple[int, str, int]]:
    columns = (head.get(name, []) for name in ("own-clients", "own-names", "own-arrays"))
    return zip(*columns, strict=True)


def take_shared(content: RecordDict) -> tuple[RecordDict, list[int]]:
    """Take the arrays off an invitation; return them, and the invited clients."""
    head = content.get("round")
    if not isinstance(head, ConfigRecord):  # no invitation
        return RecordDict(), []
    clients: list[int] = list(head["clients"])  # type: ignore[arg-type]
    return RecordDict({n: content.pop(n) for n in ("shared", "own") if n in content}), clients


def part_of(content: RecordDict, clients: list[int]) -> RecordDict:
    """Return an invitation, without its arrays, for some of its clients."""
    head: dict[str, Any] = dict(content.config_records["round"])
    for column in ("accepted", "digests"):
        values = dict(zip(head["clients"], head[column], strict=True))
        head[column] = [values[c] for c in clients]
    head["clients"] = clients
    chosen = set(clients)
    owned = [row for row in _owned(head) if row[0] in chosen]
    for place, column in enumerate(("own-clients", "own-names", "own-arrays")):
        if column in head:
            head[column] = [row[place] for row in owned]
    return RecordDict({"round": ConfigRecord(head)})


def merge(parts: Iterable[RecordDict], failures: Mapping[int, str]) -> RecordDict:
    """Make one answer of several, and of what is known of the clients without one."""
    content = RecordDict()
    told = {str(client): reason for client, reason in failures.items()}
    for part in parts:
        for name, record in part.items():
            if name == "failures":
                told |= dict(record)  # type: ignore[arg-type]
            else:
                content[name] = record
    content["failures"] = ConfigRecord(told)  # type: ignore[arg-type]
    return content


def add_update(content: RecordDict, update: Update) -> None:
    """Write one client's part of a node's answer."""
    record = record_of(update.arrays)
    content[f"metrics.{update.client}"] = MetricRecord(
        {
            "num-examples": int(update.num_examples),
            "steps": int(update.steps),
            "train-loss": float(update.train_loss),
            "state-lost": int(update.state_lost),
            "state-digest": int(update.state_digest),
        }
    )
    content[f"client.{update.client}"] = record


def add_failures(content: RecordDict, failures: Mapping[int, str]) -> None:
    """Write why clients have no part in a node's answer."""
    content["failures"] = ConfigRecord({str(c): reason for c, reason in failures.items()})


def unpack_reply(message: Message, invited: Mapping[int, Spec]) -> Reply:
    """Read a node's answer; a client whose part of it is not as is expected of it has failed.

    Only invited clients are looked for: what a node sends beside them is not read at all.
    """
    reply = Reply()
    if message.has_error():
        reply.failures = dict.fromkeys(invited, reason_of(message))
        return reply
    content = message.content if message.has_content() else RecordDict()
    told = content.get("failures")
    reasons = told if isinstance(told, ConfigRecord) else ConfigRecord()
    for client, spec in invited.items():
        record, metrics = content.get(f"client.{client}"), content.get(f"metrics.{client}")
        if not isinstance(record, ArrayRecord):
            reason = reasons.get(str(client))
            reply.failures[client] = printable(
                reason if isinstance(reason, str) else "it sent nothing"
            )
            continue
        reply.uplink_bytes += nbytes(record)
        try:
            if not isinstance(metrics, MetricRecord):
                raise WireError("it does not say what it did")
            reply.updates.append(_update(client, _checked(record, spec), metrics))
        except WireError as error:
            reply.failures[client] = printable(str(error))
    return reply


def _update(client: int, arrays: Arrays, metrics: MetricRecord) -> Update:
    examples, steps = metrics.get("num-examples"), metrics.get("steps")
    loss, lost = metrics.get("train-loss"), metrics.get("state-lost", 0)
    digest = metrics.get("state-digest", 0)
    if not isinstance(examples, int) or examples < 1 or not isinstance(steps, int) or steps < 0:
        raise WireError("it does not say how many examples and steps it used")
    if not isinstance(loss, float) or not math.isfinite(loss):
        raise WireError("its training loss is not a finite number")
    if not isinstance(digest, int) or digest < 0:
        raise WireError("the digest of its state is not a whole number")
    return Update(client, arrays, examples, steps, loss, bool(lost), digest)
