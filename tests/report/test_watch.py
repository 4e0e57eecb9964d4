"""The live view of a run, and its figures for TensorBoard."""

import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.report.tensorboard import TensorBoardLog
from fedapp.report.watch import WatchedRun, braille, view, watch
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.processes import start_simulation

ROOT = Path(__file__).parents[2]
NOTHING = "\u2800"


def record(round_: int, **figures: float | None) -> dict[str, Any]:
    """Return a round as a run writes it, with an accuracy of round / 100."""
    common = {"round": round_, "test_loss": 2.0, "test_accuracy": round_ / 100, "train_loss": 1.5}
    sent = {"clients": 5, "failures": 0, "uplink_bytes": 1000, "downlink_bytes": 3000}
    return common | sent | {"wall_seconds": 2.0} | figures


def append(directory: Path, *records: dict[str, Any]) -> None:
    with (directory / "rounds.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in records)


def begin(directory: Path, *records: dict[str, Any], **keys: Value) -> Path:
    """Write a run of five rounds, as far as it is."""
    directory.mkdir()
    config = parse_run_config(kebab({"num_rounds": 5} | keys)).flat()
    (directory / "config.json").write_text(json.dumps({"config": config, "versions": {}}))
    append(directory, *records)
    return directory


def read(place: Path) -> WatchedRun:
    run = WatchedRun(place)
    run.read_new()
    return run


def lines_of(run: WatchedRun, width: int = 100, height: int = 40) -> list[str]:
    """Return the lines of a view, from a console that has room for much wider ones."""
    console = Console(record=True, width=300, file=io.StringIO(), force_terminal=True)
    console.print(view(run, width, height))
    return [line.rstrip(" ") for line in console.export_text().splitlines()]


def text_of(run: WatchedRun, width: int = 100, height: int = 40) -> str:
    """Return a view with single spaces."""
    return " ".join(" ".join(lines_of(run, width, height)).split())


@pytest.mark.parametrize(
    ("xs", "ys", "width", "height", "drawn"),
    [
        ([7], [3], 1, 1, ["⠄"]),
        ([0, 1], [0, 1], 1, 1, ["⡜"]),
        ([0, 1], [1, 0], 2, 1, ["⠑⢄"]),
        ([0, 1, 2], [5, 5, 5], 2, 1, ["⠤⠤"]),
        ([0, 1], [0, 1], 1, 2, ["⢸", "⡇"]),
        ([0, 3, 3], [0, 0, 7], 2, 2, ["⠀⢸", "⣀⣸"]),
        ([], [], 2, 1, [2 * NOTHING]),
    ],
)
def test_braille_draws_lines_between_points(
    xs: list[float], ys: list[float], width: int, height: int, drawn: list[str]
) -> None:
    assert braille(xs, ys, width, height) == drawn


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(finite, finite), min_size=1), st.integers(1, 20), st.integers(1, 9))
def test_braille_fills_its_size(points: list[tuple[float, float]], width: int, height: int) -> None:
    xs, ys = ([point[axis] for point in points] for axis in (0, 1))
    drawn = braille(xs, ys, width, height)
    assert [len(line) for line in drawn] == [width] * height
    assert all(0x2800 <= ord(character) <= 0x28FF for line in drawn for character in line)
    assert any(line.strip(NOTHING) for line in drawn)
    if min(ys) < max(ys):
        assert drawn[0].strip(NOTHING)
        assert drawn[-1].strip(NOTHING)
    if min(xs) < max(xs):
        assert any(line[0] != NOTHING for line in drawn)
        assert any(line[-1] != NOTHING for line in drawn)


def test_half_a_line_is_waited_for(tmp_path: Path) -> None:
    directory = begin(tmp_path / "run", record(1), record(2))
    third = json.dumps(record(3)) + "\n"
    with (directory / "rounds.jsonl").open("a") as file:
        file.write(third[:30])
        file.flush()
        run = read(directory)
        assert "round 2 of 5" in text_of(run)
        file.write(third[30:])
    run.read_new()
    assert run.rounds == [record(1), record(2), record(3)]
    assert "round 3 of 5" in text_of(run)


def test_what_has_not_changed_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = begin(tmp_path / "run", record(1))
    run = read(directory)
    reads = []
    monkeypatch.setattr("fedapp.report.watch.read_run", lambda place: reads.append(place))
    run.read_new()
    assert reads == []
    monkeypatch.undo()
    append(directory, record(2))
    run.read_new()
    assert run.rounds == [record(1), record(2)]


def test_the_view_says_whether_anybody_is_at_work(tmp_path: Path) -> None:
    directory = begin(tmp_path / "run", record(1))
    run = read(directory)
    assert "interrupted, last round" in text_of(run)
    with FileLock(directory / ".lock"):
        run.read_new()
        assert "running, last round" in text_of(run)
        assert not run.ended
    run.read_new()
    assert "interrupted, last round" in text_of(run)
    (directory / "diverged.txt").write_text("no longer finite")
    run.read_new()
    assert "diverged after 1 of 5 rounds" in text_of(run)
    assert run.ended


def test_records_without_the_usual_figures(tmp_path: Path) -> None:
    run = begin(
        tmp_path / "run", {"round": 1}, {"round": 2, "wall_seconds": 1e300, "failures": 1e300}
    )
    assert "round 2 of 5" in text_of(read(run))


def test_a_run_that_begins_anew_is_read_anew(tmp_path: Path) -> None:
    directory = begin(tmp_path / "run", record(1), record(2))
    run = read(directory)
    directory.rename(tmp_path / "run.partial-1")
    run.read_new()
    assert run.round == 2
    begin(directory, record(1, train_loss=9.0), num_rounds=7)
    run.read_new()
    assert run.rounds == [record(1, train_loss=9.0)]
    assert "round 1 of 7" in text_of(run)


def test_a_private_run_shows_what_it_spent_instead_of_a_loss(tmp_path: Path) -> None:
    private = [record(k, train_loss=None, epsilon=k / 4) for k in (1, 2)]
    shown = " ".join(text_of(read(begin(tmp_path / "run", *private))).split())
    assert "epsilon 0.5 2 0.25 1" in shown
    assert "train loss" not in shown
    assert "diverged" not in shown


def test_figures_are_the_last_and_the_best(tmp_path: Path) -> None:
    accuracies = [0.3, 0.5, 0.4]
    records = [record(k, test_accuracy=a, failures=k) for k, a in enumerate(accuracies, 1)]
    shown = text_of(read(begin(tmp_path / "run", *records, algorithm="fedprox")))
    assert "─ run ─" in shown
    assert "fedprox on digits, mlp-200, 20 clients, 5 a round, seed 0" in shown
    assert "round 3 of 5" in shown
    assert "6 s so far, about 4 s left" in shown
    assert "test accuracy 0.4000 3 0.5000 2 uplink 1 kB 3 kB" in shown
    assert "test loss 2 3 2 1 downlink 3 kB 9 kB" in shown
    assert "train loss 1.5 3 1.5 1 clients 5" in shown
    assert "failures 3 6" in shown


def test_rounds_that_were_not_evaluated_and_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    none = {"test_loss": None, "test_accuracy": None}
    records = [record(1, **none), record(2), record(3, **none)]
    directory = begin(tmp_path / "run", records[0], eval_every=2)
    run = read(directory)
    assert "test" not in text_of(run)
    append(directory, *records[1:])
    run.read_new()
    assert "test accuracy 0.0200 2 0.0200 2" in text_of(run)
    assert "diverged" not in text_of(run)
    append(directory, record(4, test_loss=None, train_loss=None))
    run.read_new()
    shown = text_of(run)
    assert "test accuracy 0.0400 4 0.0400 4" in shown
    assert "test loss diverged 4 2 2" in shown
    assert "train loss diverged 4 1.5 1" in shown


def test_a_run_without_any_finite_figure(tmp_path: Path) -> None:
    nothing = dict.fromkeys(("test_loss", "test_accuracy", "train_loss"))
    shown = text_of(read(begin(tmp_path / "run", record(1, **nothing))))
    assert "train loss diverged 1 -" in shown
    assert "┤" not in shown


@pytest.mark.parametrize(
    ("gaps", "log"), [([5.0, 0.04], True), ([5.0, 0.06], False), ([5.0, 0.04, 0.0], False)]
)
def test_a_gap_that_falls_far_is_on_a_log_scale(
    tmp_path: Path, gaps: list[float], log: bool
) -> None:
    records = [record(k, test_accuracy=None, gap=gap) for k, gap in enumerate(gaps, 1)]
    lines = lines_of(read(begin(tmp_path / "run", *records, dataset="quadratic")), width=70)
    title = next(number for number, line in enumerate(lines) if "─ gap" in line)
    assert ("gap, log scale ─" in lines[title]) == log
    assert f"{max(gaps):.4g} ┤" in lines[title + 1]
    below = lines[title + 1 :]
    assert any(f"{min(gaps):.4g} ┤" in line for line in below)
    assert any(f"round {len(gaps)} │" in line for line in below)
    assert "mlp" not in "".join(lines)


def test_a_figure_that_stays_the_same_is_a_line_with_its_label(tmp_path: Path) -> None:
    lines = lines_of(read(begin(tmp_path / "run", record(1), record(2))), width=70)
    losses = "".join(lines).partition("─ train loss ─")[2]
    assert losses.count("1.5 ┤") == 1
    dots = losses.partition("1.5 ┤")[2].partition(" │")[0]
    assert NOTHING not in dots


def test_accuracy_is_never_on_a_log_scale(tmp_path: Path) -> None:
    run = begin(tmp_path / "run", record(1, test_accuracy=0.001), record(2, test_accuracy=0.9))
    assert "log scale" not in text_of(read(run))


@pytest.mark.parametrize(("width", "height"), [(60, 30), (80, 24), (140, 40)])
def test_a_view_fits_its_size(tmp_path: Path, width: int, height: int) -> None:
    figures = {"gap": 1.234e-12, "objective": 0.00012345, "squared_gradient": 1.234e-15}
    records = [record(k, uplink_bytes=123_456_789, **figures) for k in range(1, 1235)]
    name = "a-name-of-a-run-of-a-sweep-with-some-axes-and-long-values-lr-0.001-seed-1"
    run = read(begin(tmp_path / name, *records, num_rounds=2000, algorithm="fedbcgd"))
    lines = lines_of(run, width, height)
    assert {cell_len(line) for line in lines} == {width}
    assert len(lines) <= height
    titles = [line for line in lines if "test accuracy ─" in line]
    assert ("train loss ─" in titles[0]) == (width >= 80)
    shown = text_of(run, width, height)
    assert "train loss ─" in shown or width < 80
    assert "1.23e-15 1234 1.23e-15 1" in shown
    assert "152 GB" in shown
    # On a console of just this size nothing is folded.
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(view(run, width, height))
    assert [cell_len(line) for line in console.export_text().splitlines()] == [width] * len(lines)


def test_curves_that_do_not_fit_below_each_other_are_left_out(tmp_path: Path) -> None:
    run = read(begin(tmp_path / "run", record(1), record(2)))
    assert "train loss ─" in text_of(run, 60, 40)
    lines = lines_of(run, 60, 24)
    assert len(lines) <= 24
    assert "test accuracy ─" in "".join(lines)
    assert "train loss ─" not in "".join(lines)


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


def test_tensorboard_holds_what_was_written(tmp_path: Path) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the extra tensorboard is not installed",
    )
    log = TensorBoardLog(tmp_path)
    log.on_start()
    records = [
        record(1, test_accuracy=None, gap=1e-9, uplink_bytes=5),
        record(2, test_accuracy=0.5, gap=float("nan"), uplink_bytes=7),
        record(4, test_accuracy=0.75, gap=1e-12, uplink_bytes=None),
    ]
    for line in records:
        log.on_round(line)

    def read_back() -> dict[str, list[tuple[int, float]]]:
        events = accumulators.EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
        return {
            tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]
        }

    found = read_back()
    log.on_end(None)
    assert found == read_back()  # all was there before the end
    figures = set(records[0]) - {"round"}
    totals = {"total/uplink_bytes", "total/downlink_bytes"}
    assert set(found) == {f"round/{name}" for name in figures} | totals
    assert found["round/test_accuracy"] == [(2, 0.5), (4, 0.75)]
    assert found["round/uplink_bytes"] == [(1, 5), (2, 7)]
    gaps = dict(found["round/gap"])
    assert gaps == pytest.approx({1: 1e-9, 4: 1e-12}, rel=1e-6, abs=0)
    assert found["round/clients"] == [(1, 5), (2, 5), (4, 5)]
    assert found["total/uplink_bytes"] == [(1, 5), (2, 12), (4, 12)]
    assert found["total/downlink_bytes"] == [(1, 3000), (2, 6000), (4, 9000)]


def test_tensorboard_that_is_missing_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        ConfigError, match=r"needs the package: pip install 'fedapp\[tensorboard\]'"
    ):
        TensorBoardLog(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_run_logs_to_tensorboard_when_asked(run_inline: RunInline) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    directory = run_inline(dataset="quadratic", num_rounds=3, tensorboard=True)
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    logged = [event.value for event in events.Scalars("round/gap")]
    assert logged == pytest.approx([r["gap"] for r in read_rounds(directory)], rel=1e-6)
    assert not (run_inline(dataset="quadratic", num_rounds=1) / "tensorboard").exists()
