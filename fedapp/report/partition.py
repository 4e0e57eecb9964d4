"""Who holds which classes, as dots (GradMA's appendix, figure 8)."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

MAX_DOT = 120.0  # points squared


def draw_partition(counts: NDArray[np.int64], title: str, path: Path) -> None:
    """Draw one dot per client and class, its area by the count (clients x classes)."""
    clients, classes = counts.shape
    holders, held = np.nonzero(counts)
    largest = int(counts.max())
    figure = Figure(figsize=(min(4 + 0.09 * clients, 14), min(2.2 + 0.22 * classes, 12)))
    axes = figure.add_subplot()
    axes.scatter(holders, held, s=counts[holders, held] * MAX_DOT / largest, color="#0072b2", lw=0)
    axes.set(xlabel="client", ylabel="class", title=title)
    axes.set_xlim(-1, clients)
    axes.set_ylim(-0.8, classes - 0.2)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    if classes <= 20:
        axes.set_yticks(range(classes))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for count in sorted({largest, max(1, largest // 4)}, reverse=True):
        axes.scatter([], [], s=count * MAX_DOT / largest, color="#0072b2", lw=0, label=f"{count}")
    axes.legend(title="samples", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
