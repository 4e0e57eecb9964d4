"""Pictures as papers take them: fonts, size, and where they are written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

FONT_SIZE = 10.0  # points


@contextmanager
def paper_style(font_size: float = 0) -> Iterator[float]:
    """Draw and write pictures with TrueType fonts, which can be searched and edited; venues reject Type 3.

    Yields the size of the font.
    """
    size = font_size or FONT_SIZE
    with mpl.rc_context({"font.size": size, "pdf.fonttype": 42, "ps.fonttype": 42}):
        yield size


def save_picture(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a picture in the format that its name ends with."""
    with mpl.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
        figure.savefig(path, dpi=dpi)
