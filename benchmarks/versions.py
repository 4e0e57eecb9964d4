"""Time per round of two versions, in turns: `python -m benchmarks.versions TREE [--turns 5] [--rounds 40]`.

TREE is another checkout. Both run the same configs through their own `run_simulation.py`, one after the other, several
times. Prints the ratio of the medians of `wall_seconds`, and the ratio of each turn; only ratios carry over to another
machine. The first rounds of a run are left out: they load data and start workers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 5  # rounds
CASES = {
    "fedavg, inline": ("inline", 'algorithm="fedavg"'),
    "scaffold, inline": ("inline", 'algorithm="scaffold"'),
    "fedpaq, inline": ("inline", 'algorithm="fedpaq"'),
    "fedavg, Ray": ("ray", 'algorithm="fedavg"'),
    "scaffold, Ray": ("ray", 'algorithm="scaffold"'),
}
COMMON = (
    'num-clients=100 clients-per-round=10 local-steps=10 batch-size=32 model="mlp-200-200" partition="iid" lr=0.05 '
    'eval-every=1000000 run-name="run"'
)


def round_times(tree: Path, engine: str, keys: str, rounds: int) -> list[float]:
    """Run one config with a version; return the seconds of its rounds, but for the first."""
    with tempfile.TemporaryDirectory() as out:
        given = f"{COMMON} {keys} num-rounds={rounds + WARM_UP}"
        subprocess.run(
            [
                sys.executable,
                "run_simulation.py",
                "--engine",
                engine,
                "--workers",
                "2",
                "--out",
                out,
                "-c",
                given,
            ],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            check=True,
            capture_output=True,
        )
        lines = (Path(out) / "run" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["wall_seconds"] for line in lines[WARM_UP:]]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path, help="the other version's checkout")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    print("| case | other, ms | this, ms | ratio | of each turn |\n|---|---|---|---|---|")
    for name, (engine, keys) in CASES.items():
        theirs: list[list[float]] = []
        ours: list[list[float]] = []
        for _ in range(arguments.turns):
            theirs.append(round_times(arguments.tree.resolve(), engine, keys, arguments.rounds))
            ours.append(round_times(ROOT, engine, keys, arguments.rounds))
        before, after = (
            statistics.median(t for turn in turns for t in turn) for turns in (theirs, ours)
        )
        each = [
            statistics.median(b) / statistics.median(a) for a, b in zip(theirs, ours, strict=True)
        ]
        spread = ", ".join(f"{ratio:.2f}" for ratio in each)
        print(
            f"| {name} | {1e3 * before:.1f} | {1e3 * after:.1f} | {after / before:.3f} | {spread} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
