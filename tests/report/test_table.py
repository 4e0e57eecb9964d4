"""fedapp table: what each method was given, on which data it was chosen, and the same numbers in every format."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.figures import Figure
from fedapp.report.choice import choose
from fedapp.report.formats import FORMATS
from fedapp.report.runs import load_runs
from fedapp.report.table import Number, closing_table, number, results
from fedapp.report.units import familiar_unit
from tests.support.commands import Fedapp
from tests.support.reports import accuracy, texts, write_run


def write_grid(parent: Path) -> None:
    """FedAvg has three step sizes, the middle one best; FedAdam two server step sizes, the larger best."""
    for lr, top in ((0.1, 0.5), (0.2, 0.8), (0.4, 0.7)):
        for seed in (0, 1):
            name = f"try-fedavg-lr-{lr}-seed-{seed}"
            write_run(parent, name, accuracy(0.1, top + 0.1 * seed), lr=lr, seed=seed)
    for server_lr, top in ((0.1, 0.3), (1.0, 0.6)):
        keys: dict[str, Any] = {"algorithm": "fedadam", "server_lr": server_lr}
        write_run(parent, f"try-fedadam-server-lr-{server_lr}", accuracy(top, 0.2), **keys)


def shown(command: Fedapp, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert command("table", *words) == 0
    return capsys.readouterr().out


def test_a_choice_tells_what_it_was_made_from(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    write_grid(tmp_path)
    table = json.loads(shown(command, capsys, tmp_path, "--per", "algorithm", "--format", "json"))
    fedavg, fedadam = sorted(table["lines"], key=lambda line: -line["seeds"])
    assert fedavg["algorithm"] == "FedAvg"
    assert (fedavg["settings"], fedadam["settings"]) == (3, 2)
    assert fedavg["chosen"] == {"lr": 0.2}
    assert fedavg["at_edge"] == []
    assert fedadam["chosen"] == {"server-lr": 1.0}
    assert fedadam["at_edge"] == ["server-lr"]
    assert fedavg["never_varied"] == ["server-lr"]
    assert fedadam["never_varied"][:2] == ["lr", "fedadam.beta1"]
    assert table["chosen_on"] == fedavg["chosen_on"] == "test data"
    text = shown(command, capsys, tmp_path, "--per", "algorithm")
    assert "| 3 | lr = 0.2 |" in text
    assert "| 2 | server-lr = 1.0* |" in text
    assert "chosen on test data, by the best test accuracy" in text
    assert "2 to 3 settings" in text
    assert "Never varied: FedAdam: lr, fedadam.beta1" in text
    assert "; FedAvg: server-lr." in text
    without = shown(command, capsys, tmp_path)
    assert "settings" not in without
    assert "chosen" not in without


def test_the_closing_table_of_a_sweep_has_the_names_of_the_table(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    write_grid(tmp_path)
    runs = load_runs([tmp_path])
    for keys in ([], ["algorithm"]):
        words = [word for key in keys for word in ("--per", key)]
        lines = json.loads(shown(command, capsys, tmp_path, *words, "--format", "json"))["lines"]
        choice = choose(runs, keys, "test_accuracy") if keys else None
        closing = closing_table(choice.runs if choice else runs, "test_accuracy", choice)
        names = [str(name) for name in closing.columns[0].cells]
        assert names == [line["method"] for line in lines]
        assert names == (
            ["FedAdam", "FedAvg"]
            if keys
            else [
                "FedAdam, server-lr = 0.1",
                "FedAdam, server-lr = 1.0",
                *(f"FedAvg, lr = {lr}" for lr in (0.1, 0.2, 0.4)),
            ]
        )
    assert [str(cell) for cell in closing.columns[1].cells] == ["server-lr = 1.0", "lr = 0.2"]


def test_a_table_names_the_method_and_the_key_that_it_chooses_for(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    for mu in (0.01, 0.1):
        for lr in (0.1, 0.2):
            keys: dict[str, Any] = {"algorithm": "fedprox", "lr": lr, "fedprox.mu": mu}
            write_run(tmp_path, f"g-fedprox-fedprox.mu-{mu}-lr-{lr}", accuracy(lr), **keys)
    text = shown(command, capsys, tmp_path, "--per", "fedprox.mu")
    assert "| FedProx, mu = 0.01 | 2 | lr = 0.2* |" in text


def test_validation_data_choose_the_setting_and_the_round(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    for lr, tested, valid in ((0.1, [0.9, 0.2], [0.3, 0.4]), (0.2, [0.6, 0.5], [0.7, 0.6])):
        figures = {"test_accuracy": tested, "valid_accuracy": valid}
        write_run(tmp_path / "runs", f"lr-{lr}", figures, lr=lr, valid_share=0.2)
    words = tmp_path / "runs", "--per", "algorithm"
    table = json.loads(shown(command, capsys, *words, "--format", "json"))
    (line,) = table["lines"]
    assert line["chosen"] == {"lr": 0.2}
    assert line["best_test_accuracy_mean"] == 0.6
    assert table["chosen_on"] == "validation data"
    (line,) = json.loads(
        shown(command, capsys, *words, "--format", "json", "--best-by", "test_accuracy")
    )["lines"]
    assert line["chosen"] == {"lr": 0.1}
    assert line["best_test_accuracy_mean"] == 0.2, "of the round that is best on validation data"
    picture = tmp_path / "grid.svg"
    assert command("grid", tmp_path / "runs", "-x", "lr", "-y", "model", "-o", picture) == 0
    assert {"0.200", "0.600"} <= set(texts(picture))
    assert any("framed: chosen on validation data" in text for text in texts(picture))


def test_one_run_without_validation_data_leaves_the_choice_to_the_test_data(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, "a", {"test_accuracy": [0.5], "valid_accuracy": [0.9]}, valid_share=0.1)
    write_run(tmp_path, "b", {"test_accuracy": [0.6]}, lr=0.3)
    text = shown(command, capsys, tmp_path, "--per", "algorithm", "--format", "csv")
    assert "test data" in text
    assert "valid_accuracy" not in text


def test_a_run_that_was_never_evaluated_leaves_the_choice_to_the_validation_data(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    for lr, tested, valid in ((0.1, 0.9, 0.3), (0.2, 0.6, 0.7)):
        figures = {"test_accuracy": [tested], "valid_accuracy": [valid]}
        write_run(tmp_path, f"lr-{lr}", figures, lr=lr, valid_share=0.2)
    write_run(tmp_path, "lr-1e9", {}, lr=1e9, valid_share=0.2, num_rounds=1)
    (tmp_path / "lr-1e9" / "diverged.txt").touch()
    words = tmp_path, "--per", "algorithm", "--format", "json"
    table = json.loads(shown(command, capsys, *words))
    assert table["chosen_on"] == "validation data"
    assert table["lines"][0]["chosen"] == {"lr": 0.2}


def test_a_target_is_shown_only_when_asked_for(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    write_grid(tmp_path)
    assert " to " not in shown(command, capsys, tmp_path).splitlines()[0]
    heads = shown(command, capsys, tmp_path, "--target", "0.7").splitlines()[0]
    assert "rounds to 70 % | uplink to 70 %" in heads


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_every_format_has_the_mean_and_the_standard_deviation(values: list[float]) -> None:
    found = number(values, Figure("test_accuracy"))
    assert found.mean == pytest.approx(np.mean(values))
    assert found.std == pytest.approx(np.std(values, ddof=1) if len(values) > 1 else 0)


def test_the_formats_agree_and_escape_what_they_must(tmp_path: Path) -> None:
    hostile = "a_b%&$|{}~^#\\"
    for name, figures in (
        (hostile, {"test_loss": [0.5, 0.25]}),
        ("=cmd()", {"test_loss": [1.5, 1.25]}),
        ("none", {"train_loss": [1.5, 1.25]}),
    ):
        write_run(tmp_path, name, figures)
    runs = [
        replace(run, config=run.config | {"algorithm": run.name}) for run in load_runs([tmp_path])
    ]
    made = results(runs, "test_loss", 0.3)
    written = {name: write(made) for name, write in FORMATS.items()}
    rows = list(csv.DictReader(io.StringIO(written["csv"])))
    lines = json.loads(written["json"])["lines"]
    assert {row["method"] for row in rows} == {hostile, "'=cmd()", "none"}
    for row, line in zip(rows, lines, strict=True):
        value = line["best_test_loss_mean"]
        assert row["best_test_loss_mean"] == ("" if value is None else str(value))
    assert (
        r"a\_b\%\&\$$|$\{\}\textasciitilde{}\textasciicircum{}\#\textbackslash{} & 0.25"
        in (written["latex"])
    )
    assert "no test loss" in written["markdown"]
    assert written["latex"].count(r"\\") == 4
    assert hostile.replace("|", "\\|") in written["markdown"]


def test_times_have_one_familiar_unit_in_a_column_and_seconds_in_data(
    tmp_path: Path, command: Fedapp, capsys: pytest.CaptureFixture[str]
) -> None:
    for lr, rounds in ((0.1, 3), (0.2, 40), (0.4, 60)):  # of 300 s, 301 s, ...
        write_run(tmp_path, f"lr-{lr}", accuracy(*rounds * [0.1], 0.9), lr=lr)
    words = tmp_path, "--target", "0.9"
    for form in ("markdown", "latex"):
        text = shown(command, capsys, *words, "--format", form)
        assert re.findall(r"[|&] ([\d.]+ h) [|&]", text) == ["0.335 h", "3.64 h", "5.59 h"]
    (line, *_) = json.loads(shown(command, capsys, *words, "--format", "json"))["lines"]
    assert line["simulated_time_to_90_percent_mean"] == 300 + 301 + 302 + 303
    (row, *_) = csv.DictReader(io.StringIO(shown(command, capsys, *words, "--format", "csv")))
    assert float(row["simulated_time_to_90_percent_mean"]) == 1206


@given(st.floats(0, 1e9))
def test_a_time_alone_has_the_unit_of_plots(seconds: float) -> None:
    unit, size = familiar_unit("seconds", seconds)
    written, symbol = Number(seconds, figure=Figure("t", unit="seconds")).text().split()
    assert unit.startswith(symbol)
    assert float(written.replace(",", "")) == pytest.approx(seconds / size, rel=5e-3)
