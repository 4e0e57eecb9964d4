"""What grows with the number of clients: `python -m benchmarks.scale [--clients 100 10000 1000000] [--out DIR]`.

Runs the quadratic and digits with the same cohort among more and more clients, inline and on Ray, each in a process of
its own, forked once everything is imported, and once more resumed. Measures the seconds from the config to the first round, the growth of the process's memory
at its peak, and that peak, the largest Ray worker, the first round, which draws what is drawn once, the median of the others, the last checkpoint's bytes,
and the seconds to resume. Prints each beside its ratio to the row with the fewest clients, and writes `scale.json`.
`--sampled 1000` draws more clients a round, where there are as many. Linux only: memory is read from /proc.
"""

import argparse
import json
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedapp import client_app, rounds, server_app
from fedapp.hosting import Hosting
from fedapp.observers import Observer
from fedapp.parsing import parse_run_config
from fedapp.runner import EngineChoice

assert client_app.app  # with all that it imports
FORK = multiprocessing.get_context("fork")
PROBLEMS: dict[str, dict[str, Any]] = {
    "quadratic": {"dataset": "quadratic", "lr": 0.1},
    "digits": {"samples-per-client": 20, "partition": "dirichlet", "model": "logreg", "lr": 0.05},
    # A large model and hardly any training: what the driver holds of a cohort.
    "resnet18": {
        "samples-per-client": 2, "model": "resnet18", "lr": 0.05, "local-steps": 1, "batch-size": 2,
    },
}  # fmt: skip
COMMON: dict[str, Any] = {
    "local-steps": 5,
    "batch-size": 10,
    "seed": 0,
    "checkpoint-every": 1,
    "run-name": "run",
}
COLUMNS = ("start", "grown", "peak", "worker", "first round", "round", "checkpoint", "resume")
UNITS = {"start": "s", "grown": "MB", "peak": "MB", "worker": "MB", "first round": "s", "round": "s", "checkpoint": "kB", "resume": "s"}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One run to measure."""

    problem: str
    engine: str
    clients: int
    sampled: int
    rounds: int
    algorithm: str

    def config(self, out: str, resume: bool) -> dict[str, Any]:
        """Return the run's config; one that is resumed has a round more."""
        return (
            COMMON
            | PROBLEMS[self.problem]
            | {
                "algorithm": self.algorithm,
                "num-clients": self.clients,
                "clients-per-round": min(self.sampled, self.clients),
                "num-rounds": self.rounds + resume,
                "resume": resume,
                "results-dir": out,
            }
        )


def measure(case: Case) -> dict[str, float]:
    """Run a case in a separate process, and resume it in another; return what it took."""
    with tempfile.TemporaryDirectory() as out:
        first, again = (_in_process(case, out, resume) for resume in (False, True))
        checkpoints = sorted((Path(out) / "run" / "checkpoint").iterdir())
        first["checkpoint"] = checkpoints[-1].stat().st_size / 1e3
    return first | {"resume": again["start"]}


def _in_process(case: Case, out: str, resume: bool) -> dict[str, float]:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_report, args=(theirs, case, out, resume))
    process.start()
    theirs.close()
    try:
        found: dict[str, float] = ours.recv()
    except EOFError:
        raise SystemExit(f"{case} did not end well") from None
    process.join()
    return found


def _report(pipe: Any, case: Case, out: str, resume: bool) -> None:
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        found = run_one(case, out, resume)
    pipe.send(found)


def run_one(case: Case, out: str, resume: bool) -> dict[str, float]:
    """Run a case in this process; return seconds, and megabytes."""
    clock = Clock()

    def timed_rounds(*others: Any) -> Any:
        *first, observers = others
        run_rounds: Any = rounds.run_rounds
        return run_rounds(*first, [*observers, clock])

    vars(server_app)["run_rounds"] = timed_rounds
    config = parse_run_config(case.config(out, resume))
    with EngineChoice(case.engine == "inline", 2, "").start([config]) as make_grid:
        before, started = _memory("VmRSS"), time.perf_counter()
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        directory = server_app.run(make_grid(config), config)
        peak = _memory("VmHWM")
        workers = [_memory("VmHWM", pid) for pid in _workers()]
    lines = (directory.path / "rounds.jsonl").read_text().splitlines()
    walls = [json.loads(line)["wall_seconds"] for line in lines]
    return {
        "start": clock.begun - started,
        "grown": peak - before,
        "peak": peak,
        "worker": max(workers, default=0.0),
        "first round": walls[0],
        "round": statistics.median(walls[1:] or walls),
    }


class Clock(Observer):
    """Notes when the first round begins."""

    begun = 0.0

    def on_nodes(self, hosting: Hosting, deployed: bool) -> None:
        """Note the time."""
        self.begun = time.perf_counter()


def _workers() -> list[int]:
    """Return the processes of Ray's workers that have served a message."""
    found = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"ray::Worker" in status.read_bytes() and _is_mine(int(status.parent.name)):
                found.append(int(status.parent.name))
        except OSError:  # it has ended
            continue
    return found


def _is_mine(pid: int) -> bool:
    """Tell whether a process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return False


def _memory(what: str, pid: int | str = "self") -> float:
    """Return a figure of /proc/<pid>/status in megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def table(rows: Sequence[tuple[Case, dict[str, float]]]) -> str:
    """Return the rows as a table in Markdown: each figure, and in brackets its ratio to the first row of its kind."""
    heads = [f"{name} ({UNITS[name]})" for name in COLUMNS]
    lines = ["| problem | engine | clients | sampled | " + " | ".join(heads) + " |"]
    lines.append("|---" * (4 + len(COLUMNS)) + "|")
    for case, found in rows:
        base = next(f for c, f in rows if (c.problem, c.engine) == (case.problem, case.engine))
        cells = [f"{found[name]:.3g}{_ratio(found[name], base[name])}" for name in COLUMNS]
        sampled = min(case.sampled, case.clients)
        head = f"| {case.problem} | {case.engine} | {case.clients:,} | {sampled:,} | "
        lines.append(head + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(value: float, base: float) -> str:
    return f" ({value / base:.2f})" if base > 0 else ""


def main() -> None:
    """Measure all cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 10_000, 1_000_000])
    parser.add_argument("--sampled", type=int, default=100, help="clients of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS)[:2], choices=list(PROBLEMS))
    parser.add_argument("--engines", nargs="+", default=["inline", "ray"])
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--out", type=Path, default=Path(), help="directory of scale.json")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    make = partial(Case, rounds=arguments.rounds, algorithm=arguments.algorithm)
    rows = []
    for problem in arguments.problems:
        warm_up = make(problem, "inline", 100, 10)
        measure(warm_up)  # decodes the data
        for engine in arguments.engines:
            for clients in sorted(arguments.clients):
                case = make(problem, engine, clients, arguments.sampled)
                rows.append((case, measure(case)))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + table(rows))
    report = [asdict(case) | found for case, found in rows]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "scale.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
