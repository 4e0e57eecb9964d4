"""A published job from its start to its end, for `python -m benchmarks.rounds --flute`.

FLUTE's README (github.com/microsoft/msrflute, "Flower Comparison") times FedAvg with logistic regression on MNIST: 1000
clients, 10 a round, batch 10, one epoch at step size 0.03, 100 rounds, a test every 20. Here each client holds 60 of
the 60,000 training images, of two classes; theirs comes with its own division into clients. Times are of whole
commands: starting and ending Ray or the SuperLink is included, reading the data set for the first time is not.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contestants import ROOT, federation_options
from benchmarks.superlink import own_superlink
from deploy.processes import assignments
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.tables import Value

JOB: dict[str, Value] = {
    "algorithm": "fedavg", "dataset": "mnist", "model": "logreg", "partition": "classes",
    "classes-per-client": 2, "num-clients": 1000, "clients-per-round": 10, "batch-size": 10,
    "local-epochs": 1, "lr": 0.03, "num-rounds": 100, "eval-every": 20,
}  # fmt: skip
PUBLISHED = {"FLUTE on their CPU": 200.0, "Flower 1.0 on their CPU": 1814.0}  # seconds
NOTE = "The published figures (accuracy about 80 %) come from another machine and other data."
Job = Callable[[dict[str, Value], int], None]


def _fedapp_run(keys: dict[str, Value], *options: str) -> None:
    pairs = [word for key, value in keys.items() for word in ("-c", f"{key}={json.dumps(value)}")]
    command = [sys.executable, str(ROOT / "run_simulation.py"), *options, *pairs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"fedapp run failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def _ray(keys: dict[str, Value], workers: int) -> None:
    _fedapp_run(keys, "--workers", str(workers))


def _inline(keys: dict[str, Value], workers: int) -> None:
    _fedapp_run(keys, "--engine", "inline")


def _flwr_run(keys: dict[str, Value], workers: int) -> None:
    with tempfile.TemporaryDirectory() as home, own_superlink(Path(home)) as run:
        shown, status = run(assignments(keys), workers, federation_options(workers))
    if status.get("status") != "finished:completed":
        raise RuntimeError(f"flwr run failed:\n{shown[-3000:]}")


JOBS: dict[str, tuple[str, Job]] = {
    "ray": ("fedapp run (RayGrid)", _ray),
    "inline": ("fedapp run --engine inline", _inline),
    "flwr": ("flwr run", _flwr_run),
}


def run_job(name: str, keys: dict[str, Value], workers: int, scratch: Path) -> dict[str, Any]:
    """Run the job; return the seconds of the whole and of its rounds, and the accuracy at the end."""
    own = keys | {"results-dir": str(scratch), "run-name": f"{name}-{time.time_ns()}"}
    make_problem(parse_run_config(own))  # the cache is filled before the clock starts
    started = time.perf_counter()
    JOBS[name][1](own, workers)
    total = time.perf_counter() - started
    lines = (scratch / str(own["run-name"]) / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {
        "seconds": total,
        "rounds_seconds": sum(record["wall_seconds"] for record in records),
        "rounds": len(records),
        "accuracy": records[-1]["test_accuracy"],
    }
