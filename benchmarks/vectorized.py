"""Clients one after the other, and side by side (`vectorize`), in turns: `python -m benchmarks.vectorized`.

Runs whole rounds in this process and prints the processor time of a round both ways, and their ratio: the median over turns,
and the least and the largest. Only ratios carry over to another machine. The images of 784 numbers are random. `theory` is the
first run of each sweep of `fedapp theory`, and `sweep` four algorithms on softmax regression, both with fewer rounds.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.contestants import write_random_data
from benchmarks.workloads import MNIST, Workload
from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.config import RunConfig
from fedapp.data.cache import cache_dir
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds
from fedapp.sweeps import read_runs
from fedapp.tables import Value

PRESETS = Path(__file__).parent.parent / "experiments" / "theory"
CLIENTS, WARM_UP = 32, 1
COMMON: dict[str, Value] = {
    "num-clients": CLIENTS, "clients-per-round": CLIENTS, "local-steps": 10, "batch-size": 32, "lr": 0.05,
    "partition": "iid", "eval-every": 1_000_000,
}  # fmt: skip
WORKS: dict[str, dict[str, Value]] = {
    "64-10": {"model": "logreg"},
    "64-200-10": {"model": "mlp-200"},
    "784-10": {"dataset": "mnist", "model": "logreg"},
    "784-200-200-10": {"dataset": "mnist", "model": "mlp-200-200"},
    "logistic, 64": {"model": "logistic"},
    "quadratic, 20": {"dataset": "quadratic"},
}
SWEPT = ("fedavg", "scaffold", "fedcomgate", "feddyn")


def configs_of(work: str, rounds: int) -> list[dict[str, Value]]:
    """Return the runs of a piece of work."""
    if work == "sweep":
        few: dict[str, Value] = {"model": "logreg", "num-rounds": rounds, "feddyn.alpha": 0.1}
        return [COMMON | few | {"algorithm": name} for name in SWEPT]
    if work == "theory":
        first = [read_runs(path)[0].values for path in sorted(PRESETS.glob("*.toml"))]
        return [values | {"num-rounds": rounds, "eval-every": 1_000_000} for values in first]
    return [COMMON | WORKS[work] | {"num-rounds": rounds}]


def seconds(config: RunConfig) -> float:
    """Return the processor time of a run's rounds after the first."""
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    rounds = run_rounds(InlineGrid(client_app.app, config.flat()), strategy, problem, config)
    for _ in range(WARM_UP):
        next(rounds)
    started = time.process_time()
    for _ in rounds:
        pass
    return time.process_time() - started


def measure(work: str, size: int, turns: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the processor time of a round, one after the other and side by side, in each turn."""
    runs = configs_of(work, rounds + WARM_UP)
    times: dict[int, list[float]] = {0: [], size: []}
    for turn in range(turns):
        for vectorize in (0, size) if turn % 2 else (size, 0):
            spent = [seconds(parse_run_config(run | {"vectorize": vectorize})) for run in runs]
            times[vectorize].append(sum(spent) / rounds / len(runs))
    return times[0], times[size]


def show(rows: Sequence[tuple[str, list[float], list[float]]], size: int) -> None:
    """Print the table."""
    table = Table(
        "work", "one after the other, ms", f"vectorize = {size}, ms", "ratio", "least to largest"
    )
    for work, plain, together in rows:
        ratios = [a / b for a, b in zip(plain, together, strict=True)]
        milliseconds = (f"{statistics.median(t) * 1e3:.1f}" for t in (plain, together))
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        table.add_row(work, *milliseconds, f"{statistics.median(ratios):.2f}", spread)
    Console(width=110).print(table)


def main() -> None:
    """Measure, and show."""
    names = [*WORKS, "theory", "sweep"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--size", type=int, default=CLIENTS, help="of a group")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=10, help="of each run, in each turn")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "benchmarks")
    arguments = parser.parse_args()
    os.environ["FEDAPP_CACHE"] = str(arguments.cache)  # nothing here touches a user's data
    write_random_data(Workload("", "logreg", MNIST, CLIENTS, CLIENTS, arguments.rounds))
    rows = []
    for work in arguments.only:
        print(f"{work} ...", flush=True)
        times = measure(work, arguments.size, arguments.turns, arguments.rounds)
        rows.append((work, *times))
    show(rows, arguments.size)


if __name__ == "__main__":
    main()
