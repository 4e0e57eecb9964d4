"""The report: runs as one HTML file, with curves, a table, and what their configs differ in."""

import base64
import hashlib
import html
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fedapp
from fedapp.figures import TOTAL, Figure, find_figure, headline, ranked
from fedapp.names import display_name
from fedapp.report.colours import COLOURS, DASHES
from fedapp.report.labels import names_of, unread
from fedapp.report.runs import Group, Run, in_groups, validated_by, with_equal_keys
from fedapp.report.script import WEB, bundle

SPENT = ("round", "uplink_bytes", "downlink_bytes", TOTAL, "simulated_seconds", "wall_seconds")
LARGEST = 1e300  # the largest number drawn: the page adds up, and its axes leave some room


def write_report(
    runs: Sequence[Run], path: Path, title: str = "Federated runs", target: float = 0.9
) -> None:
    """Write one page that opens from disk and needs nothing else; `target` is a test accuracy."""
    path.write_text(report_page(report_data(runs, target), title), encoding="utf-8")


def report_page(data: str, title: str, live: bool = False) -> str:
    """Return the page with some data; a live one asks the server that it comes from for new data."""
    script = bundle("live.js" if live else "page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "title": html.escape(title),
        "style": _read("page.css"),
        "script": script,
        "digest": f"sha256-{digest}",  # the browser runs this script and no other
        "connect": "; connect-src 'self'" if live else "",
        "data": data.replace("<", "\\u003c"),  # so that no name can end the element it is in
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _read("page.html"))


def report_data(runs: Sequence[Run], target: float, written: str = "") -> str:
    """Return what the page shows, as JSON; `written` is the time that it says it is from, by default now."""
    count = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    when = written or time.strftime("%Y-%m-%d %H:%M")
    about = f"{count} · written {when} · fedapp {fedapp.__version__}"
    data = {"about": about, **_data(runs, target)}
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def can_write_report() -> bool:
    """Tell whether the page's parts are here: a bundle that `flwr run` makes of this directory has no such files."""
    return (WEB / "page.html").is_file()


def _read(name: str) -> str:
    return (WEB / name).read_text(encoding="utf-8")


def _data(runs: Sequence[Run], target: float) -> dict[str, Any]:
    """Return what the page shows: config values that all runs share are there once."""
    configs = [run.config for run in with_equal_keys(runs)]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    common = {
        key: configs[0].get(key)
        for key in keys
        if all(config.get(key) == configs[0].get(key) for config in configs)
    }
    skipped = [unread(keys, config) for config in configs]
    figures = _figures(runs)
    place = {id(run): index for index, run in enumerate(runs)}
    groups = in_groups(runs)
    alone = names_of([Group(run.name, [run]) for run in runs])
    notes = {place[id(group.runs[0])]: group.note for group in groups if len(group.runs) == 1}
    return {
        "target": target,
        "colours": COLOURS,
        "dashes": DASHES,
        "algorithms": _display_names(configs),
        "ignored": [key for key in keys if all(key in unused for unused in skipped)],
        "metrics": {name: _about(find_figure(name)) for name in (*figures, *SPENT)},
        "headline": headline(figures),
        "figures": figures,
        "keys": keys,
        "common": {key: _value(value) for key, value in common.items()},
        "groups": [
            {
                "name": group.name,
                "label": label,
                "note": group.note,
                "runs": [place[id(run)] for run in group.runs],
            }
            for group, label in zip(groups, names_of(groups), strict=True)
        ],
        "runs": [
            {
                "name": run.name,
                "label": label,
                "state": "" if run.status.complete else str(run.status.state),
                "note": notes.get(index, "") if run.status.complete else run.status.text,
                "config": {k: _value(v) for k, v in config.items() if k not in common},
                "unread": [key for key in keys if key in unused and key not in common],
                "length": len(run.rounds),
                "columns": _columns(run, [*SPENT, *figures]),
                "results": _results(run, figures),
            }
            for index, (run, label, config, unused) in enumerate(
                zip(runs, alone, configs, skipped, strict=True)
            )
        ],
    }


def _display_names(configs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    names = {str(config.get("algorithm", "")) for config in configs}
    return {name: display_name(name) for name in sorted(names)}


def _figures(runs: Sequence[Run]) -> list[str]:
    """Return the figures that some run has, the most telling first."""
    return ranked(
        name
        for run in runs
        for record in run.rounds
        for name, value in record.items()
        if _number(value) is not None
    )


def _about(figure: Figure) -> dict[str, Any]:
    """Return what the page must know of a figure."""
    return {
        "label": figure.label,
        "smallerIsBetter": figure.better == "lower",
        "fraction": figure.unit == "fraction",
    }


def _columns(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Return a run's columns; one that is the same in all rounds is that number, one without any is left out."""
    columns: dict[str, Any] = {}
    for name in names:
        values = [_number(value) for value in run.column(name)]
        if any(value is not None for value in values):
            columns[name] = values[0] if len(set(values)) == 1 else values
    return columns


def _results(run: Run, figures: Sequence[str]) -> dict[str, float | None]:
    """Return the results of a run that are not its best figures: validation samples chose the round."""
    found = {name: run.result(name) for name in figures if validated_by(name) in figures}
    return {name: _number(value) for name, value in found.items() if value != run.best(name)}


def _number(value: object) -> float | None:
    """Return a number with six digits, a whole one as it is; None for what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if abs(value) > LARGEST or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _value(value: object) -> object:
    """Return a config's value as JSON can hold it."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
