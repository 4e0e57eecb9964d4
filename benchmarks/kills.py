"""A server that is killed at any moment: `python -m benchmarks.kills [--kills 100]`.

A sweep over algorithms whose clients and server remember much runs as a separate process, inline, with checkpoints. It is
sent SIGKILL at a random moment after it took up a run, and started again, until it has been killed so often;
then it may end. Its models and rounds must be those of a sweep that nobody disturbed, bit for bit.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedapp.rounds_file import read_rounds

ROOT = Path(__file__).parents[1]
ALGORITHMS = ("scaffold", "fedcomgate", "gradma")
SWEEP = """
model = "mlp-10"
num-clients = 6
clients-per-round = 3
local-steps = 2
lr = 0.05
num-rounds = {rounds}
eval-every = 5
checkpoint-every = 3
gradma.memory-size = 4
fedcomgate.memory = "paper"
topk.ratio = 0.3

[[sweep.method]]
name = "scaffold"
algorithm = "scaffold"

[[sweep.method]]
name = "fedcomgate"
algorithm = "fedcomgate"
compressor = "topk"

[[sweep.method]]
name = "gradma"
algorithm = "gradma"
"""
LATEST = 1.0  # seconds after a run was taken up


@dataclass
class Campaign:
    """What was done to sweeps: how often they were killed, and in which run."""

    kills: int = 0
    places: Counter[str] = field(default_factory=Counter)
    sweeps: int = 0
    equal: bool = True


def write_sweep(directory: Path, rounds: int) -> Path:
    """Write the sweep's file."""
    path = directory / "kill.toml"
    path.write_text(SWEEP.format(rounds=rounds))
    return path


def start(preset: Path, out: Path) -> "subprocess.Popen[str]":
    """Start the sweep, or let it go on."""
    command = [
        sys.executable,
        "run_simulation.py",
        "--engine",
        "inline",
        str(preset),
        "--out",
        str(out),
    ]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def kill_until_done(preset: Path, out: Path, kills: int, rng: random.Random) -> Campaign:
    """Kill the sweep so often at random moments, or until it gets through; then let it end."""
    campaign = Campaign(sweeps=1)
    while campaign.kills < kills:
        process, before = start(preset, out), _touched(out)
        while process.poll() is None and _touched(out) == before:  # it still loads torch
            time.sleep(0.005)
        try:
            process.wait(rng.uniform(0, LATEST))
            break  # it was faster
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            campaign.kills += 1
            campaign.places[_place(out)] += 1
    last = start(preset, out)
    _, errors = last.communicate()
    if last.returncode:
        raise RuntimeError(f"The sweep did not end well: {errors}")
    return campaign


def _touched(out: Path) -> list[tuple[str, int]]:
    """Return what changes when a run is taken up."""
    return sorted((f.parent.name, f.stat().st_mtime_ns) for f in out.glob("*/config.json"))


def _place(out: Path) -> str:
    runs = sorted(out.glob("*/rounds.jsonl"), key=lambda file: file.stat().st_mtime_ns)
    return runs[-1].parent.name if runs else "before the first"


def same(one: Path, other: Path) -> bool:
    """Tell whether all models and rounds of two sweeps are equal, but for the time they took."""
    return all(_result(one / f"kill-{n}") == _result(other / f"kill-{n}") for n in ALGORITHMS)


def _result(run: Path) -> tuple[bytes, list[dict[str, Any]]]:
    rounds = [{**record, "wall_seconds": 0} for record in read_rounds(run)]
    return (run / "model.safetensors").read_bytes(), rounds


def main() -> None:
    """Kill sweep after sweep, and compare each to the one that was left alone."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100, help="in all")
    parser.add_argument("--each", type=int, default=25, help="kills of one sweep, at most")
    parser.add_argument("--rounds", type=int, default=60, help="of each of its runs")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    total, rng = Campaign(), random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="fedapp-kills-") as name:
        preset = write_sweep(Path(name), arguments.rounds)
        whole = Path(name) / "whole"
        start(preset, whole).communicate()
        while total.kills < arguments.kills:
            out = Path(name) / f"killed-{total.sweeps}"
            left = min(arguments.each, arguments.kills - total.kills)
            one = kill_until_done(preset, out, left, rng)
            total.sweeps += 1
            total.kills += one.kills
            total.places += one.places
            equal = same(whole, out)
            total.equal &= equal
            print(f"sweep {total.sweeps}: killed {one.kills} times, equal: {equal}", flush=True)
    print(
        json.dumps(
            {
                "kills": total.kills,
                "sweeps": total.sweeps,
                "bit-identical": total.equal,
                "killed in": dict(sorted(total.places.items())),
            }
        )
    )
    sys.exit(not total.equal)


if __name__ == "__main__":
    main()
