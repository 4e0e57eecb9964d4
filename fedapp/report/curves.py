"""Curves of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)
from numpy.typing import NDArray

from fedapp.errors import ConfigError
from fedapp.figures import find_figure
from fedapp.report.colours import COLOURS, DASHES, MARKERS, share_drawn
from fedapp.report.labels import labels_of, name_of_each, read_labels, runs_named, what_varies
from fedapp.report.pictures import FONT_SIZE, paper_style, plain, save_picture
from fedapp.report.runs import Group, Run, in_groups
from fedapp.report.units import familiar_unit, in_unit

LARGEST = 1e150  # the largest number that is drawn
MANY = 12  # points, above which only some have a marker
STEPS = [1, 2, 2.5, 5, 10]  # between ticks

# What a curve can be drawn against: rounds, or the running total of a figure.
AXES = {
    "rounds": "round",
    "bytes": "uplink_bytes",
    "total-bytes": "total_bytes",
    "time": "simulated_seconds",
    "nominal-time": "simulated_seconds_nominal",
}


@dataclass(frozen=True)
class Look:
    """How a picture of curves looks."""

    title: str = ""
    log: bool = False  # the y axis
    log_x: bool = False  # bytes and time; rounds never are
    lowest: float | None = None  # where the y axis begins
    width: float = 0  # inches of the whole picture; 0: 4.8 for each panel
    font_size: float = 0  # points; 0: 10
    labels: Sequence[str] = ()  # RUN=NAME
    panels: Sequence[str] = ()  # WORD or WORD=TITLE
    varied: Sequence[str] = ()  # the keys that titles of panels may name; empty: all


@dataclass(frozen=True)
class _Line:
    """A curve on one pair of axes: the mean of a group's runs."""

    label: str
    at: NDArray[np.float64]
    heights: NDArray[np.float64]  # each run's
    look: int  # which colour, dashes and marker

    @property
    def seeds(self) -> int:
        return len(self.heights)


@dataclass(frozen=True)
class _Panel:
    x: str
    title: str = ""
    lines: list[_Line] = field(default_factory=list)


def draw_curves(
    runs: Sequence[Run], x: Sequence[str], y: str, path: Path, look: Look | None = None
) -> None:
    """Draw y of every run against each of the x, side by side.

    Complete runs that differ in their seeds are one curve, their mean, in a band of one standard deviation to
    each side; the legend says so, and which runs are not complete.
    With `look.panels`, each of these words has a panel of its own, with the runs whose names begin so.
    """
    look = look or Look()
    panels = _panels(runs, x, y, look)
    columns = len(x) if len(x) > 1 else 2 if len(panels) == 4 else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    with paper_style(look.font_size) as font:
        width = look.width or (4.8 if columns == 1 else 0.6 + 4.2 * columns)
        height = rows * _panel_height(width / columns)
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for unused in grid.flat[len(panels) :]:
            unused.set_visible(False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            _draw_panel(axes, panel, look)
        _draw_y_axis(grid[0, 0], look)
        for first in grid[:, 0]:
            first.set_ylabel(plain(find_figure(y).label))
        if look.panels:
            for axes, panel in zip(grid.flat, panels, strict=False):
                _title_legend(axes.legend(frameon=False, fontsize="small"), panel.lines)
        else:
            _legend_below(figure, grid[0, 0], panels[0].lines, font)
        if look.title:
            figure.suptitle(plain(look.title))
        save_picture(figure, path, dpi=200)


def _panel_height(width: float) -> float:
    """Return a panel's height, in inches: wide ones are flatter."""
    return 0.72 * min(width, 4.8) + 0.35 * max(0, width - 4.8)


def _panels(runs: Sequence[Run], x: Sequence[str], y: str, look: Look) -> list[_Panel]:
    """Return what each pair of axes shows."""
    places = [text.partition("=")[::2] for text in look.panels or [""]]
    groups = [in_groups(runs_named(word, runs)) for word, _ in places]
    labels = read_labels(look.labels, groups)
    names = name_of_each(runs)
    found = []
    for (word, title), some in zip(places, groups, strict=True):
        if word and not title:
            members = [run for group in _drawable(some, y) for run in group.runs]
            title = what_varies(members, look.varied) or names[id(members[0])]
        found += [_Panel(name, title, _lines(some, name, y, labels)) for name in x]
    return found


def _drawable(groups: Sequence[Group], y: str) -> Sequence[Group]:
    def can_be_drawn(group: Group) -> bool:
        return any(v is not None and abs(v) <= LARGEST for run in group.runs for v in run.column(y))

    return [group for group in groups if can_be_drawn(group)] or groups


def _lines(groups: Sequence[Group], x: str, y: str, labels: Mapping[str, str]) -> list[_Line]:
    """Return the curves; their names and looks are those on the page, which also has runs without any."""
    drawn = _drawable(groups, y)
    return [
        _Line(label, *_points(group.runs, x, y), look)
        for look, (label, group) in enumerate(zip(labels_of(groups, labels), groups, strict=True))
        if group in drawn
    ]


def _draw_panel(axes: Axes, panel: _Panel, look: Look) -> None:
    against = find_figure(AXES[panel.x])
    log = look.log_x and panel.x != "rounds"
    label, size = plain(against.label), 1.0
    by_thousands = log and against.unit in ("bytes", "bits")  # each tick has its unit
    if against.unit and not by_thousands:
        unit, size = familiar_unit(against.unit, _typical(panel.lines, log))
        label = in_unit(label, against.unit, unit)
    left, right = (f(f(line.at) for line in panel.lines) / size for f in (min, max))
    for line in panel.lines:
        marked = marked_points(line.at / size, left, right, line.look, log)
        _draw_line(axes, line, line.at / size, marked, look.log)
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(plain(panel.title), fontsize="medium")
    if log:
        axes.set_xscale("log")
        _round_log_ticks(axes.xaxis, *axes.get_xlim(), long=by_thousands)
        if by_thousands:
            axes.xaxis.set_major_formatter(FuncFormatter(partial(_with_unit, against.unit)))
    else:
        axes.xaxis.set_major_locator(
            MaxNLocator(5, steps=STEPS, integer=panel.x == "rounds", min_n_ticks=2)
        )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _typical(lines: Sequence[_Line], log: bool) -> float:
    """Return a value in whose unit an axis is labelled: its end or, on a log scale, its middle."""
    values = np.concatenate([line.at for line in lines])
    positive = values[values > 0]
    if log and len(positive):
        return float(np.sqrt(positive.min()) * np.sqrt(positive.max()))
    return float(values.max(initial=0))


def marked_points(
    at: NDArray[np.float64], left: float, right: float, look: int, log: bool
) -> list[int]:
    """Return which points of a curve have a marker: some, evenly along the axis; of curves that coincide, different ones."""
    if len(at) <= MANY:
        return list(range(len(at)))
    along = np.log(np.maximum(at, 1e-300)) if log else at
    begin, end = (np.log(max(value, 1e-300)) if log else value for value in (left, right))
    shift = (look % 7) / 7  # as many as colours: dashes come back earlier
    wanted = begin + (end - begin) * (np.arange(8) + shift) / 8
    inside = wanted[(wanted >= along[0]) & (wanted <= along[-1])]
    # A curve that is much shorter than others; whether it is must not depend on its look.
    if along[-1] - along[0] < 3 / 8 * (end - begin) or not len(inside):
        return sorted({int(len(at) * (k + shift) / 3) for k in range(3)})
    return sorted({int(np.abs(along - x).argmin()) for x in inside})


def _draw_line(
    axes: Axes, line: _Line, at: NDArray[np.float64], marked: list[int], log: bool
) -> None:
    """Draw a mean and its band."""
    mean = np.nanmean(line.heights, axis=0)
    style = line_style(line.look)
    axes.plot(at, mean, label=plain(line.label), markevery=marked, **style)
    if line.seeds > 1:
        low, high = std_band(mean, line.heights, log)
        axes.fill_between(at, low, high, color=style["color"], alpha=0.2, lw=0)


def line_style(look: int) -> dict[str, Any]:
    """Return colour, dashes and marker. What has wider gaps lies above, so that curves that coincide all show."""
    dashes = DASHES[look % len(DASHES)]
    scale = mpl.rcParams["font.size"] / FONT_SIZE
    return {
        "linestyle": (0, dashes) if dashes else "-",
        "color": COLOURS[look % len(COLOURS)],
        "lw": scale * (1.5 if dashes else 1.8),
        "marker": MARKERS[look % len(MARKERS)],
        "markersize": scale * 5,
        "markeredgewidth": scale * 0.5,
        "markeredgecolor": "white",
        "zorder": 3 - share_drawn(dashes),
    }


def std_band(
    mean: NDArray[np.float64], heights: NDArray[np.float64], log: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean - std and mean + std over seeds; on a log scale, nothing below the lowest seed where that is not > 0."""
    count = (~np.isnan(heights)).sum(axis=0)
    std = np.sqrt(np.nansum((heights - mean) ** 2, axis=0) / np.maximum(count - 1, 1))
    low = mean - std
    return np.where(log & (low <= 0), np.nanmin(heights, axis=0), low), mean + std


def _draw_y_axis(axes: Axes, look: Look) -> None:
    if look.log:
        axes.set_yscale("log")
    if look.lowest is not None:
        axes.set_ylim(bottom=look.lowest)
    if look.log:
        _round_log_ticks(axes.yaxis, *axes.get_ylim())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))


def _round_log_ticks(axis: Axis, low: float, high: float, long: bool = False) -> None:
    """Set ticks at powers of ten or, if these are too few, at 1, 2 and 5 times such; written plainly where they are short.

    `long` labels, such as 100 kB, need more room.
    """
    if not 0 < low < high:
        return
    decades = np.log10(high / low)
    if decades < (2.3 if long else 3):
        subs: tuple[float, ...] = (1.0, 2.0, 5.0)
        if decades <= 0.7:
            subs = tuple(map(float, range(1, 10)))
        elif long and decades > 1.5:
            subs = (1.0, 5.0)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
        axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    if low > 1e-4 and high < 1e6:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _with_unit(kind: str, value: float, _: object) -> str:
    """Write a tick with the largest unit of which it has at least one: 10 MB."""
    unit, size = familiar_unit(kind, value * (1 + 1e-9))
    return f"{value / size:,.10g} {unit}"


def _about_seeds(lines: Sequence[_Line]) -> str:
    """Return what a legend says of means and bands; empty if no curve is a mean."""
    counts = sorted({line.seeds for line in lines if line.seeds > 1})
    if not counts:
        return ""
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    single = "" if all(line.seeds > 1 for line in lines) else ", where there is a band"
    return f"mean ± standard deviation over {number} seeds{single}"


def _title_legend(legend: Legend, lines: Sequence[_Line]) -> None:
    if about := _about_seeds(lines):
        legend.set_title(about, prop=FontProperties(size="small"))


def _legend_width(labels: Sequence[str], font: float) -> float:
    """Return about how wide one column of a legend is, in inches."""
    return (5.5 + 0.62 * max(map(len, labels))) * font / 72


def _legend_below(figure: Figure, axes: Axes, lines: Sequence[_Line], font: float) -> None:
    handles, labels = axes.get_legend_handles_labels()
    font *= min(1, max(0.5, figure.get_figwidth() / _legend_width(labels, font)))  # long names
    width = _legend_width(labels, font)
    count = max(1, min(len(labels), int(figure.get_figwidth() / width)))
    rows = -(-len(labels) // count)
    count = -(-len(labels) // rows)  # no row that is nearly empty
    needed = (rows + bool(_about_seeds(lines))) * 1.5 * font / 72
    figure.set_figheight(figure.get_figheight() + needed)
    legend = figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=count,
        frameon=False,
        handlelength=2.8,
        fontsize=font,
    )
    _title_legend(legend, lines)


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
        found = np.array(run.column(y), dtype=float)  # nan where there is none
        known = ~np.isnan(found)
        at[row, : len(found)][known] = np.array(_along(run, x), dtype=float)[known]
        heights[row, : len(found)] = found
    # No axis can show what lies beyond, and it would hide all else: as good as not finite.
    heights[(np.abs(heights) > LARGEST) | (np.abs(at) > LARGEST)] = np.nan
    there = ~np.isnan(heights).all(axis=0)
    if not there.any():
        raise ConfigError(f"The run {group[0].name} has no metric {y!r}.")
    return np.nanmean(at[:, there], axis=0), heights[:, there]
