"""Curves of runs, and what each needs to reach a target."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    ScalarFormatter,
)
from numpy.typing import NDArray

from fedapp.errors import ConfigError
from fedapp.records import PARTIAL, read_config, read_rounds

# Okabe and Ito's colours, which all readers can tell apart; dashes show curves that coincide.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000"]
STYLES = ["-", "--", ":", "-."]


@dataclass(frozen=True)
class Run:
    """A finished run: its name, config and rounds."""

    name: str
    config: dict[str, Any]
    rounds: list[dict[str, Any]]

    def running_total(self, column: str) -> list[float]:
        """Return a column, added up over the rounds."""
        return list(accumulate(record.get(column) or 0 for record in self.rounds))

    def column(self, name: str) -> list[float | None]:
        """Return a column; None where a round has no such figure."""
        return [record.get(name) for record in self.rounds]

    def best(self, name: str = "test_accuracy") -> float:
        """Return a column's best figure, which for losses and distances is the smallest."""
        found = [value for value in self.column(name) if value is not None]
        if not found:
            return float("nan")
        return min(found) if name in SMALLER_IS_BETTER else max(found)


SMALLER_IS_BETTER = {
    "test_loss", "train_loss", "objective", "gap", "distance", "squared_gradient", "failures",
    "uplink_bytes", "downlink_bytes", "simulated_seconds", "simulated_seconds_nominal", "wall_seconds",
}  # fmt: skip
NOT_COMPARED = ("seed", "run-name", "results-dir", "data-dir", "state-dir")


# What a curve can be drawn against: its label, and the values.
AXES: dict[str, tuple[str, Callable[[Run], list[float]]]] = {
    "rounds": ("communication rounds", lambda run: [r["round"] for r in run.rounds]),
    "bytes": ("uplink bytes, all clients", lambda run: run.running_total("uplink_bytes")),
    "time": ("simulated time", lambda run: run.running_total("simulated_seconds")),
    "nominal-time": (
        "simulated time, nominal bits",
        lambda run: run.running_total("simulated_seconds_nominal"),
    ),
}


def load_runs(directories: Sequence[Path]) -> list[Run]:
    """Read runs, each from its directory or from a directory of several."""
    found = []
    for directory in directories:
        runs = [directory, *sorted(directory.iterdir(), key=_natural)] if directory.is_dir() else []
        runs = [
            run
            for run in runs
            if all((run / name).is_file() for name in ("config.json", "rounds.jsonl"))
            and PARTIAL not in run.name
        ]
        if not runs:
            raise ConfigError(f"{directory} holds no run: give directories with a rounds.jsonl.")
        found += [Run(run.name, read_config(run), read_rounds(run)) for run in runs]
    return found


def _natural(path: Path) -> list[tuple[float, str]]:
    """Return a key that sorts names by the numbers in them: m-9 before m-10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", path.name)
    return [(float(part), "") if part[:1].isdigit() else (-1.0, part) for part in parts]


def over_seeds(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Group runs whose configs differ in nothing but the seed; name each group."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = {k: v for k, v in run.config.items() if k not in NOT_COMPARED}
        groups.setdefault(repr(sorted(same.items())), []).append(run)
    chosen = list(groups.values())
    first = [group[0] for group in chosen]
    names = short_names(first)
    if len(chosen) > 1:  # what a sweep's names say of keys that are the same for all says nothing
        for key, value in first[0].config.items():
            if all(run.config.get(key) == value for run in first):
                names = [name.replace(f"-{key}-{value}", "") or name for name in names]
    seedless = (re.sub(r"-?seed-\d+", "", name) or name for name in names)
    return [
        (without if len(group) > 1 else name, group)
        for name, without, group in zip(names, seedless, chosen, strict=True)
    ]


def best_per(runs: Sequence[Run], keys: Sequence[str], figure: str = "test_accuracy") -> list[Run]:
    """Keep, for each value of some keys, the settings whose best figure, averaged over seeds, is best."""
    sign = -1.0 if figure in SMALLER_IS_BETTER else 1.0
    best: dict[tuple[Any, ...], tuple[float, list[Run]]] = {}
    for _, group in over_seeds(runs):
        for key in keys:
            if key not in group[0].config:
                raise ConfigError(f"--per takes a config key, not {key}.")
        reached = float(np.mean([run.best(figure) for run in group]))
        place = tuple(group[0].config[key] for key in keys)
        if np.isfinite(reached) and (place not in best or sign * reached > best[place][0]):
            best[place] = sign * reached, group
    if not best:
        raise ConfigError(f"These runs have no figure {figure!r}.")
    kept = [run for _, group in best.values() for run in group]
    return [run for run in runs if any(run is other for other in kept)]


def short_names(runs: Sequence[Run]) -> list[str]:
    """Return the runs' names without what they all begin with."""
    parts = [run.name.split("-") for run in runs]
    while len(parts) > 1 and all(len(p) > 1 and p[0] == parts[0][0] for p in parts):
        parts = [p[1:] for p in parts]
    return ["-".join(p) for p in parts]


def draw_curves(
    runs: Sequence[Run],
    x: Sequence[str],
    y: str,
    path: Path,
    title: str = "",
    log: bool = False,
    log_x: bool = False,
    lowest: float | None = None,
    panels: Sequence[str] = (),
) -> None:
    """Draw y of every run against each of the x, side by side; rounds are never logarithmic.

    Runs that differ in their seeds are one curve, their mean, in a band from the lowest to the highest.
    With `panels`, each of these words has a panel of its own, with the runs whose names begin so.
    """
    places = [(name, word) for word in panels or [""] for name in x]
    columns = len(x) if len(x) > 1 else 2 if len(places) == 4 else min(len(places), 3)
    rows = -(-len(places) // columns)
    figure = Figure(
        figsize=(0.6 + 4.2 * columns, (4.2 if rows == 1 else 3.6) * rows), layout="constrained"
    )
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for unused in axes.flat[len(places) :]:
        unused.set_visible(False)
    for place, (name, word) in zip(axes.flat, places, strict=False):
        _draw_panel(place, over_seeds(of_panel(runs, word)), name, y, log, log_x)
        if word:
            place.set_title(word, fontsize="medium")
            place.legend(frameon=False, fontsize="small")
    if lowest is not None:
        axes[0, 0].set_ylim(bottom=lowest)
    for first in axes[:, 0]:
        first.set_ylabel(y.replace("_", " "))
    if not panels:
        handles, labels = axes[0, 0].get_legend_handles_labels()
        width = 0.8 + 0.09 * max(map(len, labels))  # inches
        count = max(1, min(len(labels), int(figure.get_figwidth() / width)))
        lines = -(-len(labels) // count)
        figure.set_figheight(figure.get_figheight() + 0.24 * max(0, lines - 3))
        figure.legend(handles, labels, loc="outside lower center", ncols=count, frameon=False)
    if title:
        figure.suptitle(title)
    figure.savefig(path, dpi=150)


def of_panel(runs: Sequence[Run], word: str) -> list[Run]:
    """Return the runs whose names, without what all of them begin with, begin with a word."""
    names = short_names(runs)
    chosen = [run for run, name in zip(runs, names, strict=True) if not word or _begins(name, word)]
    if not chosen:
        raise ConfigError(f"--panel {word}: no run's name begins so; one is {names[0]}.")
    return chosen


def _begins(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}-")


def _draw_panel(
    axes: Axes, groups: list[tuple[str, list[Run]]], x: str, y: str, log: bool, log_x: bool
) -> None:
    label, values = AXES[x]
    groups = [(name, group) for name, group in groups if not np.isnan(group[0].best(y))] or groups
    for index, (short, group) in enumerate(groups):
        at, heights = _points(group, values, y)
        style = STYLES[index % len(STYLES)]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(at, np.nanmean(heights, axis=0), style, color=colour, lw=1.4, label=short)
        if len(group) > 1:
            low, high = np.nanmin(heights, axis=0), np.nanmax(heights, axis=0)
            axes.fill_between(at, low, high, color=colour, alpha=0.2, lw=0)
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if log_x and x != "rounds":
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    if x == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter(unit="B"))
    elif x != "rounds":
        axes.xaxis.set_major_formatter(EngFormatter(unit="s"))
    if axes.get_xscale() == "log":
        axes.xaxis.set_minor_formatter(NullFormatter())
    if log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 10 * low:  # powers of ten would be too few to read anything off
            axes.yaxis.set_major_locator(MaxNLocator(6))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_locator(NullLocator())


def _points(
    group: Sequence[Run], values: Callable[[Run], list[float]], y: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where a group's runs were evaluated, on average, and y of each run there; nan after its end."""
    length = max(len(run.rounds) for run in group)
    at, heights = (np.full((len(group), length), np.nan) for _ in range(2))
    for row, run in enumerate(group):
        known = [k for k, value in enumerate(run.column(y)) if value is not None]
        at[row, known] = np.array(values(run), dtype=float)[known]
        heights[row, known] = [run.rounds[k][y] for k in known]
    there = ~np.isnan(heights).all(axis=0)
    if not there.any():
        raise ConfigError(f"The run {group[0].name} has no figure {y!r}.")
    return np.nanmean(at[:, there], axis=0), heights[:, there]


@dataclass(frozen=True)
class Reached:
    """What a run had spent, in rounds, bytes and simulated seconds, when it reached a target."""

    rounds: int
    uplink_bytes: float
    downlink_bytes: float
    seconds: float
    seconds_nominal: float


def reach(run: Run, target: float, y: str = "test_accuracy") -> Reached | None:
    """Return what a run needed to reach `target` for the first time; None if it never did."""
    sign = -1 if y in SMALLER_IS_BETTER else 1
    for index, value in enumerate(run.column(y)):
        if value is not None and sign * value >= sign * target:
            return Reached(
                run.rounds[index]["round"],
                run.running_total("uplink_bytes")[index],
                run.running_total("downlink_bytes")[index],
                run.running_total("simulated_seconds")[index],
                run.running_total("simulated_seconds_nominal")[index],
            )
    return None
