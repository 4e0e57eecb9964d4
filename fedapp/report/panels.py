"""Pictures of a few curves each, side by side."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from fedapp.report.colours import COLOURS
from fedapp.report.pictures import save_picture

Numbers = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A labelled curve: a "line", a "dashed" line, "points", or a "guide" to compare with."""

    label: str
    x: Numbers
    y: Numbers
    kind: str = "line"


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = True
    log_y: bool = True


def draw_panels(panels: Sequence[Panel], title: str, path: Path) -> None:
    """Draw panels side by side into one picture."""
    size = (0.6 + 4.4 * len(panels), 4.2)
    figure = Figure(figsize=size, layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    figure.suptitle(title)
    save_picture(figure, path, dpi=130)


def _draw(axes: Axes, panel: Panel) -> None:
    colours = itertools.cycle(COLOURS)
    for curve in panel.curves:
        colour = "" if curve.kind == "guide" else next(colours)
        match curve.kind:
            case "guide":
                label = curve.label or None
                axes.plot(curve.x, curve.y, "--", color="0.55", lw=1, label=label, zorder=1)
            case "points":
                axes.plot(curve.x, curve.y, "o-", color=colour, lw=1.2, ms=5, label=curve.label)
            case kind:
                style = "--" if kind == "dashed" else "-"
                axes.plot(curve.x, curve.y, style, color=colour, lw=1.4, label=curve.label)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    points = [curve.x for curve in panel.curves if curve.kind == "points"]
    if points and len(points[0]) < 8:  # say where they are; powers of ten would be too few
        axes.set_xticks(points[0], [f"{x:g}" for x in points[0]])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
