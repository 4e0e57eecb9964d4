"""What runs are worth: their status, which are replicates, and records that nobody should trust."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pytest
from filelock import FileLock
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedapp import wire
from fedapp.errors import ConfigError
from fedapp.names import is_file_name, one_line
from fedapp.parsing import parse_run_config
from fedapp.report.page import write_report
from fedapp.report.runs import best_per, load_runs, over_seeds
from fedapp.report.status import State
from tests.support.commands import fedapp
from tests.support.reports import embedded, write_run

Fedapp = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Fedapp:
    """Return a function that runs `fedapp`, whose pictures hold their text as text."""
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    return lambda *words: fedapp(monkeypatch, *map(str, words))


def texts(picture: Path) -> list[str]:
    """Return the texts in an SVG picture."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(), re.S)
    return [re.sub(r"<[^>]*>", "", text) for text in found]


def accuracy(*values: float) -> dict[str, list[float]]:
    return {"test_accuracy": list(values)}


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
    "avg (2 of 3 seeds complete)",
    "avg-seed-1-again (same config and seed as x-avg-seed-1)",
    "avg-seed-2 (interrupted after 1 of 2 rounds)",
    "prox",
]


def test_replicates_are_complete_runs_with_different_seeds(tmp_path: Path) -> None:
    write_mixed(tmp_path)
    groups = over_seeds(load_runs([tmp_path]))
    assert [name for name, _ in groups] == LABELS
    assert [run.name for run in groups[0][1]] == ["x-avg-seed-0", "x-avg-seed-1"]


def test_runs_with_the_same_seed_are_no_replicates(tmp_path: Path, command: Fedapp) -> None:
    for name in ("one", "two"):
        write_run(tmp_path, name, accuracy(0.2, 0.4), seed=7)
    assert [(name, len(group)) for name, group in over_seeds(load_runs([tmp_path]))] == [
        ("one", 1),
        ("two (same config and seed as one)", 1),
    ]
    picture = tmp_path / "plot.svg"
    assert command("plot", tmp_path, "-x", "rounds", "-o", picture) == 0
    assert {"one", "two (same config and seed as one)"} <= set(texts(picture))


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
    assert len(over_seeds(load_runs([tmp_path / "own"]))) == 2
    assert len(over_seeds(load_runs([tmp_path / "mnist"]))) == 1


def test_tables_and_curves_label_what_is_not_complete(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mixed(tmp_path / "runs")
    assert command("table", tmp_path / "runs") == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [cells[0] for cells in lines] == [f"| {label}" for label in LABELS]
    assert lines[0][1] == "0.5000 (0.4000 to 0.6000)"
    picture = tmp_path / "plot.svg"
    assert command("plot", tmp_path / "runs", "-x", "rounds", "-o", picture) == 0
    assert set(LABELS) <= set(texts(picture))
    write_report(load_runs([tmp_path / "runs"]), tmp_path / "page.html")
    data = embedded(tmp_path / "page.html")
    assert [
        f"{g['name']} ({g['note']})" if g["note"] else g["name"] for g in data["groups"]
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


HOSTILE = [
    "\x1b[31mred\x1b]0;title\x07",
    "[/bold]",
    "$x$ and $\\nonsense{$",
    "_hidden",
    "a|b",
    "line\nbreak",
    "\udcff undecodable",
]


def test_hostile_names_of_directories_are_shown_as_text(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(HOSTILE):
        keys = {"lr": 0.1 + number, "model": "\x1b[2Jmodel", "dataset": "d"}
        write_run(tmp_path / "runs", name, accuracy(0.1, 0.2), lr=0.1 + number)
        file = tmp_path / "runs" / name / "config.json"
        facts = json.loads(file.read_text())
        facts["config"] |= keys | {"run-name": "x"}
        file.write_text(json.dumps(facts))
    picture = tmp_path / "p.svg"
    assert command("table", tmp_path / "runs") == 0
    assert command("plot", tmp_path / "runs", "-x", "rounds", "-o", picture) == 0
    legend = "".join(texts(picture))
    assert "_hidden" in legend
    assert "$x$ and $" in legend
    assert command("grid", tmp_path / "runs", "-x", "lr", "-y", "model", "-o", picture) == 0
    assert command("report", tmp_path / "runs", "-o", tmp_path / "page.html") == 0
    for name in HOSTILE:
        assert command("watch", tmp_path / "runs" / name, "--once") == 0
    assert command("table", tmp_path / "runs" / HOSTILE[0] / "nothing") == 2
    shown = capsys.readouterr()
    for text in (shown.out, shown.err, (tmp_path / "page.html").read_text()):
        assert not {c for c in text if not c.isprintable()} - {"\n"}
    assert "a\\|b" in shown.out, "a bar in a name is no cell"
    assert "?[31mred" in shown.out


GOOD = {"round": 1, "test_accuracy": 0.5, "uplink_bytes": 10}
DAMAGE = {
    "huge": '{"round": 1, "uplink_bytes": 1' + 400 * "0" + "}",
    "longer than Python reads": '{"round": 1, "uplink_bytes": 1' + 5000 * "0" + "}",
    "huge round": '{"round": 1' + 400 * "0" + "}",
    "no round": '{"test_accuracy": 0.5}',
    "a list": "[1, 2]",
    "a number": "3",
    "nested": 20000 * "[" + 20000 * "]",
    "no JSON": '{"round": 1,',
    "round 0": '{"round": 0}',
    "twice": '{"round": 1}\n{"round": 1}',
    "half a round": '{"round": 1.5}',
    "yes": '{"round": true}',
}


def every_command(path: Path, out: Path) -> list[list[object]]:
    return [
        ["table", path],
        ["plot", path, "-x", "bytes", "-o", out / "p.png"],
        ["grid", path, "-x", "lr", "-y", "seed", "-o", out / "g.png"],
        ["report", path, "-o", out / "r.html"],
        ["watch", path, "--once"],
    ]


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_rounds_are_one_sentence_that_names_the_file(
    how: str, tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "bad", accuracy(0.5))
    file = tmp_path / "bad" / "rounds.jsonl"
    file.write_text(DAMAGE[how] + "\n")
    for words in every_command(tmp_path / "bad", tmp_path):
        assert command(*words) == 2
        told = capsys.readouterr().err.strip()
        assert str(file) in told
        assert "\n" not in told


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num-rounds", 10**400),
        ("num-rounds", "many"),
        ("seed", None),
        ("algorithm", ["fedavg"]),
        ("target-accuracy", math.nan),
        ("eval-every", 0),
    ],
)
def test_a_damaged_config_is_one_sentence(
    key: str, value: object, tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "bad", accuracy(0.5))
    file = tmp_path / "bad" / "config.json"
    facts = json.loads(file.read_text())
    for content in (
        json.dumps({"config": facts["config"] | {key: value}}),
        "[]",
        "{",
        '{"config": 3}',
    ):
        file.write_text(content)
        for words in every_command(tmp_path / "bad", tmp_path):
            assert command(*words) == 2
            told = capsys.readouterr().err.strip()
            assert str(file) in told
            assert "\n" not in told


def test_a_damaged_run_does_not_hide_the_others(
    tmp_path: Path,
    command: Fedapp,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_run(tmp_path / "runs", "bad", accuracy(0.5))
    (tmp_path / "runs" / "bad" / "rounds.jsonl").write_text(DAMAGE["huge"] + "\n")
    write_run(tmp_path / "runs", "good", accuracy(0.5))
    for words in every_command(tmp_path / "runs", tmp_path)[:4]:
        caplog.clear()
        assert command(*words) == 0
        (told,) = [m for m in caplog.messages if "bad/rounds.jsonl" in m]
        assert "uplink_bytes in line 1 is too large for a number" in told


def test_odd_figures_are_no_figures(tmp_path: Path, command: Fedapp) -> None:
    """NaN, Infinity, text, lists, and numbers at the end of their range, among good ones."""
    write_run(tmp_path / "runs", "odd", accuracy(0.5))
    lines = [
        '{"round": 1, "test_accuracy": NaN, "uplink_bytes": 5, "gap": 1e308}',
        '{"round": 2, "test_accuracy": Infinity, "uplink_bytes": "5", "gap": 1e308}',
        '{"round": 3, "test_accuracy": [0.5], "uplink_bytes": {"a": 1}, "gap": -1e308}',
        '{"round": 4, "test_accuracy": true, "uplink_bytes": null}',
        '{"round": 5, "test_accuracy": 0.25, "wall_seconds": 1e308, "failures": 1e308}',
        '{"round": 6, "test_accuracy": 0.5, "wall_seconds": 1e308, "downlink_bytes": 1e308}',
    ]
    (tmp_path / "runs" / "odd" / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    (run,) = load_runs([tmp_path / "runs"])
    assert run.column("test_accuracy") == [None, None, None, None, 0.25, 0.5]
    assert run.running_total("uplink_bytes")[-1] == 5
    for words in every_command(tmp_path / "runs", tmp_path):
        assert command(*words) == 0
    write_run(tmp_path / "runs", "fine", {"gap": [1.0], "test_accuracy": [0.1]}, lr=0.3)
    picture = tmp_path / "p.png"
    for figure in ("gap", "wall_seconds"):
        assert command("table", tmp_path / "runs", "--metric", figure) == 0
        words = ["-y", figure, "-x", "rounds", "--log", "-o", picture]
        assert command("plot", tmp_path / "runs", *words) == 0


@pytest.mark.parametrize(
    "name",
    ["CON", "nul", "Prn", "aux.txt", "COM1", "lpt9.tar.gz", "com0", "ends.", "con.", "nul.1"],
)
def test_names_that_some_systems_cannot_hold_are_refused(name: str) -> None:
    for key in ("run-name", "dataset"):
        with pytest.raises(ConfigError, match="no device such as CON"):
            parse_run_config({key: name})
    assert not is_file_name(name)
    head = ConfigRecord({"run": name, "state-dir": ""})
    with pytest.raises(wire.WireError, match="its run is not a name"):
        wire.unpack_invitation(RecordDict({"round": head, "shared": ArrayRecord({})}))


@pytest.mark.parametrize(
    "name", ["console", "nul-1", "com", "com10", "auxiliary.txt", "a.b", "lpt"]
)
def test_names_that_only_look_so_are_taken(name: str) -> None:
    assert parse_run_config({"run-name": name}).run_name == name
    assert is_file_name(name)


def test_text_for_a_terminal() -> None:
    assert one_line("a\x1b[2Jb\nc\x07é…") == "a?[2Jb?c?é…"
