"""Run directories that tests write, and the data that a page holds."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.parsing import parse_run_config
from fedapp.report.runs import Run, load_runs
from fedapp.tables import Value
from tests.conftest import kebab

HOSTILE = "</script><img src=x onerror=hacked=1>{{script}}<!--"
ROUNDS = 20  # in each run that `write_three` writes


def write_run(
    parent: Path,
    name: str,
    figures: Mapping[str, Sequence[float | None]],
    uplink: int = 1_000_000,
    **keys: Value,
) -> None:
    """Write a run's directory: what each round found, and what it spent; by default it is complete."""
    (parent / name).mkdir(parents=True)
    length = max(map(len, figures.values()), default=0)
    config = parse_run_config(kebab({"num_rounds": length or 50} | keys)).flat() | {
        "run-name": name
    }
    (parent / name / "config.json").write_text(json.dumps({"config": config, "versions": {}}))
    with (parent / name / "rounds.jsonl").open("w") as lines:
        for k in range(length):
            found = {figure: values[k] for figure, values in figures.items()}
            spent = {
                "uplink_bytes": uplink,
                "downlink_bytes": 2_000_000,
                "simulated_seconds": 300.0 + k,
                "simulated_seconds_nominal": 290.0,
                "wall_seconds": 0.5 + 0.01 * k,
            }
            record = {"round": k + 1, "clients": 5, "failures": 0} | found | spent
            lines.write(json.dumps(record) + "\n")


def embedded(path: Path) -> Any:
    """Return the page's data, which must be JSON without Python's NaN and Infinity."""
    found = re.search(
        r'<script type="application/json"[^>]*>(.*?)</script>', path.read_text(), re.S
    )
    assert found

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(found[1], parse_constant=refuse)


def accuracies(top: float, speed: float) -> dict[str, Sequence[float | None]]:
    """Return the figures of a run that is evaluated every second round."""
    rounds = range(1, ROUNDS + 1)
    accuracy = [top * (1 - math.exp(-k / speed)) if k % 2 == 0 else None for k in rounds]
    return {"test_accuracy": accuracy, "train_loss": [2 * math.exp(-k / speed) for k in rounds]}


def write_three(parent: Path) -> list[Run]:
    """Write three runs, of 90, 100 and 1000 MB uplink: as text they would sort otherwise."""
    shared: dict[str, Value] = {"eval_every": 2, "num_rounds": ROUNDS}
    write_run(parent, "fedavg", accuracies(0.9, 3), 5_000_000, **shared, lr=0.1)
    write_run(parent, "fedpaq", accuracies(0.8, 4), 4_500_000, **shared, lr=0.1, algorithm="fedpaq")
    write_run(
        parent, "scaffold", accuracies(0.6, 2), 50_000_000, **shared, lr=0.25, algorithm="scaffold"
    )
    return load_runs([parent])


def texts(picture: Path) -> list[str]:
    """Return the texts in an SVG picture."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(), re.S)
    return [re.sub(r"<[^>]*>", "", text) for text in found]


def accuracy(*values: float) -> dict[str, list[float]]:
    return {"test_accuracy": list(values)}
