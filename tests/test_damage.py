"""Damaged files: after `resume` the model is the undisturbed one, or one sentence ends the run. Never anything else.

Every file of the run's directory and of `state-dir`; a byte flipped or zeroed, cut, emptied, deleted, or replaced by
another run's file of the same name.
"""

import io
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapp import client_app, server_app
from fedapp.config import Value, parse_run_config
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.records import read_rounds
from fedapp.registry import ALGORITHMS, keeps_state

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
    if ALGORITHMS[name].network:
        keys |= {"dataset": "digits", "model": "mlp-5", "batch-size": 8}
    if name in ("fedcet", "qsgd"):
        keys["clients-per-round"] = 5
    if name in ("qsgd", "diana", "vrdiana"):
        keys["local-steps"] = 1
    if name == "fedavg":
        keys |= {"compressor": "topk", "error-feedback": True}
    return keys


def stateful() -> list[str]:
    return [name for name in ALGORITHMS if keeps_state(parse_run_config(keys_of(name)))]


class StoppedError(Exception):
    """What ends a run in the middle."""


class InterruptedGrid(InlineGrid):
    """Ends a run before a round."""

    last = 0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
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
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        if until:
            with pytest.raises(StoppedError):
                server_app.run(grid, config)
        else:
            server_app.run(grid, config)
    return load_file(place / "results" / "run" / "model.safetensors")


def flip(path: Path, chance: random.Random, _: Path) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(content))


def zero(path: Path, chance: random.Random, _: Path) -> None:
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content))
    content[start : start + 8] = bytes(len(content[start : start + 8]))
    path.write_bytes(bytes(content))


def truncate(path: Path, chance: random.Random, _: Path) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def empty(path: Path, chance: random.Random, _: Path) -> None:
    path.write_bytes(b"")


def delete(path: Path, chance: random.Random, _: Path) -> None:
    path.unlink()


def swap(path: Path, chance: random.Random, other: Path) -> None:
    states = sorted(path.parent.parent.glob("*/*.safetensors"))  # of other clients, or older
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


@pytest.mark.parametrize("name", stateful())
def test_a_damaged_run_ends_right_or_with_a_sentence(name: str, tmp_path: Path) -> None:
    keys, chance = keys_of(name), random.Random(name)
    whole = run(tmp_path / "whole", keys)
    run(tmp_path / "killed", keys, until=6)
    run(tmp_path / "twin", keys | {"seed": 1}, until=6)
    files = [p for p in sorted((tmp_path / "killed").rglob("*")) if p.is_file()]
    files = [path for path in files if path.stat().st_size]
    trials = [(path, damage) for path in files for damage in DAMAGES]
    every = name in ("scaffold", "fedcomgate", "fedcet")
    trials = chance.sample(trials, len(trials) // 2 if every else 10)
    said = 0
    for number, (path, damage) in enumerate(trials):
        place = tmp_path / str(number)
        shutil.copytree(tmp_path / "killed", place)
        damaged = place / path.relative_to(tmp_path / "killed")
        damage(damaged, chance, twin_of(path, tmp_path / "killed", tmp_path / "twin"))
        try:
            sentence = outcome(place, keys, whole)
        except Exception as error:
            raise AssertionError(f"{damage.__name__} of {damaged.relative_to(place)}") from error
        said += bool(sentence)
        assert "\n" not in sentence
        assert not sentence or sentence.endswith(".")
        shutil.rmtree(place)
    if every:  # the checkpoints rebuild nearly everything
        assert said < len(trials) / 4


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_or_record_of_a_finished_run_is_rebuilt(
    damage: Any, tmp_path: Path
) -> None:
    keys, chance = keys_of("scaffold"), random.Random(0)
    whole = run(tmp_path / "whole", keys)
    run(tmp_path / "twin", keys | {"seed": 1})
    for name in ("model.safetensors", "rounds.jsonl", "config.json"):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "run")
        path = tmp_path / "run" / "results" / "run" / name
        damage(path, chance, tmp_path / "twin" / "results" / "run" / name)
        sentence = outcome(tmp_path / "run", keys, whole)
        assert not sentence or (damage is swap and name == "config.json")


def test_a_damaged_run_without_checkpoints_is_one_sentence(tmp_path: Path) -> None:
    keys = keys_of("fedavg") | {"checkpoint-every": 0}
    run(tmp_path, keys)
    directory = tmp_path / "results" / "run"
    model, rounds = directory / "model.safetensors", directory / "rounds.jsonl"
    before = model.read_bytes()
    model.write_bytes(before[:-1])
    with pytest.raises(
        ConfigError, match=r"model\.safetensors is damaged and the run has no check"
    ):
        run(tmp_path, keys | {"resume": True})
    model.write_bytes(before)
    rounds.write_text(rounds.read_text().replace('"clients": 3', '"clients": 4', 1))
    with pytest.raises(ConfigError, match=r"Line 1 of .*rounds\.jsonl is damaged"):
        run(tmp_path, keys | {"resume": True})


# Directories that are not ours.

FOREIGN: dict[str, dict[str, str]] = {
    "a project": {"config.json": '{"name": "mine"}', ".env": "SECRET=1", ".netrc": "machine x"},
    "a list": {"config.json": "[1, 2]", ".env": "SECRET=1"},
    "broken": {"config.json": '{"config": {', ".env": "SECRET=1"},
    "another tool's": {"config.json": '{"config": {"a": 1}, "versions": {}}', "data.csv": "1,2"},
    "without a config": {"notes.txt": "hello", ".env": "SECRET=1"},
    "someone's rounds": {"rounds.jsonl": '{"round": 1}\n', ".netrc": "machine x"},
}


def contents(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("by_name", [True, False])
def test_a_foreign_directory_is_refused_and_stays_as_it_is(
    kind: str, by_name: bool, tmp_path: Path
) -> None:
    place = tmp_path / "results" / "mine"
    place.mkdir(parents=True)
    for name, text in FOREIGN[kind].items():
        (place / name).write_text(text)
    before = contents(tmp_path)
    resume: dict[str, Value] = {"resume": True, "run-name": "mine"}
    keys = KEYS | (resume if by_name else {"resume": str(place), "run-name": ""})
    config = parse_run_config(keys | {"results-dir": str(tmp_path / "results")})
    with pytest.raises(ConfigError) as refused:
        server_app.run(InlineGrid(client_app.app, config.flat()), config)
    assert str(refused.value).count("\n") == 0
    assert contents(tmp_path) == before


def test_a_sweep_does_not_set_a_foreign_directory_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import run_simulation

    place = tmp_path / "out" / "try-fedavg"
    place.mkdir(parents=True)
    (place / "config.json").write_text('{"name": "mine"}')
    (place / ".env").write_text("SECRET=1")
    preset = tmp_path / "try.toml"
    preset.write_text('dataset = "quadratic"\nnum-rounds = 1\n[sweep]\nalgorithm = ["fedavg"]\n')
    arguments = ["--engine", "inline", str(preset), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["run_simulation.py", *arguments])
    before = contents(tmp_path / "out")
    assert run_simulation.main() == 2
    assert "holds no run of fedapp" in capsys.readouterr().err
    assert contents(tmp_path / "out") == before
