"""Records that nobody should trust: hostile names, damaged files and odd figures."""

import json
import math
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedapp import wire
from fedapp.errors import ConfigError
from fedapp.names import is_file_name, one_line
from fedapp.parsing import parse_run_config
from fedapp.report.runs import load_runs
from tests.support.commands import Fedapp
from tests.support.reports import accuracy, texts, write_run

HOSTILE = [
    "\x1b[31mred\x1b]0;title\x07",
    "[/bold]",
    "$x$ and $\\nonsense{$",
    "_hidden",
    "a|b",
    "line\nbreak",
    "\udcff undecodable",
]


def test_hostile_names_of_directories_and_algorithms_are_shown_as_text(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(HOSTILE):
        keys = {"algorithm": name, "lr": 0.1 + number, "model": "\x1b[2Jmodel", "dataset": "d"}
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
