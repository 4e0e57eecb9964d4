"""The reply: what a node sends back, client by client."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from numpy.typing import NDArray

from fedapp.refusals import Reason, Refusal
from fedapp.wire.arrays import Arrays, WireError, arrays_of, encoded_size, nbytes, record_of
from fedapp.wire.checks import are_finite_numbers, are_whole_numbers, error_text, printable
from fedapp.wire.expected import Spec, checked_arrays
from fedapp.wire.overhead import config_bytes, content_overhead, metrics_bytes

CLAIMS = (Reason.FAILED, Reason.NOT_FINITE, Reason.LACKS_FROZEN, Reason.LACKS_MODEL)
# Reasons that a node may give for its own clients. The others are the server's to find.
CLAIMABLE = {reason.name: reason for reason in CLAIMS}
# The metrics of an update, beside its training loss.
WHOLE = ("num-examples", "steps", "state-lost", "state-digest")
NMSE = "uplink-nmse"  # a metric of updates that are compressed
# Metrics of an update that its node has added up with others: what it would have sent, and how long its vectors are
SIZES = ("uplink-bytes", "uplink-overhead")
LENGTH = "length."
SUMS, HEADS = "sums", "sum-heads"


PackedSums = tuple[Arrays, dict[str, list[int]]]  # see `fedapp.aggregation.sums`


@dataclass(frozen=True)
class Update:
    """What one client sent, checked."""

    client: int
    arrays: Arrays
    num_examples: int
    steps: int
    train_loss: float
    state_lost: bool = False
    state_digest: int = 0  # digest of the state that this update left on disk; 0: unknown
    uplink_nmse: float | None = None  # what its compression lost; None: unknown
    # On the node that trained it:
    decoded: Arrays = field(default_factory=dict)  # what the server makes of compressed arrays
    places: tuple[slice, ...] = ()  # where in the model its vectors belong; empty: all of it
    # On the server, if the node has added it up with others, and it has no arrays:
    lengths: Mapping[str, float] = field(default_factory=dict)  # its vectors' lengths

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return an array by name."""
        return self.arrays[name]


@dataclass
class Reply:
    """What a node answered, client by client."""

    updates: list[Update] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    uplink_bytes: int = 0
    uplink_overhead: int = 0  # bytes of what is sent beside the arrays' data
    added_up: set[int] = field(default_factory=set)  # clients whose vectors are in sums only
    sums: list[PackedSums] = field(default_factory=list)


def add_update(content: RecordDict, update: Update) -> None:
    """Write one client's part of a node's answer."""
    content[f"metrics.{update.client}"] = MetricRecord(_metrics(update))
    content[f"client.{update.client}"] = record_of(update.arrays)


def _metrics(update: Update) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "num-examples": int(update.num_examples),
        "steps": int(update.steps),
        "train-loss": float(update.train_loss),
        "state-lost": int(update.state_lost),
        "state-digest": int(update.state_digest),
    }
    return metrics if update.uplink_nmse is None else metrics | {NMSE: float(update.uplink_nmse)}


def add_summed(content: RecordDict, update: Update, lengths: Mapping[str, float]) -> None:
    """Write what the server must know of a client whose vectors are in a sum: also what it would have sent."""
    sent = sum(map(encoded_size, update.arrays.values()))
    overhead = _overhead(update.client, update.arrays, update.uplink_nmse is not None)
    sizes = dict(zip(SIZES, (sent, overhead), strict=True))
    told = {LENGTH + name: length for name, length in lengths.items()}
    content[f"metrics.{update.client}"] = MetricRecord(_metrics(update) | sizes | told)


def add_sums(content: RecordDict, packed: PackedSums) -> None:
    """Write the sums of a node's updates."""
    slices, heads = packed
    content[SUMS], content[HEADS] = record_of(slices), ConfigRecord(dict(heads))


def take_sums(content: RecordDict) -> PackedSums | None:
    """Remove the sums from an answer; None if there are none."""
    record, heads = content.pop(SUMS, None), content.pop(HEADS, None)
    if not isinstance(record, ArrayRecord) or not isinstance(heads, ConfigRecord):
        return None
    values: Any = dict(heads)
    return arrays_of(record), values


def add_refusals(content: RecordDict, refusals: Iterable[Refusal]) -> None:
    """Write why clients have no part in a node's answer."""
    refusals = list(refusals)
    content["failures"] = ConfigRecord({str(r.client): r.text for r in refusals})
    reasons = {str(r.client): r.reason.name for r in refusals if r.reason is not Reason.FAILED}
    if reasons:
        content["reasons"] = ConfigRecord(reasons)  # type: ignore[arg-type]


def merge(parts: Iterable[RecordDict], failures: Mapping[int, str]) -> RecordDict:
    """Make one answer of several; `failures` says why other clients have none."""
    content = RecordDict()
    texts: dict[str, Any] = {str(client): text for client, text in failures.items()}
    reasons: dict[str, Any] = {}
    for part in parts:
        for name, record in part.items():
            if name == "failures":
                texts |= dict(record)
            elif name == "reasons":
                reasons |= dict(record)
            else:
                content[name] = record
    content["failures"] = ConfigRecord(texts)
    if reasons:
        content["reasons"] = ConfigRecord(reasons)
    return content


def unpack_reply(message: Message, invited: Mapping[int, Spec], sums: bool = False) -> Reply:
    """Read a node's answer; a client whose part is not as expected is refused.

    Only invited clients are looked for: anything else that a node sends is not read at all. `sums`: the node was asked
    to add its clients up.
    """
    reply = Reply()
    if message.has_error():
        reply.refusals = error_refusals(message, invited)
        return reply
    content = message.content if message.has_content() else RecordDict()
    for client, spec in invited.items():
        record, metrics = content.get(f"client.{client}"), content.get(f"metrics.{client}")
        try:
            if isinstance(record, ArrayRecord):
                reply.updates.append(_single(reply, client, record, metrics, spec))
            elif sums and record is None and isinstance(metrics, MetricRecord):
                reply.updates.append(_summed(reply, client, metrics))
            else:
                reply.refusals.append(claimed_refusal(content, client))
        except WireError as error:
            reply.refusals.append(Refusal(client, error.reason, printable(str(error))))
    if reply.added_up and (packed := take_sums(content)):
        reply.sums.append(packed)
    return reply


def _single(reply: Reply, client: int, record: ArrayRecord, metrics: object, spec: Spec) -> Update:
    """Count what a client has sent, and read it."""
    tells_error = isinstance(metrics, MetricRecord) and NMSE in metrics
    reply.uplink_bytes += nbytes(record)
    reply.uplink_overhead += _overhead(client, record, tells_error)
    if not isinstance(metrics, MetricRecord):
        raise WireError("it does not say what it did")
    return _update(client, checked_arrays(record, spec), metrics)


def _summed(reply: Reply, client: int, metrics: MetricRecord) -> Update:
    """Count what a client would have sent, and read what is told of it."""
    reply.added_up.add(client)
    told: dict[str, Any] = dict(metrics)
    lengths = {n.removeprefix(LENGTH): v for n, v in told.items() if n.startswith(LENGTH)}
    sizes = [told.get(name) for name in SIZES]
    if not are_whole_numbers(sizes) or not are_finite_numbers([*lengths.values()], len(lengths)):
        raise WireError("it does not say how much it sent, or how long that is")
    reply.uplink_bytes += told[SIZES[0]]
    reply.uplink_overhead += told[SIZES[1]]
    return replace(_update(client, {}, metrics), lengths=lengths)


def _overhead(client: int, record: ArrayRecord | Arrays, tells_error: bool) -> int:
    """Return what a client's answer has beside its arrays' data, if it were alone on its node."""
    real = ("train-loss", NMSE) if tells_error else ("train-loss",)
    return content_overhead(
        {
            f"client.{client}": record,
            f"metrics.{client}": metrics_bytes(WHOLE, real),
            "failures": config_bytes({}),
        }
    )


def error_refusals(message: Message, clients: Iterable[int]) -> list[Refusal]:
    """Return a refusal for each client of a node that answered with an error, or for which Flower did."""
    flowers = message.metadata.src_node_id == SUPERLINK_NODE_ID
    reason, text = Reason.NO_ANSWER if flowers else Reason.FAILED, error_text(message)
    return [Refusal(client, reason, text) for client in clients]


def claimed_refusal(content: RecordDict, client: int) -> Refusal:
    """Return why a client sent nothing, as far as its node may say that."""
    texts, reasons = content.get("failures"), content.get("reasons")
    text = texts.get(str(client)) if isinstance(texts, ConfigRecord) else None
    if not isinstance(text, str):
        return Refusal(client, Reason.MALFORMED, "it sent nothing")
    name = reasons.get(str(client)) if isinstance(reasons, ConfigRecord) else None
    reason = CLAIMABLE.get(name, Reason.FAILED) if isinstance(name, str) else Reason.FAILED
    return Refusal(client, reason, printable(text))


def _update(client: int, arrays: Arrays, metrics: MetricRecord) -> Update:
    examples, steps = metrics.get("num-examples"), metrics.get("steps")
    loss, lost = metrics.get("train-loss"), metrics.get("state-lost", 0)
    digest, nmse = metrics.get("state-digest", 0), metrics.get(NMSE)
    if not isinstance(examples, int) or examples < 1 or not isinstance(steps, int) or steps < 0:
        raise WireError("it does not say how many examples and steps it used")
    if not isinstance(loss, float):
        raise WireError("its training loss is not a finite number")
    if not math.isfinite(loss):
        raise WireError("its training loss is not a finite number", Reason.NOT_FINITE)
    if not isinstance(digest, int) or digest < 0:
        raise WireError("the digest of its state is not a whole number")
    if nmse is not None and not (isinstance(nmse, float) and 0 <= nmse < math.inf):
        raise WireError("the error of its compression is not a finite number")
    return Update(client, arrays, examples, steps, loss, bool(lost), digest, nmse)
