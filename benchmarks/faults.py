"""Faults for long runs: a ClientApp whose clients raise, and grids that spoil true answers on their way to the server.

Faults are drawn by (seed, round, attempt, client). What a run did, and what it kept, is in its Watch.
"""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedapp import client_app, node, wire
from fedapp.client import Client
from fedapp.config import RunConfig
from fedapp.engine import InlineGrid
from fedapp.engine.local import CLIENT_APP_FAILED
from fedapp.randomness import generator
from fedapp.registry import ALGORITHMS
from fedapp.strategy import FederatedStrategy

SHARE = 0.05
KINDS = (
    "raise",  # the client raises
    "lost",  # its answer is lost, after its state was saved
    "nan",  # a number is not finite
    "shape",  # an array has another shape
    "cut",  # bytes are missing
    "node",  # an error message instead of all that its node has to say
)
EARLY = 100  # the round after which memory is measured first; of fewer than 300, a third


def fault_of(seed: int, share: float, round_: int, attempt: int, client: int) -> str | None:
    """Return how a client fails in an attempt, if it does."""
    rng = generator(seed, "soak", round_, client, attempt)
    return KINDS[rng.integers(len(KINDS))] if rng.random() < share else None


# The client's side: a ClientApp whose clients raise where they should.

app = ClientApp()
_raising: set[int] = set()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    return node.query(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, but for the clients whose turn it is to raise."""
    config = node._config(context)
    head: Any = message.content.config_records["round"]
    attempt = _attempt(config, head)
    _raising.clear()
    _raising.update(
        client
        for client in head["clients"]
        if fault_of(config.seed, SHARE, head["round"], attempt, client) == "raise"
    )
    healthy = ALGORITHMS[config.algorithm]
    ALGORITHMS[config.algorithm] = replace(healthy, client=_that_raises(healthy.client))
    try:
        return node.train(message, context)
    finally:
        ALGORITHMS[config.algorithm] = healthy


def _attempt(config: RunConfig, head: Any) -> int:
    return int(head["tag"]) - int(head["round"]) * (config.round_retries + 1)


@lru_cache
def _that_raises(client: type[Client]) -> type[Client]:
    class Raising(client):  # type: ignore[valid-type,misc]
        def train(self, received: Any, buffers: Any) -> Any:
            if self.client in _raising:
                raise RuntimeError("out of luck")
            return super().train(received, buffers)

    return Raising


# The way to the server.


@dataclass
class Kept:
    """What is held after a round: by the process, the server, and the nodes."""

    megabytes: float = 0.0
    undelivered: int = 0
    said: int = 0
    states: int = 0  # how many states all clients keep


@dataclass
class Watch:
    """What was done to a run, and what it kept."""

    failures: Counter[int] = field(default_factory=Counter)  # by round
    kinds: Counter[str] = field(default_factory=Counter)
    early: Kept = field(default_factory=Kept)
    last: Kept = field(default_factory=Kept)
    strategy: FederatedStrategy[Any] | None = None
    killed: int = 0


class SpoilingGrid(Grid):
    """Alters true answers. A separate base class, so that InlineGrid and RayGrid can carry them."""

    watch: Watch
    config: RunConfig
    share: float

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Let the messages be served, and spoil the answers of clients that fail."""
        messages = list(messages)
        heads = [message.content.get("round") for message in messages]
        answers = list(super().send_and_receive(messages, timeout=timeout))  # type: ignore[safe-super]
        by_id = {answer.metadata.reply_to_message_id: answer for answer in answers}
        spoilt = [
            self._spoilt(message, dict(head), by_id.get(message.metadata.message_id))
            for message, head in zip(messages, heads, strict=True)
            if head is not None
        ]
        return [answer for answer in spoilt if answer] if spoilt else answers

    def _spoilt(
        self, message: Message, head: dict[str, Any], answer: Message | None
    ) -> Message | None:
        """Return the answer as the server gets it, and count the clients that it costs."""
        round_, attempt = head["round"], _attempt(self.config, head)
        self.look(round_)
        drawn = {
            client: kind
            for client in head["clients"]
            if (kind := fault_of(self.config.seed, self.share, round_, attempt, client))
        }
        self.watch.kinds.update(drawn.values())
        if answer is None or answer.has_error() or "node" in drawn.values():
            self.watch.failures[round_] += len(head["clients"])
            broken = Error(CLIENT_APP_FAILED, "Traceback ...\nOSError: the node is out of order")
            return Message(broken, reply_to=message)
        content = answer.content
        failed = {client for client in head["clients"] if f"client.{client}" not in content}
        for client, kind in drawn.items():
            if client not in failed:  # a worker that died comes first
                SPOIL[kind](content, client)
        self.watch.failures[round_] += len(failed | set(drawn))
        return answer

    def look(self, round_: int) -> None:
        """Measure what is kept as a round begins."""
        if round_ == min(EARLY, self.config.num_rounds // 3) + 1:
            self.watch.early = self.kept()
        if round_ == self.config.num_rounds:
            self.watch.last = self.kept()

    def kept(self) -> Kept:
        """Return what is held now."""
        strategy = self.watch.strategy
        assert strategy is not None
        states = sum(len(context.state) for context in self.watched_contexts())
        if state_dir := strategy.ledger.place.state_dir:
            states = sum(1 for _ in Path(state_dir).glob("*/*/*"))
        return Kept(
            resident(), len(strategy.ledger.deliveries.tags), strategy.failures.logged, states
        )

    def watched_contexts(self) -> Iterable[Context]:
        """Return the nodes' Contexts, as far as they are in this process."""
        return []


def resident() -> float:
    """Return the resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _drop(content: RecordDict, client: int) -> None:
    del content[f"client.{client}"], content[f"metrics.{client}"]


def _first(content: RecordDict, client: int) -> tuple[Any, str, Any]:
    record = content.array_records[f"client.{client}"]
    name = next(iter(record))
    return record, name, wire.decode(record[name])


def _not_finite(content: RecordDict, client: int) -> None:
    record, name, vector = _first(content, client)
    if vector.dtype == np.uint8:  # compressed: there is no place for such a number but in its loss
        metrics = dict(content.metric_records[f"metrics.{client}"])
        content[f"metrics.{client}"] = MetricRecord(metrics | {"train-loss": float("nan")})
    else:
        record[name] = wire.encode(np.where(np.arange(vector.size) == 1, np.nan, vector))


def _misshape(content: RecordDict, client: int) -> None:
    record, name, vector = _first(content, client)
    record[name] = wire.encode(vector[None] if vector.dtype == np.uint8 else vector[:-1])


def _cut(content: RecordDict, client: int) -> None:
    record, name, vector = _first(content, client)
    if vector.dtype == np.uint8:  # the payload within the array
        record[name] = wire.encode(vector[: vector.size // 2])
    else:
        whole = record[name]
        record[name] = Array(whole.dtype, whole.shape, whole.stype, bytes(whole.data)[:-3])


SPOIL = {
    "raise": lambda content, client: None,  # it did
    "lost": _drop,
    "nan": _not_finite,
    "shape": _misshape,
    "cut": _cut,
}


class SpoilingInlineGrid(SpoilingGrid, InlineGrid):
    """InlineGrid among failing clients; without `faults`, one that only watches."""

    def __init__(self, config: RunConfig, nodes: int, faults: bool) -> None:
        super().__init__(app if faults else client_app.app, config.flat(), nodes)
        self.config, self.watch, self.share = config, Watch(), SHARE if faults else 0.0

    def watched_contexts(self) -> Iterable[Context]:
        """Return the nodes' Contexts."""
        return self.contexts.values()
