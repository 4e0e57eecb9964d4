"""The reply: what a node sends back, client by client."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from numpy.typing import NDArray

from fedapp.refusals import Reason, Refusal
from fedapp.wire.arrays import Arrays, WireError, nbytes, record_of
from fedapp.wire.checks import error_text, printable
from fedapp.wire.expected import Spec, checked_arrays
from fedapp.wire.overhead import config_bytes, content_overhead, metrics_bytes

CLAIMS = (Reason.FAILED, Reason.NOT_FINITE, Reason.LACKS_FROZEN, Reason.LACKS_MODEL)
# Reasons that a node may give for its own clients. The others are the server's to find.
CLAIMABLE = {reason.name: reason for reason in CLAIMS}
WHOLE = (
    "num-examples",
    "steps",
    "state-lost",
    "state-digest",
)  # metrics of an update, beside its training loss
NMSE = "uplink-nmse"  # a metric of updates that are compressed


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
    uplink_nmse: float | None = None  # of its compression; None: not told

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


def add_update(content: RecordDict, update: Update) -> None:
    """Write one client's part of a node's answer."""
    record = record_of(update.arrays)
    metrics = MetricRecord(
        {
            "num-examples": int(update.num_examples),
            "steps": int(update.steps),
            "train-loss": float(update.train_loss),
            "state-lost": int(update.state_lost),
            "state-digest": int(update.state_digest),
        }
    )
    if update.uplink_nmse is not None:
        metrics[NMSE] = float(update.uplink_nmse)
    content[f"metrics.{update.client}"] = metrics
    content[f"client.{update.client}"] = record


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


def unpack_reply(message: Message, invited: Mapping[int, Spec]) -> Reply:
    """Read a node's answer; a client whose part is not as expected is refused.

    Only invited clients are looked for: anything else that a node sends is not read at all.
    """
    reply = Reply()
    if message.has_error():
        reply.refusals = error_refusals(message, invited)
        return reply
    content = message.content if message.has_content() else RecordDict()
    for client, spec in invited.items():
        record, metrics = content.get(f"client.{client}"), content.get(f"metrics.{client}")
        if not isinstance(record, ArrayRecord):
            reply.refusals.append(claimed_refusal(content, client))
            continue
        reply.uplink_bytes += nbytes(record)
        reply.uplink_overhead += _overhead(client, record, metrics)
        try:
            if not isinstance(metrics, MetricRecord):
                raise WireError("it does not say what it did")
            reply.updates.append(_update(client, checked_arrays(record, spec), metrics))
        except WireError as error:
            reply.refusals.append(Refusal(client, error.reason, printable(str(error))))
    return reply


def _overhead(client: int, record: ArrayRecord, metrics: object) -> int:
    """Return what a client's answer has beside its arrays' data, if it were alone on its node."""
    tells_error = isinstance(metrics, MetricRecord) and NMSE in metrics
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
