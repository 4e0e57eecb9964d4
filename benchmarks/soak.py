"""Many rounds among failing clients: `python -m benchmarks.soak [--rounds 500] [--engine inline|ray] [algorithm ...]`.

In every attempt at a round each client fails with a probability of 5 %, in one of the ways of `faults.KINDS`, drawn by (seed, round,
attempt, client). The faults are real: a client raises; the others alter true answers on their way to the server. With
Ray, workers are killed besides. Every algorithm runs with and without faults, on a quadratic with unequal Hessians, or on digits
where it needs a network. A row of the table says how many failures were injected and how many the server counted,
the result of both runs, and what was kept after round 100 and at the end.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.faults import SHARE, SpoilingGrid, SpoilingInlineGrid, Watch
from fedapp import building, server_app
from fedapp.config import RunConfig
from fedapp.parallel import silence
from fedapp.parsing import parse_run_config
from fedapp.randomness import generator
from fedapp.registry import ALGORITHMS
from fedapp.rounds_file import read_rounds
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Value

if TYPE_CHECKING:
    from fedapp.engine.ray_workers import RayWorkers

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


def run(
    name: str, results: Path, rounds: int, faults: bool, nodes: int = 4, **more: Value
) -> tuple[Path, Watch]:
    """Run an algorithm inline, with faults or without; return its directory and what was seen."""
    config = parse_run_config(keys_of(name, rounds) | {"results-dir": str(results)} | more)
    return _run(SpoilingInlineGrid(config, nodes, faults))


def run_on_ray(
    workers: "RayWorkers", name: str, results: Path, rounds: int, kill_every: int, **more: Value
) -> tuple[Path, Watch]:
    """Run an algorithm among failing clients on Ray workers, of which one dies every `kill_every` rounds, on average."""
    import ray

    from fedapp.engine.ray import RayGrid

    class SpoilingRayGrid(SpoilingGrid, RayGrid):
        def __init__(self, config: RunConfig) -> None:
            super().__init__(workers, config.flat())
            self.config, self.watch, self.share = config, Watch(), SHARE

        def look(self, round_: int) -> None:
            super().look(round_)
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
    return _run(SpoilingRayGrid(config))


def _run(grid: SpoilingGrid) -> tuple[Path, Watch]:
    with _quiet(), _watching(grid.watch):
        directory = server_app.run(grid, grid.config)
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

            workers = stack.enter_context(RayWorkers(2, app="benchmarks.faults:app"))
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
