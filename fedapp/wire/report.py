"""The query: which clients a node hosts, and whether it can train them.

To a node:
  check    config record (absent: only tell the clients): shared-data, whether a node without local data is to load
           the run's; tell-facts, whether it is to tell what its data are like; or what nodes with local data must
           know (see `facts.py`)
  refused  config record, instead of a question: reason, why the node may host nothing
From a node:
  hosting  config record: range (first client, the one to stop before, step) or clients (a list); samples, own-data, problem (why it cannot train), lacks-frozen (see `frozen.py`), what its
           data are like if it was asked; or error (why it hosts nothing)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedapp.data import Facts
from fedapp.wire.arrays import WireError
from fedapp.wire.checks import are_whole_numbers, error_text, printable
from fedapp.wire.facts import facts_head, facts_of

MOST_SAMPLES = 2**53  # that a node may claim to have


@dataclass(frozen=True)
class Report:
    """What a node answers."""

    clients: Sequence[int]
    samples: int | None = None  # all its clients' together; None: it does not say
    own_data: bool = False
    problem: str = ""  # why it cannot train
    lacks_frozen: bool = False  # it needs the parameters that are not trained
    facts: Facts | None = None  # what its data are like, if it was asked


def pack_query(check: dict[str, Any] | None) -> RecordDict:
    """Write the question; `check` is what nodes need to know to check their data."""
    return RecordDict({} if check is None else {"check": ConfigRecord(check)})


def check_of(content: RecordDict) -> dict[str, Any] | None:
    """Return what a node needs to know to check its data; None if it is not asked to."""
    record = content.get("check")
    return dict(record) if isinstance(record, ConfigRecord) else None


def ask_for_facts() -> dict[str, Any]:
    """Return the check that asks nodes to load their data, and to tell what these are like."""
    return {"shared-data": True, "tell-facts": True}


def wants_facts(check: dict[str, Any]) -> bool:
    """Tell whether a node is to tell what its data are like."""
    return check.get("tell-facts") is True


def pack_rejection(reason: str) -> RecordDict:
    """Tell a node that it hosts nothing, and why."""
    return RecordDict({"refused": ConfigRecord({"reason": reason})})


def rejection_of(content: RecordDict) -> str | None:
    """Return why the server lets a node host nothing; None if it does not say that."""
    record = content.get("refused")
    return printable(str(record.get("reason", ""))) if isinstance(record, ConfigRecord) else None


def pack_report(report: Report) -> RecordDict:
    """Write a node's answer."""
    clients = report.clients
    told: dict[str, Any] = (
        {"range": [clients.start, clients.stop, clients.step]}
        if isinstance(clients, range)
        else {"clients": list(clients)}
    )
    if report.samples is not None:
        told["samples"] = report.samples
    if report.own_data:
        told["own-data"] = True
    if report.lacks_frozen:
        told["lacks-frozen"] = True
    if report.problem:
        told["problem"] = report.problem
    told |= facts_head(report.facts)
    return RecordDict({"hosting": ConfigRecord(told)})


def pack_report_error(text: str) -> RecordDict:
    """Write the answer of a node that hosts nothing."""
    return RecordDict({"hosting": ConfigRecord({"error": text})})


def unpack_report(reply: Message | None, num_clients: int) -> Report:
    """Read a node's answer; raise WireError if it does not say which clients it hosts.

    None stands for an answer that has not come. Clients that do not exist are left out, and so are repeated ones.
    """
    if reply is None:
        raise WireError("no answer in time")
    if reply.has_error():
        raise WireError(error_text(reply))
    record = reply.content.get("hosting") if reply.has_content() else None
    told: dict[str, Any] = dict(record) if isinstance(record, ConfigRecord) else {}
    clients, samples, problem = (
        _claim(told, num_clients),
        told.get("samples"),
        told.get("problem", ""),
    )
    if clients is None:
        error = told.get("error")
        raise WireError(printable(error if isinstance(error, str) else "it does not say which"))
    return Report(
        clients,
        samples if type(samples) is int and 0 <= samples <= MOST_SAMPLES else None,
        told.get("own-data") is True,
        printable(problem if isinstance(problem, str) else "it does not say why"),
        told.get("lacks-frozen") is True,
        facts_of(told),
    )


def _claim(told: dict[str, Any], num_clients: int) -> Sequence[int] | None:
    """Return the clients that a node claims and that exist; None if it does not say which."""
    bounds, clients = told.get("range"), told.get("clients")
    if are_whole_numbers(bounds) and len(bounds) == 3:  # type: ignore[arg-type]
        start, stop, step = bounds  # type: ignore[misc]
        return range(start, min(stop, num_clients), step) if start >= 0 and step > 0 else None
    if not isinstance(clients, list):
        return None
    return list(dict.fromkeys(c for c in clients if type(c) is int and 0 <= c < num_clients))
