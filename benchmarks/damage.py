"""Damage done to runs: `python -m benchmarks.damage [CASE ...] [--share S]` prints what became of each kind.

Every algorithm, and what only some runs leave (see `SPECIAL`); every file of the run's directory and of `state-dir`; a
byte flipped or zeroed, cut, emptied, deleted, or replaced by another run's file of the same name. After `resume` by the
command `fedapp run` the model must be the undisturbed one, or one sentence must end the run.
"""

import argparse
import io
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors.numpy import load_file
from torch import Tensor

from clients.averaging import FedAvgClient
from fedapp import Algorithm, cli, client_app, deliveries, server_app
from fedapp.engine import InlineGrid
from fedapp.errors import DivergedError
from fedapp.parsing import parse_run_config
from fedapp.registry import ALGORITHMS, keeps_state
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value
from strategies.averaging import FedAvg

KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "quadratic.dim": 12,
    "num-clients": 5,
    "clients-per-round": 3,
    "local-steps": 2,
    "lr": 0.05,
    "num-rounds": 7,
    "eval-every": 7,
    "checkpoint-every": 2,
    "run-name": "run",
}


class GiantClient(FedAvgClient):
    """FedAvg's, but one update is as long as it may be: the run diverges, unless `max-update-ratio` refuses it."""

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Descend, and stretch client 0's update of round 4."""
        u = super().update(x)["u"]
        return {"u": u * (1e17 / u.norm()) if (self.round, self.client) == (4, 0) else u}


GIANT = Algorithm("giant", "FedAvg with one giant update", FedAvg, GiantClient)


@dataclass(frozen=True)
class Case:
    """A run that is damaged: its config, and what was different before it was resumed."""

    keys: dict[str, Value]
    before: dict[str, Value] = field(default_factory=dict)
    in_memory: int = deliveries.IN_MEMORY  # vectors for clients that have not come back


# What a run of an algorithm with few clients does not leave: undelivered/, privacy.json and trackers.json, diverged.txt.
SPECIAL = {
    "spilled": Case(
        KEYS | {"algorithm": "fedcomgate", "num-clients": 12, "clients-per-round": 1}, in_memory=2
    ),
    "private": Case(
        KEYS
        | {"algorithm": "fedavg", "dp.clip": 1.0, "dp.where": "client", "dp.noise-from": "seed"}
        | {"tracker": "tensorboard"}
    ),
    "diverged": Case(
        KEYS
        | {"algorithm": "benchmarks.damage:GIANT", "clients-per-round": 5}
        | {"dataset": "digits", "model": "mlp-10-10", "batch-size": 8, "lr": 0.1},
        before={"max-update-ratio": 0.0},
    ),
}


def keys_of(name: str) -> dict[str, Value]:
    """Return a config in which the algorithm's clients remember something, if they ever do."""
    keys = KEYS | {"algorithm": name}
    if ALGORITHMS[name].needs.network:
        keys |= {"dataset": "digits", "model": "mlp-5", "batch-size": 8}
    if name in ("fedcet", "qsgd"):
        keys["clients-per-round"] = 5
    if name in ("qsgd", "diana", "vrdiana"):
        keys["local-steps"] = 1
    if name == "fedavg":
        keys |= {"compressor": "topk", "error-feedback": True}
    return keys


def stateful() -> list[str]:
    """Return the algorithms whose clients remember something, with the configs used here."""
    return [name for name in ALGORITHMS if keeps_state(parse_run_config(keys_of(name)))]


def cases() -> dict[str, Case]:
    """Return all runs that are damaged, by name."""
    return {name: Case(keys_of(name)) for name in ALGORITHMS} | SPECIAL


class StoppedError(Exception):
    """What ends a run in the middle."""


class InterruptedGrid(InlineGrid):
    """Ends a run before a round."""

    last = 0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        """Serve messages, unless it is time to end."""
        messages = list(messages)
        if any(m.content["round"]["round"] == self.last for m in messages if "round" in m.content):
            raise StoppedError
        return super().send_and_receive(messages, timeout=timeout)


def run(place: Path, keys: dict[str, Value], until: int = 0) -> dict[str, Any]:
    """Run with results and states below a place, up to a round; return the model."""
    where = {"results-dir": str(place / "results"), "state-dir": str(place / "states")}
    config = parse_run_config(keys | where)
    grid = InterruptedGrid(client_app.app, config.flat(), 2)
    grid.last = until
    early = suppress(StoppedError, DivergedError) if until else nullcontext()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), early:
        server_app.run(grid, config)
    return load_file(place / "results" / "run" / "model.safetensors")


def command(place: Path, keys: dict[str, Value]) -> list[str]:
    """Return the words of the command that resumes a run."""
    where: dict[str, Value] = {
        "results-dir": str(place / "results"),
        "state-dir": str(place / "states"),
        "resume": True,
    }
    words = (f"{key}={json.dumps(value)}" for key, value in (keys | where).items())
    return ["run", "--engine", "inline", "-c", " ".join(words)]


def flip(path: Path, chance: random.Random, _: Path) -> None:
    """Flip a bit."""
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(content))


def zero(path: Path, chance: random.Random, _: Path) -> None:
    """Zero eight bytes."""
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    content[start : start + 8] = bytes(len(content[start : start + 8]))
    path.write_bytes(bytes(content))


def truncate(path: Path, chance: random.Random, _: Path) -> None:
    """Cut a file anywhere."""
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def empty(path: Path, chance: random.Random, _: Path) -> None:
    """Leave nothing of a file's content."""
    path.write_bytes(b"")


def delete(path: Path, chance: random.Random, _: Path) -> None:
    """Delete a file."""
    path.unlink()


def swap(path: Path, chance: random.Random, other: Path) -> None:
    """Put another run's, client's or round's file in place of this one."""
    states = sorted(path.parent.parent.glob("*/*.safetensors"))  # others', or older ones
    path.write_bytes((other if other.is_file() else chance.choice(states)).read_bytes())


DAMAGES: list[Callable[[Path, random.Random, Path], None]] = [
    flip,
    zero,
    truncate,
    empty,
    delete,
    swap,
]


def twin_of(path: Path, place: Path, twin: Path) -> Path:
    """Return the other run's file in the same role; its states are in a directory of its own name."""
    parts = list(path.relative_to(place).parts)
    if parts[0] == "states":
        parts[1] = next((twin / "states").iterdir()).name
    return twin.joinpath(*parts)


def outcome(place: Path, keys: dict[str, Value], whole: dict[str, Any]) -> str:
    """Resume; return the sentence that ended it, or an empty string if the model is the right one."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as told:
        code = cli.main(command(place, keys))
    sentence = told.getvalue()
    if code:
        assert code in (1, 2)
        assert sentence.endswith(".\n")
        assert sentence.count("\n") == 1
        return sentence.strip()
    assert not sentence
    model = load_file(place / "results" / "run" / "model.safetensors")
    for name, tensor in whole.items():
        np.testing.assert_array_equal(model[name], tensor)
    rounds = read_rounds(place / "results" / "run")
    assert [record["round"] for record in rounds] == list(range(1, 8))
    return ""


def campaign(
    name: str, work: Path, share: float = 1.0, least: int = 0, files: str = "*"
) -> Counter[tuple[str, bool]]:
    """Damage a share of a case's files in all ways; count by kind of damage whether a sentence ended the run."""
    case, chance = cases()[name], random.Random(name)
    counts: Counter[tuple[str, bool]] = Counter()
    with patch.object(deliveries, "IN_MEMORY", case.in_memory):
        whole = run(work / "whole", case.keys)
        run(work / "killed", case.keys | case.before, until=6)
        run(work / "twin", case.keys | case.before | {"seed": 1}, until=6)
        found = [path for path in sorted((work / "killed").rglob(files)) if path.is_file()]
        trials = [(path, d) for path in found if path.stat().st_size for d in DAMAGES]
        for path, damage in chance.sample(trials, max(least, round(share * len(trials)))):
            place = work / "damaged"
            shutil.copytree(work / "killed", place)
            damaged = place / path.relative_to(work / "killed")
            damage(damaged, chance, twin_of(path, work / "killed", work / "twin"))
            try:
                sentence = outcome(place, case.keys, whole)
            except Exception as error:
                raise AssertionError(
                    f"{name}: {damage.__name__} of {damaged.relative_to(place)}"
                ) from error
            counts[damage.__name__, bool(sentence)] += 1
            shutil.rmtree(place)
    return counts


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--share", type=float, default=1.0, help="of all files and damages")
    arguments = parser.parse_args()
    kinds = [damage.__name__ for damage in DAMAGES]
    print(f"| case | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for name in arguments.cases or cases():
        with tempfile.TemporaryDirectory() as work:
            counts = campaign(name, Path(work), arguments.share)
        cells = [f"{counts[kind, False]} same, {counts[kind, True]} refused" for kind in kinds]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
