"""Sweep files: one TOML file of run-config keys, with a table `[sweep]` of axes; runs are their product.

An axis is a key and its values, `seed = [0, 1, 2]` or `fedprox.mu = [0.01, 0.1]`; or, under any other name, a list of
tables, each with a `name`, that set several keys at once. Lists in such a table are a grid:

    [[sweep.method]]
    name = "fedpaq-8bit"
    algorithm = "fedpaq"
    compressor = "uniform"
    server-lr = [0.5, 1.0]

With `include = "other.toml"` a file extends another one in the same directory; keys and axes of the same name
are replaced.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapp.commandline import flat_keys, read_toml
from fedapp.doors import short
from fedapp.errors import ConfigError
from fedapp.tables import Value

Point = tuple[str, dict[str, Value]]  # a point of an axis: its name, and the keys that it sets


@dataclass(frozen=True)
class PlannedRun:
    """One run of a file: its name (empty for a plain preset) and its keys."""

    name: str
    values: dict[str, Value]
    chosen: frozenset[str] = frozenset()  # the keys that the axes set
    preset: Path | None = None  # the file, for a plain preset


def read_runs(path: Path) -> list[PlannedRun]:
    """Return the runs of a file: one for a plain preset, several for a sweep."""
    table = _with_included(path)
    axes = table.pop("sweep", None)
    common = flat_keys(path, table)
    if axes is None:
        return [PlannedRun("", common, preset=path)]
    axes = _flat_axes(axes) if isinstance(axes, dict) else {"": None}
    if not all(isinstance(axis, list) and axis for axis in axes.values()):
        raise ConfigError(f"The table [sweep] of {path} must give each axis a list of values.")
    points = [_points(path, key, axis) for key, axis in axes.items()]
    return plan_product(path.stem, common, points, str(path))


def _flat_axes(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return axes by their dotted keys: TOML reads `fedprox.mu = [...]` without quotes as a table in a table."""
    axes: dict[str, Any] = {}
    for key, axis in table.items():
        is_table = isinstance(axis, dict) and axis
        axes |= _flat_axes(axis, f"{prefix}{key}.") if is_table else {prefix + key: axis}
    return axes


def plan_product(
    stem: str, common: dict[str, Value], axes: Sequence[Sequence[Point]], source: str
) -> list[PlannedRun]:
    """Return a run for each choice of one point of every axis; `source` is what error messages call the sweep."""
    runs = []
    for choices in itertools.product(*axes):
        name = "-".join([stem, *(name for name, _ in choices)])
        values = dict(common)
        for _, chosen in choices:
            if twice := chosen.keys() & (values.keys() - common.keys()):
                raise ConfigError(f"Two axes of {source} set {min(twice)}: let one of them do it.")
            values |= chosen
        keys = frozenset(key for _, chosen in choices for key in chosen)
        runs.append(PlannedRun(name, values, keys))
    if len({run.name for run in runs}) < len(runs):
        raise ConfigError(f"Two runs of {source} have the same name: give the points other names.")
    return runs


def _with_included(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    table = read_toml(path)
    if (name := table.pop("include", None)) is None:
        return table
    other = path.parent / str(name)
    if not isinstance(name, str) or other in (*seen, path):
        raise ConfigError(f"include in {path} must name another file beside it.")
    return _merged(_with_included(other, (*seen, path)), table)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables recursively; `above` wins."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            both[key] = _merged(below[key], above[key])
    return both


def point_name(key: str, value: Value) -> str:
    """Return what a value of a key is called in the name of a run; of "package.module:name" that is the last part."""
    text = short(value) if isinstance(value, str) else str(value).replace("+", "")  # 1e+30
    return text if key == "algorithm" else f"{key}-{text}"


def _points(path: Path, key: str, axis: list[Any]) -> list[Point]:
    """Return the points of an axis."""
    points: list[Point] = []
    for value in axis:
        if isinstance(value, dict):
            keys = dict(value)
            if not isinstance(name := keys.pop("name", None), str):
                raise ConfigError(f"Every table [[sweep.{key}]] needs a name.")
            points += _grid(name, flat_keys(path, _without_lists(keys)), _lists(keys))
        else:
            points.append((point_name(key, value), {key: value}))
    return points


def _lists(table: dict[str, Any], prefix: str = "") -> dict[str, list[Value]]:
    """Return the lists in a table, by their dotted keys."""
    found: dict[str, list[Value]] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            found |= _lists(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            if not value:
                raise ConfigError(f"{prefix}{key} = [] leaves nothing to run: give it values.")
            found[prefix + key] = value
    return found


def _without_lists(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_lists(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if not isinstance(value, list)
    }


def _grid(name: str, values: dict[str, Value], lists: dict[str, list[Value]]) -> list[Point]:
    """Return a point for each choice of one value from every list."""
    points = []
    for choice in itertools.product(*lists.values()):
        chosen = dict(zip(lists, choice, strict=True))
        words = [f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items()]
        points.append(("-".join([name, *words]), values | chosen))
    return points
