"""What runs are worth: their status, which are replicates, and how tables and curves label the others."""

from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from fedapp.files import seal
from fedapp.report.labels import labelled
from fedapp.report.page import write_report
from fedapp.report.runs import best_per, load_runs
from fedapp.report.status import State, Status
from tests.support.commands import Fedapp
from tests.support.reports import accuracy, embedded, texts, write_run


def test_a_run_s_status(tmp_path: Path) -> None:
    write_run(tmp_path, "done", accuracy(0.1, 0.2))
    write_run(tmp_path, "reached", accuracy(0.1, 0.6), num_rounds=9, target_accuracy=0.5)
    for name in ("stopped", "working", "gone"):
        write_run(tmp_path, name, accuracy(0.1, 0.2), num_rounds=5)
    (tmp_path / "gone" / "diverged.txt").write_text("in round 3")
    (tmp_path / "stopped" / ".lock").touch()
    with FileLock(tmp_path / "working" / ".lock"):
        runs = {run.name: run.status for run in load_runs([tmp_path])}
    assert {name: status.text for name, status in runs.items()} == {
        "done": "complete",
        "reached": "complete",
        "stopped": "interrupted after 2 of 5 rounds",
        "working": "running, 2 of 5 rounds",
        "gone": "diverged after 2 of 5 rounds",
    }
    (run,) = load_runs([tmp_path / "working"])
    assert run.status.state is State.INTERRUPTED


def test_a_failed_run_says_why(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = {
        "failed": {"message": "too few\n answer: see\x1b[2J above.", "run": "failed"},
        "other": {"message": "too few", "run": "another"},
        "complete": {"message": "too few", "run": "complete"},
    }
    for name, note in notes.items():
        write_run(tmp_path, name, accuracy(0.1, 0.2), num_rounds=2 if name == "complete" else 5)
        (tmp_path / name / "failed.txt").write_text(seal(note))
    write_run(tmp_path, "damaged", accuracy(0.1), num_rounds=5)
    (tmp_path / "damaged" / "failed.txt").write_text(seal(notes["failed"])[:-20])
    runs = {run.name: run.status for run in load_runs([tmp_path])}
    assert {name: status.text for name, status in runs.items()} == {
        "complete": "complete",
        "damaged": "interrupted after 1 of 5 rounds",
        "failed": "failed after 2 of 5 rounds: too few answer: see?[2J above",
        "other": "interrupted after 2 of 5 rounds",
    }
    assert len(Status(State.FAILED, 1, 5, "word " * 99).text) < 100
    assert command("table", tmp_path) == 0
    assert "(failed after 2 of 5 rounds: too few answer" in capsys.readouterr().out
    write_report(load_runs([tmp_path]), tmp_path / "page.html")
    run = next(run for run in embedded(tmp_path / "page.html")["runs"] if run["name"] == "failed")
    assert (run["state"], run["note"]) == ("failed", runs["failed"].text)


def test_asking_for_the_status_leaves_a_run_free(tmp_path: Path) -> None:
    write_run(tmp_path, "stopped", accuracy(0.1), num_rounds=5)
    load_runs([tmp_path])
    assert not (tmp_path / "stopped" / ".lock").exists(), "looking writes nothing"
    with FileLock(tmp_path / "stopped" / ".lock", timeout=0):
        pass


def write_mixed(parent: Path) -> None:
    """Three seeds, of which one was interrupted when it was best; and one seed a second time."""
    write_run(parent, "x-avg-seed-0", accuracy(0.2, 0.4), seed=0)
    write_run(parent, "x-avg-seed-1", accuracy(0.4, 0.6), seed=1)
    write_run(parent, "x-avg-seed-1-again", accuracy(0.4, 0.6), seed=1, results_dir="/elsewhere")
    write_run(parent, "x-avg-seed-2", accuracy(0.9), seed=2, num_rounds=2)
    write_run(parent, "x-prox", accuracy(0.3, 0.55), algorithm="fedprox")


LABELS = [
    "FedAvg (2 of 3 seeds complete)",
    "FedAvg, seed = 1 (same config and seed as x-avg-seed-1)",
    "FedAvg, seed = 2 (interrupted after 1 of 2 rounds)",
    "FedProx",
]


def test_replicates_are_complete_runs_with_different_seeds(tmp_path: Path) -> None:
    write_mixed(tmp_path)
    groups = labelled(load_runs([tmp_path]))
    assert [name for name, _ in groups] == LABELS
    assert [run.name for run in groups[0][1]] == ["x-avg-seed-0", "x-avg-seed-1"]


def test_replicates_may_differ_in_where_and_how_long_they_waited(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [
        {}, {"node_timeout": 5.0}, {"require_all_clients": "no"}, {"device": "auto"},
        {"node_partitions": "7=0"},
    ]  # fmt: skip
    for seed, keys in enumerate(others):
        write_run(tmp_path, f"seed-{seed}", accuracy(0.5), seed=seed, **keys)
    write_run(tmp_path, "fewer", accuracy(0.5), seed=9, round_timeout=1.0)
    groups = labelled(load_runs([tmp_path]))
    assert sorted(len(group) for _, group in groups) == [1, len(others)]


def test_runs_with_the_same_seed_are_no_replicates(tmp_path: Path, command: Fedapp) -> None:
    for name in ("one", "two"):
        write_run(tmp_path, name, accuracy(0.2, 0.4), seed=7)
    assert [(name, len(group)) for name, group in labelled(load_runs([tmp_path]))] == [
        ("FedAvg, one", 1),
        ("FedAvg, two (same config and seed as one)", 1),
    ]
    picture = tmp_path / "plot.svg"
    assert command("plot", tmp_path, "-x", "rounds", "-o", picture) == 0
    assert {"FedAvg, one", "FedAvg, two (same config and seed as one)"} <= set(texts(picture))


def test_other_data_under_the_same_name_are_not_averaged(tmp_path: Path) -> None:
    for seed, place in enumerate(("/site-a", "/site-b")):
        write_run(
            tmp_path / "own", f"s-{seed}", accuracy(0.5), dataset="scans", data_dir=place, seed=seed
        )
        write_run(
            tmp_path / "mnist",
            f"s-{seed}",
            accuracy(0.5),
            dataset="mnist",
            data_dir=place,
            seed=seed,
        )
    assert len(labelled(load_runs([tmp_path / "own"]))) == 2
    assert len(labelled(load_runs([tmp_path / "mnist"]))) == 1


def test_tables_and_curves_label_what_is_not_complete(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mixed(tmp_path / "runs")
    assert command("table", tmp_path / "runs") == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [cells[0] for cells in lines[:4]] == [f"| {label}" for label in LABELS]
    assert lines[0][1:3] == ["2", "0.5000 ± 0.1414"]
    picture = tmp_path / "plot.svg"
    assert command("plot", tmp_path / "runs", "-x", "rounds", "-o", picture) == 0
    assert set(LABELS) <= set(texts(picture))
    assert "mean ± standard deviation over 2 seeds, where there is a band" in texts(picture)
    write_report(load_runs([tmp_path / "runs"]), tmp_path / "page.html")
    data = embedded(tmp_path / "page.html")
    assert [
        f"{g['label']} ({g['note']})" if g["note"] else g["label"] for g in data["groups"]
    ] == LABELS
    assert [run["note"] for run in data["runs"]] == [
        "", "", "same config and seed as x-avg-seed-1", "interrupted after 1 of 2 rounds", "",
    ]  # fmt: skip


def test_an_interrupted_run_is_not_the_best_setting(tmp_path: Path) -> None:
    write_run(tmp_path, "good", accuracy(0.5, 0.6), lr=0.1)
    write_run(tmp_path, "lucky", accuracy(0.9), lr=0.2, num_rounds=2)
    write_run(tmp_path, "alone", accuracy(0.3), algorithm="fedprox", num_rounds=2)
    kept = best_per(load_runs([tmp_path]), ["algorithm"])
    assert {run.name for run in kept} == {"good", "alone"}


def test_a_map_over_seeds_has_a_cell_for_each(tmp_path: Path, command: Fedapp) -> None:
    tops = {(0.1, 0): 0.11, (0.1, 1): 0.22, (0.2, 0): 0.33, (0.2, 1): 0.44}
    for (lr, seed), top in tops.items():
        write_run(tmp_path / "runs", f"{lr}-{seed}", accuracy(0.01, top), lr=lr, seed=seed)
    picture = tmp_path / "grid.svg"
    for axes in (("lr", "seed"), ("seed", "lr")):
        assert command("grid", tmp_path / "runs", "-x", axes[0], "-y", axes[1], "-o", picture) == 0
        assert {"0.110", "0.220", "0.330", "0.440"} <= set(texts(picture))
    assert command("grid", tmp_path / "runs", "-x", "lr", "-y", "algorithm", "-o", picture) == 0
    assert {"0.165", "0.385"} <= set(texts(picture))


def test_a_map_marks_what_is_not_complete(tmp_path: Path, command: Fedapp) -> None:
    runs = tmp_path / "runs"
    write_run(runs, "a", accuracy(0.1, 0.2), lr=0.1, seed=0)
    write_run(runs, "b", accuracy(0.9), lr=0.1, seed=1, num_rounds=2)
    write_run(runs, "c", accuracy(0.3), lr=0.2, num_rounds=2)
    write_run(runs, "d", {}, lr=0.3, num_rounds=2)
    (runs / "d" / "diverged.txt").touch()
    write_run(runs, "e", accuracy(0.1, 0.4), lr=0.4)
    picture = tmp_path / "grid.svg"
    assert command("grid", runs, "-x", "lr", "-y", "algorithm", "-o", picture) == 0
    shown = texts(picture)
    assert {"0.200*", "0.300*", "diverged", "0.400"} <= set(shown)
    whole = " ".join(shown)
    for run in (
        "b: interrupted after 1 of 2",
        "c: interrupted after 1",
        "d: diverged after 0 of 2",
    ):
        assert run in whole
