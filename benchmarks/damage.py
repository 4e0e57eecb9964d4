"""Damage done to runs: `python -m benchmarks.damage [ALGORITHM ...] [--share S]` prints what became of each kind.

Every stateful algorithm, every file of the run's directory and of `state-dir`; a byte flipped or zeroed, cut, emptied,
deleted, or replaced by another run's file of the same name. After `resume` the model must be the undisturbed one, or one
sentence must end the run.
"""

import argparse
import io
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from fedapp import client_app, server_app
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.parsing import parse_run_config
from fedapp.registry import ALGORITHMS, keeps_state
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value

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


def keys_of(name: str) -> dict[str, Value]:
    """Return a config in which the algorithm's clients remember something."""
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
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()), suppress(StoppedError):
        server_app.run(grid, config)
    return load_file(place / "results" / "run" / "model.safetensors")


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
    try:
        model = run(place, keys | {"resume": True})
    except (ConfigError, RunError) as error:
        return str(error)
    for name, tensor in whole.items():
        np.testing.assert_array_equal(model[name], tensor)
    rounds = read_rounds(place / "results" / "run")
    assert [record["round"] for record in rounds] == list(range(1, 8))
    return ""


def campaign(name: str, work: Path, share: float, least: int = 0) -> Counter[tuple[str, bool]]:
    """Damage a share of all files in all ways; count by kind of damage whether a sentence ended the run."""
    keys, chance = keys_of(name), random.Random(name)
    whole = run(work / "whole", keys)
    run(work / "killed", keys, until=6)
    run(work / "twin", keys | {"seed": 1}, until=6)
    found = [path for path in sorted((work / "killed").rglob("*")) if path.is_file()]
    trials = [(path, d) for path in found if path.stat().st_size for d in DAMAGES]
    counts: Counter[tuple[str, bool]] = Counter()
    for path, damage in chance.sample(trials, max(least, round(share * len(trials)))):
        place = work / "damaged"
        shutil.copytree(work / "killed", place)
        damaged = place / path.relative_to(work / "killed")
        damage(damaged, chance, twin_of(path, work / "killed", work / "twin"))
        try:
            sentence = outcome(place, keys, whole)
        except Exception as error:
            raise AssertionError(f"{damage.__name__} of {damaged.relative_to(place)}") from error
        assert not sentence or (sentence.endswith(".") and "\n" not in sentence)
        counts[damage.__name__, bool(sentence)] += 1
        shutil.rmtree(place)
    return counts


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithms", nargs="*", metavar="ALGORITHM")
    parser.add_argument("--share", type=float, default=1.0, help="of all files and damages")
    arguments = parser.parse_args()
    kinds = [damage.__name__ for damage in DAMAGES]
    print(f"| algorithm | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for name in arguments.algorithms or stateful():
        with tempfile.TemporaryDirectory() as work:
            counts = campaign(name, Path(work), arguments.share)
        cells = [f"{counts[kind, False]} same, {counts[kind, True]} refused" for kind in kinds]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
