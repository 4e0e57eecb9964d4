"""Time per round: bare training, our engines, stock Flower, pfl-research, FedJAX.

`python -m benchmarks.rounds --peer pfl=PYTHON --peer fedjax=PYTHON` measures all in one run and writes a table, JSON
and a PNG; `--flute --data-dir DIR` times a published job (`benchmarks/flute.py`). A peer runs in the Python that
`--peer` names for it; one without is left out.

A block measures every contestant once, one after the other, each alone on the machine, and bare training first and last.
Blocks differ in the order of the contestants. A ratio is that of medians of the same block; only ratios carry over
to another machine. The JSON has all measurements, in their order.
"""

import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import flute
from benchmarks.contestants import CONTESTANTS, ROOT, Setting, our_rounds
from benchmarks.workloads import MEASURED, MNIST, QUICK, WORKLOADS, Workload
from fedapp.config import RunConfig
from fedapp.data.cache import cache_dir
from fedapp.runner import EngineChoice
from fedapp.tables import Value

GROWTH = (100, 1000, 10_000)
GROWTH_COHORT, GROWTH_ROUNDS = 50, 8
Report = dict[str, Any]


def order_of(block: int, contestants: Sequence[str]) -> list[str]:
    """Return a block's order: bare training first and last, the others shifted by one in each block."""
    others = [name for name in contestants if name != "bare"]
    shift = block % len(others) if others else 0
    return ["bare", *others[shift:], *others[:shift], "bare"]


def measure(
    report: Report, workload: Workload, contestants: Sequence[str], block: int, setting: Setting
) -> None:
    """Measure one block of a workload; whoever fails is noted, and the others are measured all the same."""
    rounds = report["quick_rounds"] or workload.rounds
    for name in order_of(block, contestants):
        label, run, _ = CONTESTANTS[name]
        print(f"{workload.name}, block {block + 1}: {label} ...", end=" ", flush=True)
        row: dict[str, Any] = {"work": workload.name, "block": block, "who": name, "load": os.getloadavg()[0], "started": time.time()}  # fmt: skip
        try:
            row["seconds"] = run(workload, rounds, setting)
            print(f"{statistics.median(row['seconds']) * 1e3:.0f} ms", flush=True)
        except Exception as error:  # a peer may fail in any way
            row["error"] = f"{type(error).__name__}: {error}"
            print("failed", flush=True)
        report["measurements"].append(row)


def quartiles(numbers: Sequence[float]) -> list[float]:
    """Return the first, second and third quartile."""
    if len(numbers) < 2:
        return list(numbers) * 3
    return statistics.quantiles(numbers, method="inclusive")


def summary(measurements: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each workload and contestant the quartiles of its seconds, and its ratios to bare training.

    A ratio for each block, of the medians of that block; `ratio` is their median.
    """
    seconds: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in measurements:
        blocks = seconds.setdefault((row["work"], row["who"]), {})
        blocks.setdefault(row["block"], []).extend(row.get("seconds", []))
    result: dict[str, dict[str, Any]] = {}
    for (work, who), blocks in seconds.items():
        yardstick = seconds.get((work, "bare"), {})
        ratios = [
            statistics.median(times) / statistics.median(yardstick[block])
            for block, times in blocks.items()
            if times and yardstick.get(block)
        ]
        whole = [each for times in blocks.values() for each in times]
        if whole:
            entry = {"quartiles": quartiles(whole), "rounds": len(whole), "ratios": ratios}
            entry["ratio"] = statistics.median(ratios) if ratios else None
            result.setdefault(work, {})[who] = entry
    return result


def measure_growth(setting: Setting, rounds: int) -> dict[str, list[float]]:
    """Measure RayGrid with ever more clients, and the same cohort."""
    times: dict[str, list[float]] = {str(clients): [] for clients in GROWTH}
    with EngineChoice(False, setting.workers, "").start([RunConfig()]) as make_grid:
        for clients in (*GROWTH, *reversed(GROWTH)):
            workload = Workload("", "mlp-200-200", MNIST, clients, GROWTH_COHORT, rounds)
            records = our_rounds(make_grid, workload, rounds + 1, setting.scratch)
            times[str(clients)] += [record["wall_seconds"] for record in records][1:-1]
    return times


def show(report: Report) -> None:
    """Print the tables."""
    console = Console(width=150)
    works = report["summary"]
    title = f"milliseconds per round: median (quartiles) and over bare training, {report['workers']} processes"
    table = Table("", *works, title=title)
    for name, (label, _, _) in CONTESTANTS.items():
        cells = []
        for entries in works.values():
            if name not in entries:
                cells.append("")
                continue
            low, middle, high = (1e3 * each for each in entries[name]["quartiles"])
            ratio = entries[name]["ratio"]
            over = f" {ratio:.2f}" if ratio else ""
            cells.append(f"{middle:.3g} ({low:.3g}-{high:.3g}){over}")
        if any(cells):
            table.add_row(label, *cells)
    console.print(table)
    for row in report["measurements"]:
        if "error" in row:
            console.print(f"{row['who']} failed on {row['work']}: {row['error']}", markup=False)
    if report["growth"]:
        growth = Table(*report["growth"], title=f"clients, {GROWTH_COHORT} sampled: ms per round")
        growth.add_row(*(f"{statistics.median(t) * 1e3:.0f}" for t in report["growth"].values()))
        console.print(growth)


def draw(works: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw the times over the bare training's."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6))
    axes = figure.add_subplot()
    colours = ("#999999", "#0072b2", "#00a0d6", "#004c77", "#56b4e9", "#d55e00", "#e69f00", "#f0c869", "#009e73", "#66c5ab")  # fmt: skip
    palette = dict(zip(CONTESTANTS, colours, strict=True))
    measured = [n for n in CONTESTANTS if any(n in entries for entries in works.values())]
    width = 0.85 / len(measured)
    shown = set()
    for place, name in enumerate(measured):
        for index, entries in enumerate(works.values()):
            ratio = entries.get(name, {}).get("ratio")
            if not ratio:
                continue
            at = index + (place - (len(measured) - 1) / 2) * width
            label = None if name in shown else CONTESTANTS[name][0]
            shown.add(name)
            axes.bar(at, ratio, width * 0.92, color=palette[name], label=label)
            axes.text(at, ratio * 1.03, f"{ratio:.2f}", ha="center", va="bottom", fontsize=6)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.8, low), high * 1.2)
    axes.set_xticks(range(len(works)), list(works))
    axes.set_ylabel("time per round over bare training")
    axes.legend(fontsize=8, frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def write(report: Report, path: Path) -> None:
    """Write JSON: all measurements, and what follows from them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1))


def peer_version(name: str, python: str) -> str:
    """Return the version of a peer's package in its environment, or why there is none."""
    code = f"from importlib.metadata import version; print(version({name!r}))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return done.stdout.strip() or done.stderr.strip()[-200:]


def about(arguments: argparse.Namespace, pythons: dict[str, str]) -> Report:
    """Return an empty report that says where and with what it was measured."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    versions = {name: version(name) for name in ("torch", "flwr", "ray", "numpy")}
    versions |= {name: peer_version(name, python) for name, python in pythons.items()}
    return {
        "command": " ".join(sys.argv[1:]), "commit": commit, "machine": platform.platform(),
        "cpus": os.cpu_count(), "workers": arguments.workers, "versions": versions,
        "load_before": os.getloadavg(), "quick_rounds": 2 if arguments.quick else 0,
        "measurements": [], "summary": {}, "growth": {},
    }  # fmt: skip


def compare(arguments: argparse.Namespace, setting: Setting, contestants: Sequence[str]) -> int:
    """Measure all blocks of all workloads; return how many measurements failed."""
    path = arguments.out / "rounds.json"
    report = about(arguments, setting.pythons)
    for block in range(1 if arguments.quick else arguments.blocks):
        for name in arguments.only or (QUICK if arguments.quick else MEASURED):
            measure(report, WORKLOADS[name], contestants, block, setting)
            report["summary"] = summary(report["measurements"])
            write(report, path)  # an interrupted run is not lost
    if arguments.growth:
        print("growth ...", flush=True)
        report["growth"] = measure_growth(setting, 1 if arguments.quick else GROWTH_ROUNDS)
        write(report, path)
    show(report)
    draw(report["summary"], arguments.out / "rounds.png")
    print(f"Written: {path}, {arguments.out / 'rounds.png'}")
    return sum("error" in row for row in report["measurements"])


def run_flute(arguments: argparse.Namespace, setting: Setting, contestants: Sequence[str]) -> int:
    """Time the published job on our engines, in turns; return how many runs failed."""
    path = arguments.out / "flute.json"
    keys: dict[str, Value] = flute.JOB | {"data-dir": arguments.data_dir}
    if arguments.quick:
        keys |= {"num-rounds": 4, "eval-every": 4}
    names = [name for name in flute.JOBS if name in contestants]
    report = about(arguments, {}) | {"keys": keys, "published": flute.PUBLISHED}
    for block in range(1 if arguments.quick else arguments.blocks):
        for name in names[block % len(names) :] + names[: block % len(names)]:
            print(f"block {block + 1}: {flute.JOBS[name][0]} ...", end=" ", flush=True)
            try:
                row = flute.run_job(name, keys, setting.workers, setting.scratch)
                print(f"{row['seconds']:.0f} s", flush=True)
            except RuntimeError as error:
                row = {"error": str(error)}
                print(f"failed: {error}", flush=True)
            report["measurements"].append({"who": name, "block": block} | row)
            write(report, path)
    title = f"FLUTE's job, {keys['num-rounds']} rounds: seconds"
    table = Table("", "whole command", "rounds alone", "test accuracy", title=title)
    for name in names:
        rows = [row for row in report["measurements"] if row["who"] == name and "error" not in row]
        if not rows:
            continue
        low, middle, high = quartiles([row["seconds"] for row in rows])
        inner = statistics.median(row["rounds_seconds"] for row in rows)
        whole = f"{middle:.1f} ({low:.1f}-{high:.1f})"
        table.add_row(flute.JOBS[name][0], whole, f"{inner:.1f}", f"{rows[-1]['accuracy']:.1%}")
    for label, seconds in flute.PUBLISHED.items():
        table.add_row(f"{label}, 100 rounds, published", f"{seconds:.0f}", "", "80%")
    Console(width=110).print(table)
    print(f"{flute.NOTE}\nWritten: {path}")
    return sum("error" in row for row in report["measurements"])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), help="workloads")
    parser.add_argument("--who", nargs="+", choices=list(CONTESTANTS), help="bare is always there")
    parser.add_argument("--peer", action="append", default=[], help="NAME=PYTHON, pfl or fedjax")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--quick", action="store_true", help="one block of two rounds: does it work?"
    )
    parser.add_argument("--growth", action="store_true", help="RayGrid with up to 10 000 clients")
    parser.add_argument("--flute", action="store_true", help="see benchmarks/flute.py")
    parser.add_argument("--data-dir", default="", help="flute: holds mnist/")
    parser.add_argument("--cache", type=Path, default=cache_dir() / "benchmarks")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and show; return the exit code."""
    arguments = parse(words)
    pythons = dict(each.split("=", 1) for each in arguments.peer)
    if unknown := set(pythons) - {needs for _, _, needs in CONTESTANTS.values()}:
        print(f"--peer takes pfl or fedjax, not {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    chosen = arguments.who or list(CONTESTANTS)
    contestants = [n for n in chosen if (need := CONTESTANTS[n][2]) == "" or need in pythons]
    if not arguments.flute and (missing := [name for name in chosen if name not in contestants]):
        print(f"Left out, because --peer does not name a Python for them: {', '.join(missing)}")
    if not arguments.flute:
        os.environ["FEDAPP_CACHE"] = str(arguments.cache)  # random images take the places of others
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(arguments.workers, Path(scratch), pythons)
        run = run_flute if arguments.flute else compare
        return 1 if run(arguments, setting, contestants) else 0


if __name__ == "__main__":
    sys.exit(main())
