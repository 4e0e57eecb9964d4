"""Sweep files: one TOML file of run-config keys, with a table `[sweep]` of axes; runs are their product.

An axis is a key and its values, `seed = [0, 1, 2]`; or, under a name of its own, a list of tables
that set several keys at once, each with a `name`:

    [[sweep.method]]
    name = "fedpaq-8bit"
    algorithm = "fedpaq"
    compressor = "uniform"
"""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.config import Value, flat_keys, read_toml
from fedapp.errors import ConfigError


@dataclass(frozen=True)
class PlannedRun:
    """One run of a file: its name, if it is one of several, and its keys."""

    name: str
    values: dict[str, Value]
    chosen: frozenset[str] = frozenset()  # the keys that the axes set


def read_runs(path: Path) -> list[PlannedRun]:
    """Read a preset, which is one run, or a sweep."""
    table = read_toml(path)
    axes = table.pop("sweep", None)
    common = flat_keys(path, table)
    if axes is None:
        return [PlannedRun("", common)]
    if not isinstance(axes, dict) or not all(isinstance(a, list) and a for a in axes.values()):
        raise ConfigError(f"The table [sweep] of {path} must give each axis a list of values.")
    runs = []
    for choices in itertools.product(*(_points(path, key, axis) for key, axis in axes.items())):
        name = "-".join([path.stem, *(name for name, _ in choices)])
        values = dict(common)
        for _, chosen in choices:
            values |= chosen
        keys = frozenset(key for _, chosen in choices for key in chosen)
        runs.append(PlannedRun(name, values, keys))
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError(f"Two runs of {path} have the same name: give the points other names.")
    return runs


def _points(path: Path, key: str, axis: list[Any]) -> list[tuple[str, dict[str, Value]]]:
    """Return the points of an axis: each with its name, and the keys that it sets."""
    points: list[tuple[str, dict[str, Value]]] = []
    for value in axis:
        if isinstance(value, dict):
            keys = dict(value)
            if not isinstance(name := keys.pop("name", None), str):
                raise ConfigError(f"Every table [[sweep.{key}]] needs a name.")
            points.append((name, flat_keys(path, keys)))
        else:
            points.append((f"{value}" if key == "algorithm" else f"{key}-{value}", {key: value}))
    return points
