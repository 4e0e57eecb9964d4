"""Time per round: the bare training, RayGrid, Flower's simulation, stock Flower, pfl-research.

`python -m benchmarks.rounds` measures all in one run, in turns, and writes a table, JSON and a PNG.
Ratios are of medians; only they carry over to another machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.bare import BareTraining
from benchmarks.superlink import FlwrRun, own_superlink
from benchmarks.workloads import BATCH, CIFAR, LR, MNIST, SAMPLES, STEPS, WORKLOADS, Workload
from fedapp.building import make_strategy
from fedapp.config import RunConfig
from fedapp.data.cache import cache_dir, write_splits
from fedapp.data.samples import Split
from fedapp.engine.ray import RayGrid
from fedapp.engine.ray_workers import RayWorkers
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds
from fedapp.tables import Value

ROOT = Path(__file__).parent.parent
GROWTH = (100, 1000, 10_000)
GROWTH_COHORT = 50
KINDS = {
    "bare": "bare PyTorch",
    "ray": "run_simulation.py (RayGrid)",
    "flwr": "flwr run, 2 SuperNodes",
    "stock": "stock Flower FedAvg",
    "pfl": "pfl-research",
}


def data_set(workload: Workload) -> str:
    """Return the data set whose place in the cache a workload's random images take."""
    if workload.shape == CIFAR:
        return "cifar10"
    return "mnist" if workload.num_clients * SAMPLES <= 50_000 else "fashion_mnist"


def write_random_data(workload: Workload) -> None:
    """Put random images into this benchmark's own cache, as if they had come from the hub."""
    directory, shape = cache_dir() / "data" / f"hub-{data_set(workload)}", workload.shape
    if directory.is_dir():
        return
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)

    def split(count: int) -> Split:
        images = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        return Split(images, rng.integers(0, 10, count))

    write_splits(directory, split(min(workload.num_clients, 1000) * SAMPLES), split(1000))


def config_of(workload: Workload, rounds: int, results: Path) -> RunConfig:
    """Return the run config of a workload."""
    values: dict[str, Value] = {
        "dataset": data_set(workload), "model": workload.model, "partition": "iid",
        "num-clients": workload.num_clients, "clients-per-round": workload.cohort,
        "local-steps": STEPS, "batch-size": BATCH, "lr": LR, "num-rounds": rounds,
        "eval-every": 1_000_000, "results-dir": str(results),
    }  # fmt: skip
    return parse_run_config(values)


def ray_rounds(workers: RayWorkers, config: RunConfig) -> Iterator[dict[str, Any]]:
    """Return the rounds of a run on RayGrid, one for each `next`."""
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = RayGrid(workers, config.flat())
    return run_rounds(grid, strategy, problem, config)


def timed(function: Any) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def peer_python(directory: Path) -> Path:
    """Return the Python of an environment that holds pfl-research, made if need be."""
    python = directory / "bin" / "python"
    if not (directory / "ready").exists():
        print(f"Installing pfl-research into {directory} (once)", flush=True)
        venv.create(directory, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "pfl[pytorch]"], check=True)
        (directory / "ready").touch()
    return python


def in_a_process(python: Path, module: str, workload: Workload, rounds: int) -> list[float]:
    """Run a peer's benchmark in a process of its own; its first round is its warm-up."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [python, "-m", module, workload.name, str(rounds + 1)],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return list(json.loads(done.stdout.strip().splitlines()[-1])[1:])


def through_flwr(flwr_run: FlwrRun, config: RunConfig, results: Path) -> list[float]:
    """Run the app under Flower's simulation; its first round is its warm-up."""
    name = f"flwr-{time.time_ns()}"
    own = {k: v for k, v in config.flat().items() if v != RunConfig().flat()[k]} | {
        "run-name": name
    }
    text = " ".join(f"{k}={json.dumps(v)}" for k, v in own.items())
    shown, status = flwr_run(text)
    if status["status"] != "finished:completed":
        raise RuntimeError(f"flwr run failed:\n{shown[-3000:]}")
    lines = (results / name / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["wall_seconds"] for line in lines[1:]]


def measure(
    workload: Workload, repeats: int, rounds: int, peers: dict[str, Any], workers: RayWorkers
) -> dict[str, list[float]]:
    """Measure everything on one workload, in turns."""
    write_random_data(workload)
    results: Path = peers["results"]
    config = config_of(workload, repeats * rounds + 2, results)
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    bare = BareTraining(workload, len(workers.actors))
    ours = ray_rounds(workers, config)
    for _ in range(2):  # warm up
        bare.round()
        next(ours)
    for repeat in range(repeats):
        for _ in range(rounds):
            times["bare"].append(timed(bare.round))
            times["ray"].append(next(ours)["wall_seconds"])
        if repeat % 2 == 0:
            few = max(3, rounds // 2)
            if "pfl" in peers:
                times["pfl"] += in_a_process(peers["pfl"], "benchmarks.pfl_research", workload, few)
            if "stock" in peers:
                times["stock"] += in_a_process(
                    Path(sys.executable), "benchmarks.stock_flower", workload, few
                )
            if "flwr" in peers:
                short = config_of(workload, few + 1, results)
                times["flwr"] += through_flwr(peers["flwr"], short, results)
    bare.close()
    return {kind: seconds for kind, seconds in times.items() if seconds}


def measure_growth(workers: RayWorkers, rounds: int, results: Path) -> dict[str, list[float]]:
    """Measure RayGrid with ever more clients, and the same cohort."""
    times: dict[str, list[float]] = {str(clients): [] for clients in GROWTH}
    for _ in range(2):
        for clients in GROWTH:
            workload = Workload("", "mlp-200-200", MNIST, clients, GROWTH_COHORT)
            write_random_data(workload)  # 50 samples a client with 10 000, at least
            config = config_of(workload, rounds + 1, results)
            seconds = [record["wall_seconds"] for record in ray_rounds(workers, config)]
            times[str(clients)] += seconds[1:]
    return times


def show(report: dict[str, Any], path: Path) -> None:
    """Print the table; write JSON and the picture."""
    console = Console(width=110)
    table = Table("work", *KINDS.values(), title="milliseconds per round, median (and over bare)")
    for name, times in report["workloads"].items():
        limit = statistics.median(times["bare"])
        cells = []
        for kind in KINDS:
            middle = statistics.median(times[kind]) if kind in times else None
            cells.append("" if middle is None else f"{middle * 1e3:.0f} ({middle / limit:.2f})")
        table.add_row(name, *cells)
    console.print(table)
    if report["growth"]:
        growth = Table(*report["growth"], title=f"clients, {GROWTH_COHORT} sampled: ms per round")
        growth.add_row(*(f"{statistics.median(t) * 1e3:.0f}" for t in report["growth"].values()))
        console.print(growth)
    path.mkdir(parents=True, exist_ok=True)
    (path / "rounds.json").write_text(json.dumps(report, indent=1))
    draw(report, path / "rounds.png")
    console.print(f"Written: {path / 'rounds.json'}, {path / 'rounds.png'}")


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the times over the bare training's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2))
    axes = figure.add_subplot()
    names = list(report["workloads"])
    colours = dict(zip(KINDS, ("#999999", "#0072b2", "#56b4e9", "#d55e00", "#e69f00"), strict=True))
    width = 0.8 / len(KINDS)
    for place, (kind, label) in enumerate(KINDS.items()):
        for index, name in enumerate(names):
            times = report["workloads"][name]
            if kind not in times:
                continue
            ratio = statistics.median(times[kind]) / statistics.median(times["bare"])
            at = index + (place - 2) * width
            first = label if index == 0 else None
            axes.bar(at, ratio, width * 0.92, color=colours[kind], label=first)
            axes.text(at, ratio * 1.03, f"{ratio:.2f}", ha="center", va="bottom", fontsize=7)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_ylim(0.8, axes.get_ylim()[1] * 1.2)
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("time per round over bare training")
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.17))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def main() -> None:
    """Measure, and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument(
        "--peers", nargs="*", choices=["flwr", "stock", "pfl"], default=["flwr", "stock", "pfl"]
    )
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8, help="of each, in each repeat")
    parser.add_argument("--no-growth", action="store_true")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "benchmarks")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    arguments = parser.parse_args()
    os.environ["FEDAPP_CACHE"] = str(arguments.cache)  # nothing here touches a user's data
    with ExitStack() as stack:
        peers: dict[str, Any] = {
            "results": Path(stack.enter_context(tempfile.TemporaryDirectory())),
            "stock": True,
        }
        if "pfl" in arguments.peers:
            peers["pfl"] = peer_python(arguments.cache / "pfl-research")
        if "flwr" in arguments.peers:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            peers["flwr"] = stack.enter_context(own_superlink(home))
        if "stock" not in arguments.peers:
            del peers["stock"]
        workers = stack.enter_context(RayWorkers())
        report: dict[str, Any] = {"workloads": {}, "growth": {}}
        for name in arguments.only:
            print(f"{name} ...", flush=True)
            workload = WORKLOADS[name]
            rounds = (
                arguments.rounds if workload.model != "lenet5" else max(2, arguments.rounds // 3)
            )
            times = measure(workload, arguments.repeats, rounds, peers, workers)
            report["workloads"][name] = times
        if not arguments.no_growth:
            print("growth ...", flush=True)
            report["growth"] = measure_growth(workers, arguments.rounds, peers["results"])
        show(report, arguments.out)


if __name__ == "__main__":
    main()
