"""Run directories that tests write, and the data that a page holds."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from tests.conftest import kebab


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
