"""Observers of a run: when they are called, and what each of them does on its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapp import building, client_app
from fedapp.attendance import Attendance
from fedapp.building import make_strategy
from fedapp.checkpoint import Checkpoints, CheckpointWriter
from fedapp.config import RunConfig
from fedapp.console import RunConsole
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, DivergedError, RunError
from fedapp.figures import COLUMNS
from fedapp.hosting import Hosting
from fedapp.manifest import read_manifest
from fedapp.observers import Observer, ResultsWriter, ending
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.progress import diverged_since, progress_of
from fedapp.report.runs import read_run
from fedapp.report.status import State, Status
from fedapp.rounds import run_rounds
from fedapp.rounds_file import Record
from fedapp.run_directory import RunDirectory
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds


class Diary(Observer):
    """Writes down what it is called with."""

    def __init__(self, name: str = "", fails_in: str = "") -> None:
        self.name, self.fails_in = name, fails_in
        self.lines: list[str] = []

    def note(self, method: str, told: object = "") -> None:
        self.lines.append(f"{self.name}{method} {told}".strip())
        if method == self.fails_in:
            raise OSError(f"{self.name} failed")

    def on_start(self) -> None:
        self.note("start")

    def on_nodes(self, hosting: Hosting, deployed: bool) -> None:
        self.note("nodes", f"{len(hosting.clients)} of {hosting.num_clients}, {deployed}")

    def on_round(self, record: Record) -> None:
        self.note("round", record["round"])

    def on_end(self, error: BaseException | None) -> None:
        self.note("end", repr(error))


def config_of(**keys: Value) -> RunConfig:
    small: dict[str, Value] = {"dataset": "quadratic", "num_rounds": 3, "num_clients": 4}
    return parse_run_config(kebab(small | {"clients_per_round": 2} | keys))


def rounds_of(config: RunConfig, *observers: Observer) -> list[Record]:
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = InlineGrid(client_app.app, config.flat())
    return list(run_rounds(grid, strategy, problem, config, observers=observers))


def record(round_: int, **figures: float | None) -> Record:
    """Return a record as the loop makes it."""
    common: Record = dict.fromkeys(COLUMNS)
    sent = {"clients": 2, "failures": 0, "uplink_bytes": 1500, "downlink_bytes": 3000}
    return common | {"round": round_, "wall_seconds": 0.5} | sent | figures


# When they are called.


def test_observers_see_the_start_the_nodes_each_round_and_the_end() -> None:
    diary = Diary()
    rounds_of(config_of(), diary)
    expected = ["start", "nodes 4 of 4, False", "round 1", "round 2", "round 3", "end None"]
    assert diary.lines == expected


def test_observers_are_called_in_their_order() -> None:
    first, second = Diary("first "), Diary("second ")
    first.lines = second.lines
    rounds_of(config_of(num_rounds=1), first, second)
    calls = [line.split()[:2] for line in second.lines]
    methods = ("start", "nodes", "round", "end")
    assert calls == [[who, method] for method in methods for who in ("first", "second")]


def test_a_run_that_cannot_start_shows_its_nodes_and_ends() -> None:
    class Deserted(InlineGrid):
        def get_node_ids(self) -> list[int]:
            return []

    config, diary = config_of(node_timeout=0.01), Diary()
    problem = make_problem(config)
    grid = Deserted(client_app.app, config.flat())
    strategy = make_strategy(config, problem)
    with pytest.raises(RunError):
        list(run_rounds(grid, strategy, problem, config, observers=[diary]))
    assert diary.lines[:2] == ["start", "nodes 0 of 4, False"]
    assert diary.lines[2].startswith("end RunError(")


def test_an_interrupted_run_ends_with_the_interruption() -> None:
    class Impatient(Diary):
        def on_round(self, record: Record) -> None:
            super().on_round(record)
            raise KeyboardInterrupt

    diary = Impatient()
    with pytest.raises(KeyboardInterrupt):
        rounds_of(config_of(), diary)
    assert diary.lines[-2:] == ["round 1", "end KeyboardInterrupt()"]


@pytest.mark.parametrize("fails_in", ["start", "nodes", "round", "end"])
def test_an_observer_that_fails_does_not_keep_the_others_from_ending(fails_in: str) -> None:
    observers = [Diary("a"), Diary("b", fails_in), Diary("c")]
    with pytest.raises(OSError, match="b failed"):
        rounds_of(config_of(), *observers)
    assert [diary.lines[-1].partition(" ")[0] for diary in observers] == ["aend", "bend", "cend"]
    assert "b failed" in observers[2].lines[-1]


def test_the_end_of_a_block_without_an_error() -> None:
    diary = Diary()
    with ending([diary]):
        assert diary.lines == []
    assert diary.lines == ["end None"]


# What each of them does.


def status(directory: Path) -> Status:
    return read_run(directory).status


def model() -> dict[str, Any]:
    return {"x": np.arange(3.0)}


def test_results_are_written_after_each_round_and_at_the_end(tmp_path: Path) -> None:
    config = config_of(results_dir=str(tmp_path), run_name="run", num_rounds=2)
    with RunDirectory(config) as directory:
        writer = ResultsWriter(directory, model)
        writer.on_start()
        for round_ in (1, 2):
            writer.on_round(record(round_, gap=0.5, test_loss=float("nan")))
            assert len(read_rounds(directory.path)) == round_
            assert not (directory.path / "model.safetensors").exists()
        writer.on_end(None)
    assert read_rounds(directory.path)[1] == record(2, gap=0.5)  # what is not finite is null
    np.testing.assert_array_equal(
        load_file(directory.path / "model.safetensors")["x"], model()["x"]
    )
    manifest = read_manifest(directory.path)
    assert progress_of(directory.path, manifest, config).complete
    assert diverged_since(directory.path, manifest) is None


def test_a_divergence_is_noted_and_the_model_written(tmp_path: Path) -> None:
    config = config_of(results_dir=str(tmp_path), run_name="run", num_rounds=2)
    with RunDirectory(config) as directory:
        writer = ResultsWriter(directory, model)
        writer.on_round(record(1))
        writer.on_end(DivergedError("too far", since=1))
    assert diverged_since(directory.path, read_manifest(directory.path)) == 1
    assert (directory.path / "model.safetensors").exists()


def test_an_error_is_noted_until_the_run_goes_on(
    tmp_path: Path, run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, Value] = {
        "run_name": "run", "num_rounds": 2, "partition": "dirichlet", "max_examples": 60,
        "round_retries": 0,
    }  # fmt: skip
    with pytest.raises(RunError, match="min-clients = 5 updates in its only attempt: the log"):
        run_inline(**keys, min_clients=5)
    directory = tmp_path / "run"
    assert "fewer than min-clients = 5" in status(directory).reason
    (directory / f".failed.txt-{'0' * 32}").mkdir()  # a process was killed as it wrote the note

    def stop(*_: object) -> None:
        assert status(directory).state is State.RUNNING
        raise KeyboardInterrupt

    monkeypatch.setattr(ResultsWriter, "on_round", stop)
    with pytest.raises(KeyboardInterrupt):
        run_inline(**keys, resume=True)
    assert status(directory).state is State.INTERRUPTED
    assert not list(directory.glob("*failed*"))
    monkeypatch.setattr(ResultsWriter, "on_start", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run_inline(**keys, resume=True)
    assert status(directory).text == (
        "failed after 0 of 2 rounds: ZeroDivisionError: division by zero"
    )
    monkeypatch.undo()
    run_inline(**keys, resume=True)
    assert status(directory).complete
    assert not (directory / "failed.txt").exists()


def test_an_error_before_the_first_round_is_noted(
    tmp_path: Path, run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("Nothing fits: choose something else.")

    monkeypatch.setattr(building, "make_strategy", refuse)
    with pytest.raises(ConfigError):
        run_inline(run_name="run")
    assert status(tmp_path / "run").reason == "Nothing fits: choose something else."


def test_checkpoints_are_written_when_they_are_due(tmp_path: Path) -> None:
    config = config_of(num_rounds=5)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    checkpoints = Checkpoints(tmp_path, "run", config.flat())
    asked: list[int] = []

    def rounds_text() -> str:
        asked.append(len(asked))
        return "the rounds"

    writer = CheckpointWriter(checkpoints, strategy, 2, rounds_text)
    for round_ in range(1, 6):
        writer.on_round(record(round_))
    writer.on_end(None)
    assert [path.name for path in checkpoints.paths()] == [
        "round-0000004.safetensors",
        "round-0000002.safetensors",
    ]
    assert len(asked) == 2
    restored = checkpoints.restore(make_strategy(config, problem))
    assert (restored.round, restored.rounds) == (4, "the rounds")


@pytest.mark.parametrize(("width", "shown"), [(200, 3), (80, 1), (20, 1)])
def test_a_round_is_one_line_on_a_narrow_terminal(
    width: int, shown: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = RunConsole(config_of(), tmp_path, 10)
    with console.console.capture() as told:
        console.on_round(record(1, test_accuracy=0.5, test_loss=2.0, train_loss=1.25))
    line = told.get().splitlines()[0]
    assert sum(name in line for name in ("test accuracy", "test loss", "train loss")) == shown
    assert width == 20 or len(line) <= width
    assert "up 1.5 kB" in line


def test_the_console_shows_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    attendance = Attendance(4)
    attendance.took_part([0, 2])
    hosting = Hosting(4)
    console = RunConsole(config_of(), Path("results/run"), 20, ["A note."], attendance)
    console.on_start()
    console.on_nodes(hosting, deployed=False)
    console.on_round(record(1, gap=0.25, train_loss=2.0))
    console.on_round(record(2, train_loss=1.5, failures=1))
    console.on_round(record(3, gap=0.5, train_loss=1.0, epsilon=3.0))
    console.on_end(None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Run run: fedavg on quadratic (20 parameters), 4 clients, 2 a round")
    assert lines[1:4] == ["A note.", "Results: results/run", "0 of 4 clients have a node"]
    assert lines[4:7] == [
        "round 1/3  gap 0.25  train loss 2  clients 2  up 1.5 kB  down 3 kB  0.5 s",
        "round 2/3  not evaluated  train loss 1.5  clients 2 (1 failed)  up 1.5 kB  down 3 kB  0.5 s",
        "round 3/3  gap 0.5  train loss 1  epsilon 3  clients 2  up 1.5 kB  down 3 kB  0.5 s",
    ]
    summary = {line[:18].strip(): line[18:].strip() for line in lines[7:-1]}
    assert summary["rounds"] == "3"
    assert summary["gap"] == "best 0.25, last 0.5"
    assert (summary["uplink"], summary["failed clients"]) == ("4.5 kB", "1")
    assert summary["took part"] == "2 of 4 clients, once"


def test_a_terminal_obeys_nothing_in_a_directory_s_name(capsys: pytest.CaptureFixture[str]) -> None:
    directory = Path("results") / "\x1b]0;title\x07\x1b[31mrun"
    attendance = Attendance(4)
    attendance.took_part([0, 2])
    console = RunConsole(config_of(), directory, 20, [f"In {directory}."], attendance)
    console.on_start()
    console.on_round(record(1, gap=0.25))
    console.on_end(None)
    shown = capsys.readouterr().out
    assert shown.count("?]0;title??[31mrun") == 4  # header, note, results before and after
    assert "\x1b" not in shown
    assert "\x07" not in shown


def test_the_console_of_a_run_without_rounds_has_no_summary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = RunConsole(config_of(), Path("run"), 20)
    console.on_start()
    console.on_end(RunError("no nodes"))
    assert "rounds  " not in capsys.readouterr().out
