"""Runs under way, as far as a test has written them."""

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from fedapp.parsing import parse_run_config
from fedapp.report.watch import WatchedRun, view
from fedapp.tables import Value
from tests.conftest import kebab


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
