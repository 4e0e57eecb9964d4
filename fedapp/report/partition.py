"""Who holds which classes, as dots (GradMA's appendix, figure 8)."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedapp.report.colours import COLOURS
from fedapp.report.pictures import paper_style, plain, save_picture

MAX_DOT = 120.0  # points squared
MIN_DOT = 4.0  # a single sample is still visible


def dot_areas(counts: NDArray[np.int64], largest: int) -> NDArray[np.float64]:
    """Return the areas of dots, in points squared: as the counts, but none too small to be seen."""
    return np.maximum(counts * MAX_DOT / largest, MIN_DOT)


def draw_partition(
    counts: NDArray[np.int64], title: str, path: Path, width: float = 0, font_size: float = 0
) -> None:
    """Draw one dot per client and class, its area by the count (clients x classes)."""
    clients, classes = counts.shape
    holders, held = np.nonzero(counts)
    largest = int(counts.max())
    with paper_style(font_size):
        usual, height = min(4.5 + 0.09 * clients, 14), min(2.2 + 0.22 * classes, 12)
        scale = width / usual if width else 1.0
        figure = Figure(figsize=(scale * usual, scale * height), layout="constrained")
        axes = figure.add_subplot()
        areas = dot_areas(counts[holders, held], largest)
        axes.scatter(holders, held, s=areas, color=COLOURS[0], lw=0)
        axes.set(xlabel="client", ylabel="class", title=plain(title))
        axes.set_xlim(-1, clients)
        axes.set_ylim(-0.8, classes - 0.2)
        axes.grid(alpha=0.25)
        axes.set_axisbelow(True)
        if classes <= 20:
            axes.set_yticks(range(classes))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        for count in _examples(largest):
            area = dot_areas(np.array([count]), largest)
            axes.scatter([], [], s=area, color=COLOURS[0], lw=0, label=f"{count:,}")
        axes.legend(title="samples", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        save_picture(figure, path)


def _examples(largest: int) -> list[int]:
    """Return counts for the legend, the largest first: round ones, and a single sample."""
    power = 10 ** (len(str(largest)) - 1)
    top = largest // power * power
    return sorted({top, max(1, top // 4 if top < 10 else top // 40 * 10), 1}, reverse=True)
