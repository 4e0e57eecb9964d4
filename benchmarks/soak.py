"""Many rounds among failing clients: `python -m benchmarks.soak [--rounds 500] [--engine inline|ray] [algorithm ...]`.

In every attempt at a round each client fails with a probability of 5 %, in one of the ways of KINDS, drawn by (seed, round,
attempt, client). The faults are real: a client raises; the others alter true answers on their way to the server. With
Ray, workers are killed besides. Every algorithm runs with and without faults, on a quadratic with unequal Hessians, or on digits
where it needs a network. A row of the table says how many failures were injected and how many the server counted,
what both runs came to, and what was kept after round 100 and at the end.
"""

import argparse
import contextlib
import io
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from flwr.app import Array, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedapp import building, client_app, server_app, wire
from fedapp.client import Client
from fedapp.config import RunConfig
from fedapp.engine import InlineGrid
from fedapp.engine.local import CLIENT_APP_FAILED
from fedapp.parallel import silence
from fedapp.parsing import parse_run_config
from fedapp.randomness import generator
from fedapp.registry import ALGORITHMS
from fedapp.rounds_file import read_rounds
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Value

if TYPE_CHECKING:
    from fedapp.engine.ray_workers import RayWorkers

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
KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "quadratic.dim": 12,
    "dtype": "float64",
    "num-clients": 8,
    "clients-per-round": 5,
    "local-steps": 3,
    "lr": 0.1,
    "round-retries": 30,
    "eval-every": 5,
    "run-name": "soak",
}
NETWORK: dict[str, Value] = {
    "dataset": "digits",
    "model": "mlp-10",
    "dtype": "float32",
    "partition": "iid",
    "batch-size": 16,
    "local-steps": 1,
    "eval-every": 10,
}
OWN: dict[str, dict[str, Value]] = {
    "fedcet": {"clients-per-round": 8, "fedcet.on-failure": "skip"},
    "qsgd": {"clients-per-round": 8, "local-steps": 1},
    "diana": {"local-steps": 1},
    "vrdiana": {"local-steps": 1},
    "fedadam": {"server-lr": 0.01},
}


def keys_of(name: str, rounds: int) -> dict[str, Value]:
    """Return a config that the algorithm allows, on a problem that it can solve."""
    network = NETWORK if ALGORITHMS[name].needs.network else {}
    own = OWN.get(name, {})
    return KEYS | network | own | {"algorithm": name, "num-rounds": rounds}


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
    return client_app.query(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, but for the clients whose turn it is to raise."""
    config = client_app._config(context)
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
        return client_app.train(message, context)
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
    states: int = 0  # of all clients


@dataclass
class Watch:
    """What was done to a run, and what it kept."""

    failures: Counter[int] = field(default_factory=Counter)  # by round
    kinds: Counter[str] = field(default_factory=Counter)
    early: Kept = field(default_factory=Kept)
    last: Kept = field(default_factory=Kept)
    strategy: FederatedStrategy[Any] | None = None
    killed: int = 0


class _Spoiling(Grid):
    """Alters true answers. A base of its own, so that InlineGrid and RayGrid can carry them."""

    watch: Watch
    config: RunConfig
    share = SHARE

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
        self._look(round_)
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

    def _look(self, round_: int) -> None:
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


class SpoilingInlineGrid(_Spoiling, InlineGrid):
    """InlineGrid among failing clients."""

    def watched_contexts(self) -> Iterable[Context]:
        """Return the nodes' Contexts."""
        return self.contexts.values()


def run(
    name: str, results: Path, rounds: int, faults: bool, nodes: int = 4, **more: Value
) -> tuple[Path, Watch]:
    """Run an algorithm inline, with faults or without; return its directory and what was seen."""
    config = parse_run_config(keys_of(name, rounds) | {"results-dir": str(results)} | more)
    grid = SpoilingInlineGrid(app if faults else client_app.app, config.flat(), nodes)
    return _run(grid, config, faults)


def run_on_ray(
    workers: "RayWorkers", name: str, results: Path, rounds: int, kill_every: int, **more: Value
) -> tuple[Path, Watch]:
    """Run an algorithm among failing clients on Ray workers, of which one dies every so many rounds."""
    import ray

    from fedapp.engine.ray import RayGrid

    class SpoilingRayGrid(_Spoiling, RayGrid):
        def _look(self, round_: int) -> None:
            super()._look(round_)
            rng = generator(self.config.seed, "kill", round_)
            if rng.random() * kill_every < 1 and round_ < self.config.num_rounds:
                victim = self._workers.actors[rng.integers(len(self._workers.actors))]
                with contextlib.suppress(Exception):  # it may be dying already
                    os.kill(ray.get(victim.whereabouts.remote(), timeout=30)[1], signal.SIGKILL)
                    self.watch.killed += 1

    config = parse_run_config(
        keys_of(name, rounds)
        | {"results-dir": str(results), "state-dir": str(results / "state")}
        | more
    )
    return _run(SpoilingRayGrid(workers, config.flat()), config, faults=True)


def _run(grid: _Spoiling, config: RunConfig, faults: bool) -> tuple[Path, Watch]:
    grid.config, grid.watch = config, Watch()
    grid.share = SHARE if faults else 0.0
    with _quiet(), _watching(grid.watch):
        directory = server_app.run(grid, config)
    return directory.path, grid.watch


@contextlib.contextmanager
def _watching(watch: Watch) -> Iterator[None]:
    """Get hold of the strategy that a run makes."""
    make = building.make_strategy

    def watched(*arguments: Any) -> FederatedStrategy[Any]:
        watch.strategy = make(*arguments)
        return watch.strategy

    with patch.object(building, "make_strategy", watched):
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with silence(logging.CRITICAL), contextlib.redirect_stdout(io.StringIO()):
        yield


@dataclass
class Outcome:
    """One algorithm's row."""

    name: str
    rounds: int
    watch: Watch
    counted: dict[int, int]  # round -> failures in rounds.jsonl
    figure: str
    without: float
    with_faults: float
    seconds: float

    @property
    def injected(self) -> dict[int, int]:
        """Failures by round."""
        return {round_: self.watch.failures[round_] for round_ in self.counted}


def soak(name: str, rounds: int, place: Path, workers: "RayWorkers | None" = None) -> Outcome:
    """Run an algorithm with and without faults."""
    started = time.perf_counter()
    if workers:
        faulty, watch = run_on_ray(workers, name, place / "faulty", rounds, kill_every=25)
    else:
        faulty, watch = run(name, place / "faulty", rounds, faults=True)
    seconds = time.perf_counter() - started
    whole, _ = run(name, place / "whole", rounds, faults=False)
    records = read_rounds(faulty)
    figure = "test_accuracy" if ALGORITHMS[name].needs.network else "distance"
    return Outcome(
        name,
        rounds,
        watch,
        {record["round"]: record["failures"] for record in records},
        figure,
        _level(read_rounds(whole), figure),
        _level(records, figure),
        seconds,
    )


def _level(records: list[dict[str, Any]], figure: str) -> float:
    """Return the mean of a figure over the last fifth of the rounds."""
    values = [record.get(figure) for record in records[-max(len(records) // 5, 1) :]]
    return float(np.mean([value for value in values if value is not None]))


def table_of(outcomes: list[Outcome], workers: bool) -> Table:
    """Show the outcomes."""
    table = Table(box=SIMPLE_HEAD)
    columns = ["algorithm", "rounds", "injected", "counted", "figure", "without", "with faults"]
    columns += ["MB early", "MB end", "undelivered", "said", "states", "s"]
    columns += ["killed"] if workers else []
    for column in columns:
        table.add_column(column, justify="left" if column in ("algorithm", "figure") else "right")
    for o in outcomes:
        early, last = o.watch.early, o.watch.last
        row = [o.name, o.rounds, sum(o.injected.values()), sum(o.counted.values())]
        row += [o.figure, f"{o.without:.3g}", f"{o.with_faults:.3g}"]
        row += [f"{early.megabytes:.1f}", f"{last.megabytes:.1f}"]
        row += [f"{early.undelivered}/{last.undelivered}", f"{early.said}/{last.said}"]
        row += [f"{early.states}/{last.states}", f"{o.seconds:.1f}"]
        row += [o.watch.killed] if workers else []
        table.add_row(*(str(cell) for cell in row))
    return table


def main() -> None:
    """Soak the algorithms that are asked for, by default all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("algorithms", nargs="*", metavar="algorithm", default=[])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--engine", choices=["inline", "ray"], default="inline")
    arguments = parser.parse_args()
    names = arguments.algorithms or list(ALGORITHMS)
    outcomes = []
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedapp-soak-")))
        workers = None
        if arguments.engine == "ray":
            from fedapp.engine.ray_workers import RayWorkers

            workers = stack.enter_context(RayWorkers(2, app="benchmarks.soak:app"))
        for name in names:
            outcomes.append(soak(name, arguments.rounds, place / name, workers))
            print(f"{name}: {outcomes[-1].seconds:.1f} s", file=sys.stderr, flush=True)
    Console(width=160).print(table_of(outcomes, bool(workers)))
    kinds = sum((outcome.watch.kinds for outcome in outcomes), Counter[str]())
    exact = all(outcome.injected == outcome.counted for outcome in outcomes)
    print(
        f"Faults by kind: {dict(sorted(kinds.items()))}. Counted in every round as injected: {exact}."
    )
    sys.exit(not exact)


if __name__ == "__main__":
    main()
