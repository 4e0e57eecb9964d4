"""Curves of runs."""

from collections.abc import Sequence
from pathlib import Path

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
from fedapp.figures import find_figure
from fedapp.report.colours import COLOURS, STYLES
from fedapp.report.runs import Run, over_seeds, short_names

LARGEST = 1e150  # of what is drawn


# What a curve can be drawn against: rounds, or the running total of a figure.
AXES = {
    "rounds": "round",
    "bytes": "uplink_bytes",
    "total-bytes": "total_bytes",
    "time": "simulated_seconds",
    "nominal-time": "simulated_seconds_nominal",
}
UNITS = {"bytes": "B", "seconds": "s"}


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

    Complete runs that differ in their seeds are one curve, their mean, in a band from the lowest to the
    highest; the legend says which of the others are not complete.
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
            place.set_title(plain(word), fontsize="medium")
            place.legend(frameon=False, fontsize="small")
    if lowest is not None:
        axes[0, 0].set_ylim(bottom=lowest)
    for first in axes[:, 0]:
        first.set_ylabel(plain(find_figure(y).label))
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


def plain(text: str) -> str:
    """Return a text that a picture shows as it is: no formula between dollars, no label left out for its `_`."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


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
    against = find_figure(AXES[x])
    groups = [(name, group) for name, group in groups if _can_be_drawn(group, y)] or groups
    for index, (short, group) in enumerate(groups):
        at, heights = _points(group, x, y)
        style = STYLES[index % len(STYLES)]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(at, np.nanmean(heights, axis=0), style, color=colour, lw=1.4, label=plain(short))
        if len(group) > 1:
            low, high = np.nanmin(heights, axis=0), np.nanmax(heights, axis=0)
            axes.fill_between(at, low, high, color=colour, alpha=0.2, lw=0)
    axes.set_xlabel(against.label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if log_x and x != "rounds":
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    if against.unit:
        axes.xaxis.set_major_formatter(EngFormatter(unit=UNITS[against.unit]))
    if axes.get_xscale() == "log":
        axes.xaxis.set_minor_formatter(NullFormatter())
    if log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 10 * low:  # powers of ten would be too few to read anything off
            axes.yaxis.set_major_locator(MaxNLocator(6))
            axes.yaxis.set_major_formatter(ScalarFormatter())
            axes.yaxis.set_minor_locator(NullLocator())


def _can_be_drawn(group: Sequence[Run], y: str) -> bool:
    return any(v is not None and abs(v) <= LARGEST for run in group for v in run.column(y))


def _along(run: Run, x: str) -> list[float]:
    """Return where a run's rounds lie on an axis."""
    if x == "rounds":
        return [record["round"] for record in run.rounds]
    return run.running_total(AXES[x])


def _points(
    group: Sequence[Run], x: str, y: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return where a group's runs were evaluated, on average, and y of each run there; nan after its end."""
    length = max(len(run.rounds) for run in group)
    at, heights = (np.full((len(group), length), np.nan) for _ in range(2))
    for row, run in enumerate(group):
        known = [k for k, value in enumerate(run.column(y)) if value is not None]
        at[row, known] = np.array(_along(run, x), dtype=float)[known]
        heights[row, known] = [run.rounds[k][y] for k in known]
    # No axis can show what lies beyond, and it would hide all else: as good as not finite.
    heights[(np.abs(heights) > LARGEST) | (np.abs(at) > LARGEST)] = np.nan
    there = ~np.isnan(heights).all(axis=0)
    if not there.any():
        raise ConfigError(f"The run {group[0].name} has no metric {y!r}.")
    return np.nanmean(at[:, there], axis=0), heights[:, there]
