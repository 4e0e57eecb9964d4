"""Aggregation rules among hostile clients: `python -m benchmarks.attacks [--out FILE.json] [--table]`.

FedAvg on digits, 20 clients in every round, 4 of them hostile, through the real ServerApp and ClientApp on InlineGrid. The hostile
clients collude and know everything: what they send is written over their true answers after all honest ones are in.
Every rule, with and without mixing, gets the same grid of step sizes. The best of them with two classes per client, without
attack, and with a seed that counts nowhere else, is used for all its runs. A run that the file has already is skipped;
the tables are printed at the end.

Long, because it is one command: a run's key, its file and the document's tables change together.
"""

import argparse
import contextlib
import io
import itertools
import json
import logging
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray

from fedapp import client_app, server_app, wire
from fedapp.engine import InlineGrid
from fedapp.errors import RunError
from fedapp.files import write_text
from fedapp.parallel import silence
from fedapp.parsing import parse_run_config
from fedapp.randomness import generator
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value

CLIENTS, HOSTILE = 20, 4
KEYS: dict[str, Value] = {
    "algorithm": "fedavg",
    "dataset": "digits",
    "model": "mlp-50",
    "num-clients": CLIENTS,
    "clients-per-round": CLIENTS,
    "num-rounds": 60,
    "eval-every": 60,
    "local-steps": 1,
    "batch-size": 32,
    "run-name": "run",
}
PARTITIONS: dict[str, dict[str, Value]] = {
    "iid": {"partition": "iid"},
    "Dirichlet 0.1": {"partition": "dirichlet", "partition-alpha": 0.1},
    "two classes": {"partition": "classes", "classes-per-client": 2},
}
SHARE = HOSTILE / CLIENTS
RULES: dict[str, dict[str, Value]] = {
    "mean": {},
    "median": {"hostile": SHARE},
    "trimmed-mean": {"hostile": SHARE, "trim": SHARE},
    "multi-krum": {"hostile": SHARE},
    "geometric-median": {"hostile": SHARE},
    "centered-clipping": {"hostile": SHARE},
}
METHODS: dict[str, dict[str, Value]] = {
    f"{mixing} + {rule}" if mixing != "none" else rule: {"aggregation": rule, **keys}
    | ({"mixing": mixing, "hostile": SHARE} if mixing != "none" else {})
    for mixing in ("none", "nnm")
    for rule, keys in RULES.items()
}
STEP_SIZES = (0.1, 0.3, 1.0)
TUNING_SEED = 100
SEEDS = (0, 1, 2)
MARKS = ("<!-- benchmarks.attacks -->", "<!-- end -->")  # around the tables in a document

# What a hostile client sends, of its own update and the honest ones'.

Vector = NDArray[Any]
Attack = Callable[[Vector, Vector], Vector]
# Sizes chosen to harm: flipped so far, the mean is about 0; of epsilon = 0.1, 0.5, 1 and 4, the one worst for multi-krum, and
# for the median after mixing; a z larger than that of the paper's formula, 0.16 for n = 20 and f = 4, which does no harm.
FLIPPED = (CLIENTS - HOSTILE) / HOSTILE
EPSILON = 1.0
Z = 1.5

ATTACKS: dict[str, Attack | None] = {
    "none": None,
    # The opposite of its own update, longer.
    "sign-flip": lambda own, honest: -FLIPPED * own,
    # Inner product manipulation: Xie et al., Fall of Empires, UAI 2020.
    "IPM": lambda own, honest: -EPSILON * honest.mean(axis=0),
    # Baruch et al., A Little Is Enough, NeurIPS 2019.
    "ALIE": lambda own, honest: honest.mean(axis=0) - Z * honest.std(axis=0),
}


def hostile_clients(seed: int) -> list[int]:
    """Return who is hostile."""
    drawn = generator(seed, "hostile").choice(CLIENTS, HOSTILE, replace=False)
    return sorted(int(client) for client in drawn)


class AttackedGrid(InlineGrid):
    """InlineGrid with hostile clients, who answer last."""

    attack: Attack | None = None
    hostile: Sequence[int] = ()
    absent = False  # the hostile clients do not answer at all

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Let the messages be served, then let the hostile clients choose their answers."""
        answers = list(super().send_and_receive(messages, timeout=timeout))
        if not (self.attack or self.absent):
            return answers
        records = {
            int(name.removeprefix("client.")): record
            for answer in answers
            for name, record in answer.content.array_records.items()
            if name.startswith("client.")
        }
        if not records:  # not a round
            return answers
        if self.absent:
            for answer, client in itertools.product(answers, self.hostile):
                for name in (f"client.{client}", f"metrics.{client}"):
                    answer.content.pop(name, None)
        if self.attack:
            sent = {client: wire.decode(record["u"]) for client, record in records.items()}
            honest = np.stack([u for client, u in sent.items() if client not in self.hostile])
            for client in self.hostile:
                u = self.attack(sent[client], honest).astype(honest.dtype)
                records[client]["u"] = wire.encode(u)
        return answers


@dataclass(frozen=True)
class Cell:
    """One run."""

    method: str
    partition: str
    attack: str  # or "absent": the hostile clients do not answer
    seed: int
    lr: float

    def run(self) -> float | None:
        """Return the accuracy after the last round; None if the model diverged."""
        keys = KEYS | METHODS[self.method] | PARTITIONS[self.partition]
        with tempfile.TemporaryDirectory(prefix="fedapp-attacks-") as place, _quiet():
            more: dict[str, Value] = {"seed": self.seed, "lr": self.lr, "results-dir": place}
            config = parse_run_config(keys | more)
            grid = AttackedGrid(client_app.app, config.flat())
            grid.hostile = hostile_clients(self.seed)
            grid.attack, grid.absent = ATTACKS.get(self.attack), self.attack == "absent"
            try:
                directory = server_app.run(grid, config).path
            except RunError:
                return None
            return float(read_rounds(directory)[-1]["test_accuracy"])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with silence(logging.CRITICAL), contextlib.redirect_stdout(io.StringIO()):
        yield


class Results:
    """Accuracies by run, in a file that a later start goes on with."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accuracy: dict[Cell, float | None] = {}
        self.commits: list[str] = []  # at which runs were made
        self.seconds = 0.0
        if path.exists():
            content = json.loads(path.read_text())
            self.commits, self.seconds = content["commits"], content["seconds"]
            for run in content["runs"]:
                accuracy = run.pop("accuracy")
                self.accuracy[Cell(**run)] = accuracy

    def of(self, cell: Cell) -> float:
        """Return a run's accuracy, 0 if it diverged; run it if it is new."""
        if cell not in self.accuracy:
            started = time.perf_counter()
            self.accuracy[cell] = cell.run()
            self.seconds += time.perf_counter() - started
            self.commits = list(dict.fromkeys([*self.commits, _commit()]))
            self.save()
        return self.accuracy[cell] or 0.0

    def save(self) -> None:
        """Write the file: one line for each run."""
        head = {
            "command": "python -m benchmarks.attacks",
            "commits": self.commits,
            "seeds": SEEDS,
            "tuning-seed": TUNING_SEED,
            "step-sizes": STEP_SIZES,
            "keys": KEYS,
            "methods": METHODS,
            "partitions": PARTITIONS,
            "attacks": {"sign-flip": FLIPPED, "IPM": EPSILON, "ALIE": Z},
            "seconds": round(self.seconds),
        }
        runs = [json.dumps({**asdict(cell), "accuracy": a}) for cell, a in self.accuracy.items()]
        fields = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        fields.append('"runs": [\n' + ",\n".join(runs) + "\n]")
        text = "{\n" + ",\n".join(fields) + "\n}\n"
        write_text(self.path, text)


@lru_cache
def _commit() -> str:
    asked = ["git", "-C", str(Path(__file__).parents[1]), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def cells(results: Results, seeds: Sequence[int]) -> Iterator[Cell]:
    """Yield all runs, those of the first seed first; step sizes are chosen on the way."""
    chosen = {method: step_size(results, method) for method in METHODS}
    for seed in seeds:
        for partition in reversed(PARTITIONS):
            yield Cell("mean", partition, "absent", seed, chosen["mean"])
            for method, attack in itertools.product(METHODS, ATTACKS):
                yield Cell(method, partition, attack, seed, chosen[method])


def step_size(results: Results, method: str) -> float:
    """Return a method's best step size: with two classes per client, nobody hostile, and a seed that counts nowhere else."""
    runs = {lr: Cell(method, "two classes", "none", TUNING_SEED, lr) for lr in STEP_SIZES}
    return max(STEP_SIZES, key=lambda lr: results.of(runs[lr]))


def tables(results: Results, seeds: Sequence[int]) -> str:
    """Return Markdown: a table for each partition, with mean and range over the seeds."""
    text = []
    for partition in PARTITIONS:
        columns = ["aggregation", "lr", *ATTACKS]
        text += [f"{partition}:", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        alone = Cell("mean", partition, "absent", 0, step_size(results, "mean"))
        text.append(
            f"| mean of the honest alone | {alone.lr:g} | {_range(results, alone, seeds)} | | | |"
        )
        for method in METHODS:
            lr = step_size(results, method)
            row = (Cell(method, partition, attack, 0, lr) for attack in ATTACKS)
            figures = " | ".join(_range(results, cell, seeds) for cell in row)
            text.append(f"| {method} | {lr:g} | {figures} |")
        text.append("")
    return "\n".join(text)


def _range(results: Results, cell: Cell, seeds: Sequence[int]) -> str:
    found = [results.accuracy.get(replace(cell, seed=seed), math.nan) for seed in seeds]
    if None in found:
        return "diverged"
    numbers = [a for a in found if a is not None and not math.isnan(a)]
    if not numbers:
        return "not run"
    if len(numbers) == 1 < len(seeds):
        return f"{numbers[0]:.2f} (one seed)"
    partial = "" if len(numbers) == len(seeds) else f", {len(numbers)} seeds"
    return f"{mean(numbers):.2f} ({min(numbers):.2f}..{max(numbers):.2f}{partial})"


def main() -> None:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("attacks.json"))
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--document", type=Path, help="a Markdown file to write the tables into")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(arguments.out)
    if not arguments.table:
        for cell in cells(results, arguments.seeds):
            known = cell in results.accuracy
            accuracy = results.of(cell)
            if not known:
                print(f"{cell} {accuracy:.3f} {results.seconds:.0f} s", file=sys.stderr, flush=True)
    text = tables(results, SEEDS)
    print(text)
    if arguments.document:
        before, _, after = split_document(arguments.document.read_text())
        arguments.document.write_text(f"{before}\n\n{text}\n{after}")


def split_document(text: str) -> tuple[str, str, str]:
    """Return what comes before the tables of a document, the tables, and what comes after."""
    before, rest = text.split(MARKS[0])
    within, after = rest.split(MARKS[1])
    return before + MARKS[0], within.strip(), MARKS[1] + after


if __name__ == "__main__":
    main()
