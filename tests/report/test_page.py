"""The HTML report: what is written."""

import json
import math
import re
from pathlib import Path

from fedapp.report.page import write_report
from fedapp.report.runs import Run, load_runs
from tests.support.reports import HOSTILE, accuracy, embedded, write_run, write_three


def test_numbers_have_six_digits_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    losses = [0.123456789, math.nan, math.inf, None, 2]
    rounds = [
        {"round": k + 1, "test_loss": loss, "uplink_bytes": 123456789, "odd": "text"}
        for k, loss in enumerate(losses)
    ]
    write_report([Run("a", {"lr": math.inf}, rounds)], tmp_path / "report.html")
    data = embedded(tmp_path / "report.html")
    (run,) = data["runs"]
    assert run["columns"]["test_loss"] == [0.123457, None, None, None, 2]
    assert run["columns"]["uplink_bytes"] == 123456789  # whole, and once, as it is always the same
    assert data["figures"] == ["test_loss"]
    assert data["common"]["lr"] == "inf"


def test_a_long_run_stays_small(tmp_path: Path) -> None:
    names = ["test_loss", "test_accuracy", "train_loss", "gap", "distance", "simulated_seconds"]
    rounds = [
        {"round": k + 1, "uplink_bytes": 7970960 + k, "downlink_bytes": 7970960, "clients": 10}
        | {name: math.sin(k + len(name)) / 3 for name in [*names, "wall_seconds", "objective"]}
        for k in range(1000)
    ]
    write_report([], tmp_path / "empty.html")
    write_report([Run("a", {}, rounds)], tmp_path / "report.html")
    sizes = [(tmp_path / name).stat().st_size for name in ("empty.html", "report.html")]
    assert sizes[1] - sizes[0] < 110_000


def test_hostile_text_stays_in_the_data(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    run = Run(HOSTILE, {"model": HOSTILE, HOSTILE: 1}, [{"round": 1, HOSTILE: 0.5}])
    write_report([run], path, title=HOSTILE)
    page = path.read_text()
    assert "<img" not in page
    assert page.count("</script") == 2  # the data's and the script's own
    data = embedded(path)
    assert data["runs"][0]["name"] == data["common"]["model"] == data["figures"][0] == HOSTILE


def test_the_page_names_no_other_resource(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(write_three(tmp_path / "runs"), path)
    page = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"https?://|\bsrc\s*=|\bhref\s*=|@import|url\(|<link|fetch\(", page)


def test_a_run_without_rounds_and_no_run_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_run(tmp_path / "runs", "new", {})
    write_report(load_runs([tmp_path / "runs"]), path)
    assert embedded(path)["runs"][0]["length"] == 0
    assert embedded(path)["about"].startswith("1 run ·")
    write_report([], path)
    assert embedded(path)["runs"] == embedded(path)["figures"] == []


def test_validation_data_choose_the_round_whose_result_is_shown(tmp_path: Path) -> None:
    figures = {
        "test_accuracy": [0.9, 0.2, 0.6],
        "test_loss": [0.5, 0.4, 0.3],
        "valid_accuracy": [0.3, 0.7, 0.5],
    }
    write_run(tmp_path / "runs", "validated", figures)
    write_run(tmp_path / "runs", "without", accuracy(0.1, 0.3, 0.2))
    runs = load_runs([tmp_path / "runs"])
    write_report(runs, tmp_path / "report.html")
    results = [run["results"] for run in embedded(tmp_path / "report.html")["runs"]]
    assert results == [{"test_accuracy": runs[0].result("test_accuracy")}, {}]
    assert results[0] == {"test_accuracy": 0.2}


def test_a_problem_of_a_newer_version_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "new", accuracy(0.5))
    file = tmp_path / "runs" / "new" / "config.json"
    facts = json.loads(file.read_text())
    facts["config"]["problem"] = "of-tomorrow"
    file.write_text(json.dumps(facts))
    write_report(load_runs([tmp_path / "runs"]), tmp_path / "report.html")
    data = embedded(tmp_path / "report.html")
    assert data["common"]["problem"] == "of-tomorrow"
    assert "quadratic.dim" not in data["ignored"]


def test_shared_config_values_are_there_once(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report([Run("a", {"lr": 0.5, "later": 1}, []), Run("b", {"lr": 0.25}, [])], path)
    data = embedded(path)
    assert [run["config"] for run in data["runs"]] == [{"lr": 0.5, "later": 1}, {"lr": 0.25}]
    assert data["common"]["algorithm"] == "fedavg"  # a key that a run lacks has its default
