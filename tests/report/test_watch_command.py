"""`fedapp watch`: which run is watched, on a terminal and elsewhere, until it ends."""

import io
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from fedapp.cli import main
from fedapp.errors import ConfigError
from fedapp.report.watch import watch
from tests.conftest import read_rounds
from tests.support.processes import start_simulation
from tests.support.watching import append, begin, read, record, text_of


def test_of_several_runs_the_one_written_to_last_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr("fedapp.report.watch.time.time", lambda: now)
    ages = {"old": 30, "newest": 10, "older": 20, "newest.partial-1": 0}
    for name, age in ages.items():
        run = begin(tmp_path / name, record(1))
        os.utime(run / "rounds.jsonl", (now - age, now - age))
    (tmp_path / "curves.png").touch()
    shown = text_of(read(tmp_path))
    assert "─ newest ─" in shown
    assert "last round 10 s ago" in shown


def test_without_an_argument_the_latest_run_is_shown_and_a_name_is_one_of_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere, results = tmp_path / "elsewhere", tmp_path / "home" / "fedapp-results"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    assert main(["watch"]) == 0
    assert "isnotthereyet" in "".join(capsys.readouterr().out.replace("│", "").split())
    results.mkdir()
    now = time.time()
    for age, name in enumerate(("newest", "older")):
        run = begin(results / name, record(1))
        os.utime(run / "rounds.jsonl", (now - age, now - age))

    def shown(*words: str) -> str:
        assert main(["watch", *words]) == 0
        return " ".join(capsys.readouterr().out.replace("│", "").split())

    assert "─ newest ─" in shown()
    assert "─ older ─" in shown("older")
    assert "(did you mean 'older'?)" in shown("oldr")
    assert "(the latest there is 'newest')" in shown("quite-another")
    assert "─ newest ─" in shown(str(results))
    begin(elsewhere / "older", record(1), record(2))  # what is here comes first
    assert "round 2 of 5" in shown("older")


def test_once_says_what_it_waits_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown() -> str:
        watch(tmp_path / "run", once=True)
        return "".join(capsys.readouterr().out.replace("│", "").split())

    assert f"{tmp_path}/runisnotthereyet." in shown()
    (tmp_path / "run").mkdir()
    assert f"{tmp_path}/runholdsnorunyet." in shown()
    (tmp_path / "run").rmdir()
    begin(tmp_path / "run")
    assert "Noroundsyet." in shown()
    (tmp_path / "run" / "model.safetensors").touch()
    assert "Itendedbeforeitsfirstround." in shown()


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^\S+ cannot be watched: there is no directory \S+\.$"):
        watch(tmp_path / "missing" / "run")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^\S+ cannot be watched: it is a file.*\.$"):
        watch(tmp_path / "file")


def test_what_is_no_terminal_gets_one_plain_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch(begin(tmp_path / "run", record(1)))  # would not end: four rounds are missing
    shown = capsys.readouterr().out
    assert shown.count("round 1 of 5") == 1
    assert "\x1b" not in shown


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in {"TERM": "xterm", "COLUMNS": "160", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    written = Terminal()
    monkeypatch.setattr(sys, "stdout", written)
    return written


def wait_for(what: str, terminal: Terminal) -> None:
    until = time.monotonic() + 600
    while what not in terminal.getvalue():
        assert time.monotonic() < until, f"{what!r} was not shown"
        time.sleep(0.01)


@pytest.mark.parametrize("whole", [True, False])
def test_watching_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    directory, terminal = tmp_path / "run", open_terminal(monkeypatch)
    thread = threading.Thread(target=watch, args=(directory, 0.01), daemon=True)
    thread.start()
    wait_for("is not there yet", terminal)
    begin(directory)
    wait_for("No rounds yet", terminal)
    for k in range(1, 5):
        append(directory, record(k))
        wait_for(f"round {k} of 5", terminal)
    assert thread.is_alive()
    if whole:
        append(directory, record(5))
    else:
        (directory / "model.safetensors").touch()
    thread.join(600)
    assert not thread.is_alive()
    live, left = terminal.getvalue().split("\x1b[?1049l")  # back from the alternate screen
    assert "round 3 of 5" in live
    assert ("round 5 of 5" if whole else "round 4 of 5") in left
    assert ("complete" if whole else "ended before round 5") in left
    assert "test accuracy" in left


def test_a_complete_run_is_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    watch(begin(tmp_path / "run", *map(record, range(1, 6))), every=1e6)
    assert "took 10 s" in terminal.getvalue()
    assert "\x1b[?1049h" not in terminal.getvalue()


def test_a_target_that_is_reached_is_no_early_end(tmp_path: Path) -> None:
    directory = begin(tmp_path / "run", record(1), target_accuracy=0.01)
    (directory / "model.safetensors").touch()
    assert "ended: test accuracy 0.01 is reached" in text_of(read(directory))


def test_an_interrupt_leaves_the_last_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedapp.report.watch.time.sleep", interrupt)
    watch(begin(tmp_path / "run", record(1)))
    assert "round 1 of 5" in terminal.getvalue().split("\x1b[?1049l")[1]


def test_a_real_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = 'dataset="quadratic" num-rounds=4 eval-every=3 run-name="real" quadratic.dim=5'
    words = ["--engine", "inline", "--out", str(tmp_path / "out"), "-c", keys]
    assert start_simulation(tmp_path / "said", words).wait().returncode == 0
    watch(tmp_path / "out", once=True)
    shown = " ".join(capsys.readouterr().out.split())
    last = read_rounds(tmp_path / "out" / "real")[-1]
    assert "fedavg on quadratic, 20 clients" in shown
    assert "round 4 of 4" in shown
    assert "complete" in shown
    assert f"gap {last['gap']:.4g} 4" in shown
    assert f"distance {last['distance']:.4g} 4" in shown
    assert f"train loss {last['train_loss']:.4g} 4" in shown
