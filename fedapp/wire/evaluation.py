"""Evaluation on clients: what the server asks a node, and the metrics that it sends back.

To a node, in a message of the type `evaluate`:
  round      config record: round, the clients that evaluate, what nodes with local data must know (see
             `facts.py`), and the digest of what is not trained (see `frozen.py`)
  shared     array record: the model x and its buffers
  frozen     array record: what is not trained, for a node that lacks it
From a node:
  evaluation.<c>  metric record: num-examples, how many held-out samples client c has; metric.<name>, a metric of the
                  model on them; finetuned.<name>, the same after local steps
  failures        config record, and reasons: as in training
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedapp.data import Facts
from fedapp.refusals import Reason, Refusal
from fedapp.wire.arrays import Arrays, WireError, arrays_of
from fedapp.wire.checks import are_whole_numbers, printable
from fedapp.wire.facts import facts_head, facts_of
from fedapp.wire.frozen import frozen_arrays_of, frozen_digest_of, frozen_head
from fedapp.wire.reply import claimed_refusal, error_refusals

METRIC, FINETUNED = "metric.", "finetuned."  # before a metric's name
MOST_METRICS = 32  # one client's; a client that sends more has failed
LARGEST = 1e18  # a metric's bound: sums over clients stay finite
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)


@dataclass(frozen=True)
class EvaluationRequest:
    """Which of a node's clients evaluate which model."""

    round: int
    clients: list[int]
    shared: Arrays  # x and buffers
    facts: Facts | None = None
    frozen: str = ""  # digest of what is not trained; empty: everything is
    frozen_arrays: Arrays = field(default_factory=dict)  # for a node that lacks it


@dataclass(frozen=True)
class Evaluation:
    """One client's metrics on its held-out samples."""

    client: int
    num_examples: int
    metrics: dict[str, float]
    finetuned: dict[str, float] = field(default_factory=dict)  # after local steps


@dataclass
class Evaluations:
    """What a node answered, client by client."""

    results: list[Evaluation] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    uplink_bytes: int = 0


def pack_evaluation_request(request: EvaluationRequest, shared: ArrayRecord) -> RecordDict:
    """Write a node's message; `shared` is encoded once for all nodes."""
    head: dict[str, Any] = {"round": request.round, "clients": request.clients}
    head |= facts_head(request.facts) | frozen_head(request.frozen)
    return RecordDict({"round": ConfigRecord(head), "shared": shared})


def unpack_evaluation_request(content: RecordDict) -> EvaluationRequest:
    """Read a node's message."""
    record, shared = content.get("round"), content.get("shared")
    if not isinstance(record, ConfigRecord) or not isinstance(shared, ArrayRecord):
        raise WireError("it does not ask for an evaluation")
    head: dict[str, Any] = dict(record)
    if not are_whole_numbers([head.get("round")]) or not are_whole_numbers(head.get("clients")):
        raise WireError("a round or client in it is not a whole number")
    if set(shared) != {"x", "buffers"}:
        raise WireError("it does not hold a model")
    return EvaluationRequest(
        round=head["round"],
        clients=head["clients"],
        shared=arrays_of(shared),
        facts=facts_of(head),
        frozen=frozen_digest_of(head),
        frozen_arrays=frozen_arrays_of(content),
    )


def add_evaluation(content: RecordDict, result: Evaluation) -> None:
    """Write one client's part of a node's answer."""
    numbers: dict[str, Any] = {"num-examples": int(result.num_examples)}
    numbers |= {f"{METRIC}{name}": float(value) for name, value in result.metrics.items()}
    numbers |= {f"{FINETUNED}{name}": float(value) for name, value in result.finetuned.items()}
    content[f"evaluation.{result.client}"] = MetricRecord(numbers)


def unpack_evaluations(message: Message, clients: Sequence[int]) -> Evaluations:
    """Read a node's answer; a client whose part is not as expected is refused.

    Only the clients that were asked are looked for: anything else that a node sends is not read at all.
    """
    answer = Evaluations()
    if message.has_error():
        answer.refusals = error_refusals(message, clients)
        return answer
    content = message.content if message.has_content() else RecordDict()
    for client in clients:
        record = content.get(f"evaluation.{client}")
        if not isinstance(record, MetricRecord):
            answer.refusals.append(claimed_refusal(content, client))
            continue
        answer.uplink_bytes += record.count_bytes()
        try:
            answer.results.append(_evaluation(client, record))
        except WireError as error:
            answer.refusals.append(Refusal(client, error.reason, printable(str(error))))
    return answer


def _evaluation(client: int, record: MetricRecord) -> Evaluation:
    examples = record.get("num-examples")
    if type(examples) is not int or examples < 1:
        raise WireError("it does not say how many samples it evaluated on")
    if len(record) > 1 + 2 * MOST_METRICS:
        raise WireError(f"it sent more than {MOST_METRICS} metrics")
    parts = (_metrics(record, prefix) for prefix in (METRIC, FINETUNED))
    return Evaluation(client, examples, *parts)


def _metrics(record: MetricRecord, prefix: str) -> dict[str, float]:
    """Return the metrics whose keys begin so; keys that are no names are dropped."""
    found: dict[str, float] = {}
    for key, value in record.items():
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or not NAME.fullmatch(name):
            continue
        if type(value) not in (int, float) or not abs(value) <= LARGEST:  # type: ignore[arg-type]
            raise WireError(f"its {name} is not a finite number", Reason.NOT_FINITE)
        found[name] = float(value)  # type: ignore[arg-type]
    return found
