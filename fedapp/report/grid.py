"""A heat map of runs over two config keys."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from fedapp.errors import ConfigError
from fedapp.figures import Figure as Metric
from fedapp.figures import find_figure
from fedapp.names import display_name
from fedapp.report.curves import LARGEST
from fedapp.report.labels import dataset_name, in_words, what_runs_are
from fedapp.report.pictures import paper_style, plain, save_picture
from fedapp.report.runs import Run, judged_by, replicates, setting_of
from fedapp.report.units import UNITS, familiar_unit, in_unit


def draw_grid(
    runs: Sequence[Run],
    x: str,
    y: str,
    value: str,
    path: Path,
    title: str = "",
    width: float = 0,
    font_size: float = 0,
) -> None:
    """Draw the best `value` of the runs, or what they spent of it, for every pair of values of two keys.

    A cell is the mean over its complete runs with different seeds. One that holds other runs is marked, and
    the runs are named below. With validation data (valid-share), a cell has the test metric of the round that is best on
    them, and the setting that they choose is framed.
    """
    for key in (x, y):
        if any(key not in run.config for run in runs):
            raise ConfigError(
                f"{key} is not a config key: see config.json of a run for those there are."
            )
    columns, rows = (_values(runs, key) for key in (x, y))
    cells: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        place = rows.index(run.config[y]), columns.index(run.config[x])
        cells.setdefault(place, []).append(run)
    values = np.full((len(rows), len(columns)), np.nan)
    judge, judged = judged_by(runs, value), np.full_like(values, np.nan)
    states: dict[tuple[int, int], str] = {}  # cell without complete runs -> what it holds
    notes: list[str] = []
    for place, members in cells.items():
        _check_alike(members, x, y)
        kept, others = replicates(members)
        if others:
            states[place] = str(others[0][0].status.state)
            notes += [f"{run.name}: {what}" for run, what in others]
        values[place] = _mean([run.outcome(value) for run in kept or members])
        judged[place] = _mean([run.outcome(judge) for run in kept or members])
    if np.isnan(values).all():
        raise ConfigError(f"These runs have no metric {value!r}.")
    validated = judge != value and not np.isnan(judged).all()
    below = _below(notes)
    if validated:
        below.append(f"framed: chosen on validation data ({plain(judge)})")
    with paper_style(font_size) as font:
        height = 1.4 + 0.7 * len(rows) + 0.2 * len(below)
        figure = Figure(figsize=(width or 1.6 + 0.9 * len(columns), height), layout="constrained")
        axes = figure.subplots()
        _draw_cells(axes, values, states, find_figure(value), 0.9 * font)
        if validated:
            _frame(axes, judged, find_figure(judge).better == "lower")
        axes.set_xticks(range(len(columns)), [_tick(x, v) for v in columns])
        axes.set_yticks(range(len(rows)), [_tick(y, v) for v in rows])
        axes.set(xlabel=plain(in_words(x)), ylabel=plain(in_words(y)))
        axes.set_title(plain(title or f"{what_runs_are(runs)}\n{_shown(find_figure(value))}"))
        if below:
            figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=0.7 * font)
        save_picture(figure, path)


def _draw_cells(
    axes: Axes,
    values: NDArray[np.float64],
    states: Mapping[tuple[int, int], str],
    shown: Metric,
    font: float,
) -> None:
    """Colour the cells and write their values into them, in a unit that the bar of colours names."""
    label, form = plain(_shown(shown)), ".3f"
    if shown.unit in UNITS:
        unit, size = familiar_unit(shown.unit, float(np.nanmax(values)))
        values, label, form = values / size, in_unit(plain(shown.label), shown.unit, unit), ".3g"
    image = axes.imshow(values, cmap="viridis", origin="lower", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), number in np.ndenumerate(values):
        state = states.get((row, column), "")
        text = state if np.isnan(number) else f"{number:{form}}{'*' if state else ''}"
        colour = "black" if np.isnan(number) or number > middle else "white"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=font)
    axes.figure.colorbar(image, label=label)


def _shown(metric: Metric) -> str:
    return metric.label if metric.unit in UNITS else f"best {metric.label}"


def _mean(values: Sequence[float]) -> float:
    """Return the mean of what can be drawn; nan if there is nothing."""
    known = [number for number in values if abs(number) <= LARGEST]
    return float(np.mean(known)) if known else math.nan


def _frame(axes: Axes, values: NDArray[np.float64], lower: bool) -> None:
    """Draw a frame around the best cell."""
    best = np.nanargmin(values) if lower else np.nanargmax(values)
    row, column = np.unravel_index(best, values.shape)
    axes.add_patch(
        Rectangle((column - 0.48, row - 0.48), 0.96, 0.96, fill=False, edgecolor="red", linewidth=2)
    )


MOST_NOTES = 8


def _below(notes: Sequence[str]) -> list[str]:
    """Return the lines below the map."""
    if not notes:
        return []
    more = [f"and {len(notes) - MOST_NOTES} more"] if len(notes) > MOST_NOTES else []
    listed = [*notes[:MOST_NOTES], *more]
    return ["* not all of its runs are complete runs with seeds of their own:", *map(plain, listed)]


def _values(runs: Sequence[Run], key: str) -> list[Any]:
    """Return a key's values in order; texts come after numbers."""
    return sorted(
        {run.config[key] for run in runs},
        key=lambda v: (isinstance(v, str), v if not isinstance(v, str) else 0, str(v)),
    )


def _tick(key: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    names = {"algorithm": display_name, "dataset": dataset_name}
    return plain(names.get(key, str)(str(value)))


def _check_alike(members: Sequence[Run], x: str, y: str) -> None:
    """Refuse runs in one cell that are not replicates."""
    first = setting_of(members[0], (x, y))
    for run in members[1:]:
        other = setting_of(run, (x, y))
        for key in first | other:
            if first.get(key) != other.get(key):
                raise ConfigError(
                    f"Two runs with the same {x} and {y} differ in {key}: give runs that do not."
                )
