"""Digests of what runs leave: `python -m benchmarks.digests [--quick] --out FILE`, later `--compare FILE`.

Shows that a change of the code did not change a result. Runs every algorithm with its own compressor and with another,
with all clients and with some, with clients that fail, in float32 and float64, on a network with BatchNorm, resumed, and on
Ray. Of each run it digests the model, `rounds.jsonl` without wall time, every array of the last checkpoint, and the
clients' states. `--tree DIR` runs another checkout. Only what the command line and the files promise is used, so that
versions can be compared; digests of different machines cannot. Exit code 0: all agree.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
Keys = dict[str, bool | int | float | str]

ALGORITHMS = [
    "fedavg",
    "fedprox",
    "fedavgm",
    "fedproxm",
    "fedadam",
    "mifa",
    "mifam",
    "fedpaq",
    "qsgd",
    "fedcom",
    "fedgate",
    "fedcomgate",
    "scaffold",
    "fedcet",
    "feddyn",
    "feddc",
    "mimelite",
    "moon",
    "moonm",
    "fedmlb",
    "fedmlbm",
    "gradma",
    "gradma-w",
    "gradma-s",
    "fedbcgd",
    "fedbcgd-plus",
    "diana",
    "vrdiana",
]
QUICK = ["fedavgm", "fedcomgate", "scaffold", "fedcet", "moon", "gradma", "fedbcgd-plus", "vrdiana"]
COMPRESSED = {"fedpaq", "qsgd", "fedcom", "fedcomgate", "diana", "vrdiana"}
EVERY_CLIENT = {"fedcet", "qsgd"}
ONE_STEP = {"qsgd", "diana", "vrdiana"}
COMMON: Keys = {
    "num-clients": 6,
    "clients-per-round": 3,
    "num-rounds": 4,
    "local-steps": 2,
    "batch-size": 8,
    "lr": 0.05,
    "model": "mlp-12",
    "seed": 7,
    "checkpoint-every": 2,
}
ALL: Keys = {"clients-per-round": 6}
CASES: dict[str, Keys] = {
    "sampled": {},
    "compressed": {"compressor": "uniform"},  # "none" where it is the algorithm's own
    "feedback": {"compressor": "topk", "error-feedback": True},
    "all-float64": ALL | {"dtype": "float64"},
    "failures": {"partition": "dirichlet", "partition-alpha": 0.3, "max-examples": 300},
    "epochs": {"local-epochs": 1, "batch-size": 64, "weighting": "examples"},
    "batchnorm": {"model": "resnet20", "num-rounds": 2, "local-steps": 1, "batch-size": 4},
    "quadratic": {"dataset": "quadratic", "quadratic.dim": 12, "dtype": "float64"},
}
EXTRA: dict[str, Keys] = {
    "private-server": {"dp.clip": 1.0, "dp.noise-from": "seed"},
    "private-client": {"dp.clip": 1.0, "dp.noise-from": "seed", "dp.where": "client"},
    "clipped": {"max-update-norm": 0.01, "on-long-update": "clip"},
    "krum": {"aggregation": "multi-krum", "hostile": 0.1, "mixing": "nnm", "clients-per-round": 6},
    "centre": {"aggregation": "centered-clipping"},
    "erm": {"model": "logistic", "dtype": "float64"},
    "schedule": {"lr-schedule": "inverse", "weight-decay": 0.01},
}
MISSING = "nothing"


def runs(quick: bool) -> dict[str, Keys]:
    """Return the config of every run by its name."""
    planned: dict[str, Keys] = {}
    for name in QUICK if quick else ALGORITHMS:
        for case, keys in CASES.items():
            if (quick and case in ("epochs", "quadratic")) or (
                quick and case == "batchnorm" and name != "scaffold"
            ):
                continue
            keys = COMMON | keys | {"algorithm": name}
            if name in EVERY_CLIENT:
                keys |= ALL
            if name in ONE_STEP:
                keys["local-steps"] = 1
            if case == "compressed" and name in COMPRESSED:
                keys["compressor"] = "none"
            planned[f"{name}.{case}"] = keys
    for case, keys in EXTRA.items():
        planned[f"fedavg.{case}"] = COMMON | {"algorithm": "fedavg"} | keys
    return planned


def digests(tree: Path, quick: bool) -> dict[str, str]:
    """Run everything with a checkout; return the digest of each part of each run."""
    planned = runs(quick)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        _run(tree, base / "inline", planned, "inline")
        found |= _digests_of(base / "inline", planned, "inline")
        # Half of the rounds, and later the rest.
        halves = {n: keys for n, keys in planned.items() if keys["num-rounds"] == 4}
        _run(
            tree, base / "resumed", {n: k | {"num-rounds": 2} for n, k in halves.items()}, "inline"
        )
        _run(tree, base / "resumed", {n: k | {"resume": True} for n, k in halves.items()}, "inline")
        found |= _digests_of(base / "resumed", halves, "resumed")
        on_ray = {
            n: k for n, k in planned.items() if n.endswith((".sampled", ".failures", ".batchnorm"))
        }
        _run(tree, base / "ray", on_ray, "ray")
        found |= _digests_of(base / "ray", on_ray, "ray")
    return found


def _run(tree: Path, out: Path, planned: dict[str, Keys], engine: str) -> None:
    presets = out / "presets"
    presets.mkdir(parents=True, exist_ok=True)
    files = []
    for name, keys in planned.items():
        files.append(presets / f"{name}.toml")
        lines = [
            f"{key} = {json.dumps(value)}" for key, value in (keys | {"run-name": name}).items()
        ]
        files[-1].write_text("\n".join(lines) + "\n")
    command = [
        sys.executable,
        "run_simulation.py",
        *map(str, files),
        "--engine",
        engine,
        "--out",
        str(out),
    ]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    # Runs that are refused are counted as such below.
    subprocess.run(
        [*command, "--workers", "2" if engine == "ray" else "1"],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    shutil.rmtree(presets)


def _digests_of(out: Path, planned: dict[str, Keys], how: str) -> dict[str, str]:
    found = {}
    for name in planned:
        directory = out / name
        try:
            rounds = [
                json.loads(line) for line in (directory / "rounds.jsonl").read_text().splitlines()
            ]
            checkpoint = max((directory / "checkpoint").glob("*"), key=lambda path: path.name)
            parts: dict[str, Any] = {
                "model": _arrays(directory / "model.safetensors"),
                "rounds": [_without_time(record) for record in rounds],
                "checkpoint": _arrays(checkpoint),
                "states": _states(directory / "client-state"),
            }
        except (OSError, ValueError):
            parts = dict.fromkeys(("model", "rounds", "checkpoint", "states"), MISSING)
        for part, content in parts.items():
            text = json.dumps(content)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            found[f"{how} {name} {part}"] = MISSING if content == MISSING else digest
    return found


def _without_time(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("wall_seconds", "check")}


def _states(directory: Path) -> dict[str, dict[str, str]]:
    """Return the digests of the clients' states, below a directory that has the run's random name."""
    files = sorted(directory.glob("*/**/*.safetensors"))
    return {str(Path(*path.relative_to(directory).parts[1:])): _arrays(path) for path in files}


def _arrays(path: Path) -> dict[str, str]:
    """Return the digest of each array that depends neither on time nor on the run's random name.

    `rounds` is a copy of rounds.jsonl. The last column of `accepted` has the digests of states, which hold the name.
    """
    arrays = {name: array for name, array in load_file(path).items() if name != "rounds"}
    if "accepted" in arrays:
        arrays["accepted"] = np.ascontiguousarray(arrays["accepted"][:, :2])
    return {
        name: hashlib.sha256(f"{a.dtype}{a.shape}".encode() + a.tobytes()).hexdigest()
        for name, a in sorted(arrays.items())
    }


def main() -> int:
    """Write digests, or compare with some."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="eight algorithms and fewer cases")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to run")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="write the digests there")
    what.add_argument("--compare", type=Path, help="compare with those of an earlier --out")
    arguments = parser.parse_args()
    found = digests(arguments.tree.resolve(), arguments.quick)
    some = sum(digest != MISSING for digest in found.values())
    print(f"{len(found)} digests, {len(found) - some} of them of runs that left nothing")
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    before = json.loads(arguments.compare.read_text())
    different = sorted(
        key for key in before.keys() | found.keys() if before.get(key) != found.get(key)
    )
    print("\n".join(["Different:", *different] if different else ["All agree."]))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
