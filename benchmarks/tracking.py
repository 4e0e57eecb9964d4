"""Gradient tracking with every compressor: `python -m benchmarks.tracking [--workers W] [--only NAME] [--digits]`.

FedCOMGATE, FedGATE and SCAFFOLD on quadratics whose optimum is known, each compressor with a coarse and a fine setting,
through the real ServerApp and ClientApp on InlineGrid, without and with damping. With `--digits` also a network on digits.
Prints tables in Markdown. Everything is seeded.
"""

import argparse
import logging
import math
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.compression import COMPRESSORS
from fedapp.engine import InlineGrid
from fedapp.errors import RunError
from fedapp.parallel import silence
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.registry import find_compressor
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from fedapp.threads import one_thread

Keys = dict[str, Value]
KEYS: Keys = {
    "dataset": "quadratic",
    "quadratic.condition": 3.0,
    "quadratic.heterogeneity": 2.0,
    "dtype": "float64",
    "num-clients": 10,
    "local-steps": 4,
    "lr": 0.3,
}
ROUNDS = {10: 200, 3: 400}  # clients a round -> rounds
EXACT, DIVERGED = 1e-9, 1e4  # distances at which a run ends
# The first of these keys that a compressor has makes it coarse and fine; one that has none is taken as it is.
KNOBS: dict[str, tuple[Value, Value]] = {
    "levels": (1, 8),
    "bits": (1, 8),
    "ratio": (0.1, 0.5),
    "rank": (1, 4),
}
METHODS: dict[str, Keys] = {
    "FedCOMGATE, sent, no memory": {"algorithm": "fedcomgate"},
    "FedCOMGATE, own, local memory": {
        "algorithm": "fedcomgate",
        "fedcomgate.track": "own",
        "fedcomgate.memory": "local",
    },
    "FedGATE": {"algorithm": "fedgate"},
    "SCAFFOLD": {"algorithm": "scaffold"},
    "SCAFFOLD, error feedback": {"algorithm": "scaffold", "error-feedback": True},
}
DIGITS: Keys = {
    "partition": "classes",
    "classes-per-client": 2,
    "num-clients": 20,
    "clients-per-round": 10,
    "local-steps": 5,
    "lr": 0.05,
    "num-rounds": 60,
    "eval-every": 60,
}
ON_DIGITS: dict[str, Keys] = {
    "uniform, 8 bits": {"compressor": "uniform"},
    "qsgd, 16 levels": {"compressor": "qsgd"},
    "randk, 10 %": {"compressor": "randk"},
}


def settings(name: str) -> Iterator[tuple[str, Keys]]:
    """Yield a coarse and a fine setting of a compressor, with what to call them."""
    knob = next((key for key in KNOBS if key in COMPRESSORS[name].model_fields), None)
    if knob is None:
        yield name, {"compressor": name}
        return
    for value in KNOBS[knob]:
        yield f"{name}, {knob} {value}", {"compressor": name, f"{name}.{knob}": value}


def variance(keys: Keys) -> float:
    """Return q of a config's compressor."""
    config = parse_run_config(keys)
    problem = make_problem(config)
    compressor = find_compressor(config, problem.layout.pieces)
    return compressor.typical_variance(problem.layout.size) if compressor else 0.0


def cases(compressor: Keys, coarse: bool) -> Iterator[Keys]:
    """Yield the runs of one row: each method undamped and, where that differs, with its own damping."""
    for method in METHODS.values():
        damping = f"{method['algorithm']}.damping"
        yield compressor | method | {damping: 1.0}
        if coarse:
            yield compressor | method | {damping: 0.0}


def distance(keys: Keys) -> float:
    """Run a config until it is exact, has diverged, or ends; return the distance to the optimum."""
    last = math.inf
    try:
        for record in _rounds(keys):
            last = record["distance"]
            if not EXACT < last < DIVERGED:
                break
    except RunError:
        return math.inf
    return last


def accuracy(keys: Keys) -> float:
    """Run a config; return the test accuracy at the end, 0 if it diverged."""
    try:
        return float(list(_rounds(keys))[-1]["test_accuracy"])
    except RunError:
        return 0.0


def _rounds(keys: Keys) -> Iterator[dict[str, float]]:
    one_thread()
    config = parse_run_config(keys)
    with silence(logging.CRITICAL):
        problem = make_problem(config)
        grid = InlineGrid(client_app.app, config.flat())
        yield from run_rounds(grid, make_strategy(config, problem), problem, config)


def in_words(far: float) -> str:
    """Write a distance."""
    return f"{far:.0e}" if far < DIVERGED else "diverges"


def quadratics(names: Iterable[str], pool: ProcessPoolExecutor) -> Iterator[str]:
    """Yield the table of the quadratics, row by row: `undamped / damped` where the two differ."""
    yield "| compressor | q | clients | " + " | ".join(METHODS) + " |"
    yield "|---|---|---|" + "---|" * len(METHODS)
    rows = []
    for title, compressor in [pair for name in names for pair in settings(name)]:
        q = variance(KEYS | compressor)
        for count, rounds in ROUNDS.items():
            shared = KEYS | compressor | {"clients-per-round": count, "num-rounds": rounds}
            runs = [pool.submit(distance, keys) for keys in cases(shared, q > 1)]
            rows.append((title, q, count, runs))
    for title, q, count, runs in rows:
        ends = [in_words(run.result()) for run in runs]
        each = len(ends) // len(METHODS)
        cells = [" / ".join(ends[i : i + each]) for i in range(0, len(ends), each)]
        yield f"| {title} | {q:.2g} | {count} of 10 | " + " | ".join(cells) + " |"


def digits(pool: ProcessPoolExecutor) -> Iterator[str]:
    """Yield the table of the network, row by row: `undamped / damped`."""
    algorithms = ["fedcomgate", "fedgate", "scaffold"]
    yield "| compressor | q | " + " | ".join(algorithms) + " |"
    yield "|---|---|" + "---|" * len(algorithms)
    rows = [
        (title, [
            pool.submit(accuracy, DIGITS | keys | {"algorithm": name, f"{name}.damping": a})
            for name in algorithms for a in (1.0, 0.0)
        ])
        for title, keys in ON_DIGITS.items()
    ]  # fmt: skip
    for title, runs in rows:
        ends = [f"{run.result():.3f}" for run in runs]
        cells = [" / ".join(ends[i : i + 2]) for i in range(0, len(ends), 2)]
        yield f"| {title} | {variance(DIGITS | ON_DIGITS[title]):.2g} | " + " | ".join(cells) + " |"


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--only", choices=list(COMPRESSORS), action="append", help="a compressor")
    parser.add_argument("--digits", action="store_true", help="the network, too")
    asked = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.workers, context) as pool:
        for line in quadratics(asked.only or COMPRESSORS, pool):
            print(line, flush=True)
        if asked.digits:
            print()
            for line in digits(pool):
                print(line, flush=True)


if __name__ == "__main__":
    main()
