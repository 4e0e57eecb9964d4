"""A heat map of runs over two config keys."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedapp.errors import ConfigError
from fedapp.report.curves import NOT_COMPARED, Run, over_seeds


def draw_grid(runs: Sequence[Run], x: str, y: str, value: str, path: Path, title: str = "") -> None:
    """Draw the best `value` of the runs, its mean over seeds, for every pair of values of two keys."""
    for key in (x, y):
        if any(key not in run.config for run in runs):
            raise ConfigError(
                f"{key} is not a config key: see config.json of a run for those there are."
            )
    columns, rows = (sorted({run.config[key] for run in runs}) for key in (x, y))
    values = np.full((len(rows), len(columns)), np.nan)
    held: dict[tuple[int, int], Run] = {}
    for _, group in over_seeds(runs):
        run = group[0]
        place = rows.index(run.config[y]), columns.index(run.config[x])
        if place in held:
            other = held[place].config
            key = next(
                k for k in run.config if k not in NOT_COMPARED and run.config[k] != other.get(k)
            )
            raise ConfigError(
                f"Two runs with the same {x} and {y} differ in {key}: give runs that do not."
            )
        held[place] = run
        found = [run.best(value) for run in group]
        values[place] = np.nanmean(found) if not np.isnan(found).all() else np.nan
    if np.isnan(values).all():
        raise ConfigError(f"These runs have no figure {value!r}.")
    figure = Figure(figsize=(1.6 + 0.9 * len(columns), 1.4 + 0.7 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="viridis", origin="lower", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (row, column), number in np.ndenumerate(values):
        if not np.isnan(number):
            colour = "black" if number > middle else "white"
            axes.text(
                column, row, f"{number:.3f}", ha="center", va="center", color=colour, fontsize=9
            )
    axes.set_xticks(
        range(len(columns)), [f"{v:g}" if isinstance(v, float) else str(v) for v in columns]
    )
    axes.set_yticks(range(len(rows)), [f"{v:g}" if isinstance(v, float) else str(v) for v in rows])
    axes.set(xlabel=x, ylabel=y, title=title)
    figure.colorbar(image, label=f"best {value.replace('_', ' ')}")
    figure.savefig(path, dpi=150)
