"""The live view of a run: what it reads, what it shows, and that it fits its size."""

import io
import json
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from fedapp.files import seal
from fedapp.report.watch import braille, view
from tests.support.watching import append, begin, lines_of, read, record, text_of

NOTHING = "\u2800"


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


def test_a_problem_of_a_newer_version_is_shown_with_its_model(tmp_path: Path) -> None:
    run = read(begin(tmp_path / "run", record(1)))
    run.config["problem"] = "of-tomorrow"
    assert "fedavg on digits, mlp-200, " in text_of(run)


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


def test_the_view_says_why_a_run_failed(tmp_path: Path) -> None:
    for rounds in ([], [record(1)]):
        directory = begin(tmp_path / f"run-{len(rounds)}", *rounds)
        (directory / "failed.txt").write_text(seal({"message": "no node", "run": directory.name}))
        run = read(directory)
        assert f"failed after {len(rounds)} of 5 rounds: no node" in text_of(run)
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
    assert "train loss 1.5 3 1.5 1 total 4 kB 12 kB" in shown
    assert "clients 5" in shown
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
