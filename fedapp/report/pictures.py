"""Pictures as papers take them: fonts, size, and where they are written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

FONT_SIZE = 10.0  # points


@contextmanager
def paper_style(font_size: float = 0) -> Iterator[float]:
    """Draw with a font of this size; yield the size."""
    size = font_size or FONT_SIZE
    with mpl.rc_context({"font.size": size}):
        yield size


def plain(text: str) -> str:
    """Return a text that a picture shows as it is: no formula between dollars, no label left out for its `_`."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def save_picture(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a picture in the format that its name ends with.

    Its fonts are TrueType, which can be searched and edited; venues reject Type 3.
    """
    with mpl.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
        figure.savefig(path, dpi=dpi)
