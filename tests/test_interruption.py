"""Ctrl-C: a run ends after the round under way, with a checkpoint, and continues as if nothing had happened."""

import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from fedapp import client_app, server_app
from fedapp.cli import main
from fedapp.engine import InlineGrid
from fedapp.interruption import Interruption, RunInterruptedError
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from tests.conftest import read_rounds

KEYS: dict[str, Value] = {
    "dataset": "quadratic", "num-rounds": 6, "num-clients": 4, "clients-per-round": 2, "run-name": "run",
}  # fmt: skip


class Signalled(InlineGrid):
    """Raises signals while the clients of a round train."""

    def __init__(self, *given: Any, round_: int, signals: list[int]) -> None:
        super().__init__(*given)
        self.round, self.signals = round_, signals

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        if any(
            "round" in m.content and m.content["round"]["round"] == self.round for m in messages
        ):
            for number in self.signals:
                signal.raise_signal(number)
        return super().send_and_receive(messages, timeout=timeout)


def run(results: Path, signals: list[int], **keys: Value) -> Path:
    values = KEYS | {"results-dir": str(results)} | keys
    config = parse_run_config({key.replace("_", "-"): value for key, value in values.items()})
    grid = Signalled(client_app.app, config.flat(), round_=3, signals=signals)
    return server_app.run(grid, config).path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "scaffold"},
        {"algorithm": "fedcomgate", "compressor": "topk", "error_feedback": True},
        {"algorithm": "fedgate", "downlink": "grid"},
        {"algorithm": "fedavg", "client_optimizer": "adam", "optimizer.state": "keep"},
        {"algorithm": "scaffold", "checkpoint_every": 2},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_an_interrupted_run_continues_to_the_same_bits(
    number: int, keys: dict[str, Value], tmp_path: Path
) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RunInterruptedError) as interrupt:
        run(tmp_path / "one", [number], **keys)
    assert str(interrupt.value) == "Interrupted after round 3 of 6, with a checkpoint"
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    directory = interrupt.value.directory
    assert len(read_rounds(directory)) == 3
    assert (directory / "model.safetensors").is_file()
    run(tmp_path / "one", [], **keys, resume=str(directory))
    other = run(tmp_path / "other", [], **keys)
    ours, theirs = (
        [r | {"wall_seconds": 0, "check": ""} for r in read_rounds(path)]
        for path in (directory, other)
    )
    assert ours == theirs
    model, expected = (load_file(path / "model.safetensors") for path in (directory, other))
    assert all((model[name] == expected[name]).all() for name in expected)


def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as interrupt:
        run(tmp_path, [signal.SIGINT, signal.SIGINT])
    assert not isinstance(interrupt.value, RunInterruptedError)
    assert len(read_rounds(tmp_path / "run")) == 2
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_states_that_cannot_be_written_make_no_checkpoint(tmp_path: Path) -> None:
    class Elsewhere(Signalled):
        def save_states(self, store: object, tags: object) -> bool:
            return False

    config = parse_run_config(KEYS | {"algorithm": "scaffold", "results-dir": str(tmp_path)})
    grid = Elsewhere(client_app.app, config.flat(), round_=3, signals=[signal.SIGINT])
    with pytest.raises(RunInterruptedError, match="without a checkpoint"):
        server_app.run(grid, config)
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if p.name != ".lock") == [
        "config.json", "model.safetensors", "rounds.jsonl",
    ]  # fmt: skip


def test_sigterm_does_not_wait_for_a_long_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedapp.interruption.GRACE", 0.01)
    observer = Interruption(tmp_path, 5, lambda round_: True)
    observer.on_start()
    try:
        with pytest.raises(KeyboardInterrupt):  # a round that would take minutes
            signal.raise_signal(signal.SIGTERM)
            signal.pause()
    finally:
        observer.on_end(None)


@pytest.fixture
def signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make inline runs interrupt themselves in their third round."""

    def grid(app: Any, keys: Any) -> Signalled:
        return Signalled(app, keys, round_=3, signals=[signal.SIGINT])

    monkeypatch.setattr("fedapp.engine.InlineGrid", grid)


def told_command(said: str) -> list[str]:
    """Return the words of the command that an interrupted one ended with."""
    (line,) = [line for line in said.splitlines() if line.startswith("Interrupted")]
    fedapp, *words = shlex.split(line.partition("continue with: ")[2])
    assert fedapp == "fedapp"
    return words


@pytest.mark.usefixtures("signalled")
def test_the_command_that_is_printed_continues_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first file.toml", "second.toml"):
        (tmp_path / name).write_text('algorithm = "scaffold"\ndataset = "quadratic"\n')
    presets = [str(tmp_path / name) for name in ("first file.toml", "second.toml")]
    words = ["--engine", "inline", "-c", "num-rounds=4", "--out", str(tmp_path / "out")]
    assert main(["run", *presets, *words]) == 130
    command = told_command(capsys.readouterr().err)
    assert presets[1] not in command
    monkeypatch.undo()
    assert main(command) == 0
    assert "Continuing after round 3." in capsys.readouterr().out
    (directory,) = (tmp_path / "out").iterdir()
    assert len(read_rounds(directory)) == 4


@pytest.mark.usefixtures("signalled")
def test_a_sweep_continues_when_it_is_started_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = tmp_path / "try.toml"
    preset.write_text('dataset = "quadratic"\nnum-rounds = 4\n[sweep]\nseed = [0, 1, 2]\n')
    words = ["run", str(preset), "--engine", "inline", "--out", str(tmp_path / "out")]
    assert main(words) == 130
    told = capsys.readouterr().err
    assert told_command(told) == words
    assert "round 3 of 4, with a checkpoint; not started: 2 of 3 runs; continue with: " in told
    monkeypatch.undo()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert said.count("Continuing after round 3.") == 1
    assert "Run: try-seed-0, try-seed-1, try-seed-2" in said
    assert not list((tmp_path / "out").glob("*.partial-*"))


@pytest.mark.usefixtures("signalled")
def test_other_presets_are_left_out_however_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    presets = ["./first.toml", "./second.toml"]
    for preset in presets:
        Path(preset).write_text('dataset = "quadratic"\nnum-rounds = 4\n')
    assert main(["run", *presets, "--engine", "inline", "--out", "out"]) == 130
    command = told_command(capsys.readouterr().err)
    assert [word for word in command if word in presets] == presets[:1]
