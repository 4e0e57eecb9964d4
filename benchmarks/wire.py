"""Bytes to an accuracy, with and without compression both ways: `python -m benchmarks.wire mnist --data-dir DIR`.

Every method gets the same step sizes. Which of them it is shown with is chosen on a validation part, the last 10,000 of
the training samples, on three seeds: the one with which all of them reach the accuracy, with the fewest bytes up and
down, or, where none does, the one with the best accuracy. What is shown are three other seeds, on the test set. Runs that exist are not computed again. Writes a table and `<job>.json`.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow.parquet as pq
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedapp import sweep
from fedapp.api import SweepResult

VALIDATION = 10_000
CHOSEN_ON = [0, 4, 5]  # seeds
SHOWN = [1, 2, 3]
NEW_UPLINK = {"compressor": "contextual", "contextual.step": 3.0, "error-feedback": True}
GRID = {"downlink": "grid", "grid.kappa": 4.0}
NEW_WIRE = NEW_UPLINK | GRID
TRACKED = {
    "compressor": "contextual",
    "contextual.step": 3.0,
    "fedcomgate.track": "own",
    "fedcomgate.memory": "local",
}

JOBS: dict[str, dict[str, Any]] = {
    "mnist": {
        "target": 0.9,
        "lr": [0.05, 0.1, 0.2, 0.4],
        "config": {
            "dataset": "mnist",
            "partition": "classes",
            "classes-per-client": 2,
            "model": "mlp-200-200",
            "num-clients": 100,
            "clients-per-round": 10,
            "local-steps": 10,
            "batch-size": 50,
            "num-rounds": 150,
        },
        "methods": {
            "fedavg": {"algorithm": "fedavg"},
            "fedpaq": {"algorithm": "fedpaq", "compressor": "uniform"},
            "fedcomgate": {"algorithm": "fedcomgate"},
            "fedavg, contextual and grid": {"algorithm": "fedavg", **NEW_WIRE},
            "fedpaq, dithered and grid": {"algorithm": "fedpaq", "compressor": "dithered", **GRID},
            "fedcomgate, contextual and grid": {"algorithm": "fedcomgate", **TRACKED, **GRID},
            "fedcomgate, dithered and grid": {
                "algorithm": "fedcomgate",
                "compressor": "dithered",
                **GRID,
            },
        },
    },
    "cifar10": {
        "target": 0.4,
        "lr": [0.05, 0.1],
        "config": {
            "dataset": "cifar10",
            "partition": "dirichlet",
            "partition-alpha": 0.1,
            "model": "lenet5",
            "num-clients": 100,
            "clients-per-round": 10,
            "local-steps": 10,
            "batch-size": 20,
            "num-rounds": 100,
            "eval-every": 10,
            "precision": "bf16",
        },
        "methods": {
            "fedavg": {"algorithm": "fedavg"},
            "fedpaq": {"algorithm": "fedpaq", "compressor": "uniform"},
            "fedcomgate": {"algorithm": "fedcomgate"},
            "gradma-s": {"algorithm": "gradma-s", "gradma.memory-size": 100},
            "fedbcgd": {"algorithm": "fedbcgd"},
            "fedavg, new wire": {"algorithm": "fedavg", **NEW_WIRE},
            "fedpaq, new wire": {"algorithm": "fedpaq", "compressor": "dithered", **GRID},
            "fedcomgate, new wire": {"algorithm": "fedcomgate", **TRACKED, **GRID},
            "gradma-s, new wire": {
                "algorithm": "gradma-s",
                "gradma.memory-size": 100,
                **NEW_WIRE,
            },
            # It allows no error feedback: blocks change from round to round.
            "fedbcgd, new wire": {"algorithm": "fedbcgd", "compressor": "dithered", **GRID},
        },
    },
}


def without_validation(data_dir: Path, dataset: str, place: Path) -> Path:
    """Write a data set whose test set is the last part of the training samples; return its data-dir."""
    directory = place / "validation" / dataset
    if not (directory / "test-0.parquet").exists():
        directory.mkdir(parents=True, exist_ok=True)
        whole = pq.read_table(sorted((data_dir / dataset).glob("train-*.parquet")))
        kept = whole.num_rows - VALIDATION
        pq.write_table(whole.slice(0, kept), directory / "train-0.parquet")
        pq.write_table(whole.slice(kept), directory / "test-0.parquet")
    return directory.parent


def bytes_to(rounds: Sequence[dict[str, Any]], target: float) -> dict[str, float] | None:
    """Return rounds and bytes until a run reaches the accuracy; None if it does not."""
    up = down = 0.0
    for record in rounds:
        up, down = up + record["uplink_bytes"], down + record["downlink_bytes"]
        if (record["test_accuracy"] or 0.0) >= target:
            return {"rounds": record["round"], "up": up, "down": down}
    return None


def runs_of(
    job: dict[str, Any],
    method: str,
    lrs: Sequence[float],
    seeds: Sequence[int],
    place: Path,
    data: Path,
) -> SweepResult:
    """Run a method with several step sizes and seeds, as far as that is not done."""
    config = job["config"] | job["methods"][method]
    config |= {"data-dir": str(data), "target-accuracy": job["target"], "results-dir": str(place)}
    name = method.replace(", ", "-").replace(" ", "-")
    return sweep(config, {"lr": list(lrs), "seed": list(seeds)}, name=name, show=False)


def measure(
    job: dict[str, Any], method: str, place: Path, data: Path, held_out: Path
) -> dict[str, Any]:
    """Choose a method's step size, and return what it takes with it."""
    tried = runs_of(job, method, job["lr"], CHOSEN_ON, place / "chosen", held_out)
    cost = dict.fromkeys(job["lr"], 0.0)
    accuracy = dict.fromkeys(job["lr"], 0.0)
    for run in tried:
        reached = bytes_to(run.rounds, job["target"])
        cost[run.config.lr] += reached["up"] + reached["down"] if reached else math.inf
        accuracy[run.config.lr] += max(r["test_accuracy"] or 0 for r in run.rounds)
    best = min(cost, key=lambda lr: (cost[lr], -accuracy[lr]))
    cost = {lr: each if math.isfinite(each) else -1 for lr, each in cost.items()}  # -1: not reached
    shown = runs_of(job, method, [best], SHOWN, place / "shown", data)
    results = [bytes_to(run.rounds, job["target"]) for run in shown]
    accuracies = [max(r["test_accuracy"] or 0 for r in run.rounds) for run in shown]
    return {"method": method, "lr": best, "tried": cost, "seeds": results, "best": accuracies}


def main(words: Sequence[str] | None = None) -> int:
    """Measure the methods of a job one after the other."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--data-dir", type=Path, required=True, help="holds <dataset>/*.parquet")
    parser.add_argument("--out", type=Path, default=Path.home() / "fedapp-results" / "wire")
    parser.add_argument("--methods", nargs="*", help="only these")
    parser.add_argument("--lr", nargs="*", type=float, help="only these step sizes")
    parser.add_argument("--seeds", nargs="*", type=int, help="show these instead of 1, 2, 3")
    parser.add_argument(
        "--chosen-on", nargs="*", type=int, help="choose the step size on these seeds"
    )
    parser.add_argument("--rounds", type=int, help="at most this many")
    arguments = parser.parse_args(words)
    job, place = JOBS[arguments.job], arguments.out.expanduser().resolve() / arguments.job
    if arguments.lr:
        job["lr"] = arguments.lr
    if arguments.rounds:
        job["config"]["num-rounds"] = arguments.rounds
    if arguments.seeds:
        SHOWN[:] = arguments.seeds
    if arguments.chosen_on:
        CHOSEN_ON[:] = arguments.chosen_on
    data = arguments.data_dir.expanduser().resolve()
    held_out = without_validation(data, job["config"]["dataset"], place)
    rows = []
    for method in arguments.methods or job["methods"]:
        rows.append(measure(job, method, place, data, held_out))
        print(json.dumps(rows[-1]), flush=True)
        about = {"machine": platform.processor() or platform.machine(), "commit": commit()}
        (place / f"{arguments.job}.json").write_text(json.dumps(about | {"rows": rows}, indent=1))
    show(rows, job["target"])
    return 0


def show(rows: Sequence[dict[str, Any]], target: float) -> None:
    """Print what each method takes, as the mean over the seeds that reach the accuracy."""
    table = Table(box=SIMPLE_HEAD, title=f"to {target:.0%}")
    for name in ("method", "lr", "seeds", "rounds", "up, MB", "down, MB", "both, MB", "best"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        reached = [result for result in row["seeds"] if result]
        cells = [row["method"], f"{row['lr']:g}", f"{len(reached)} of {len(row['seeds'])}"]
        if reached:
            up, down = (
                fmean(r["up"] for r in reached) / 1e6,
                fmean(r["down"] for r in reached) / 1e6,
            )
            cells += [f"{fmean(r['rounds'] for r in reached):.0f}"]
            cells += [f"{up:.3g}", f"{down:.3g}", f"{up + down:.3g}"]
        else:
            cells += ["-"] * 4
        table.add_row(*cells, f"{fmean(row['best']):.4f}")
    Console(width=120).print(table)


def commit() -> str:
    """Return which version of the code this is."""
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
