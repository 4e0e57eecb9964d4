"""Where text is printed: a terminal, a file, or a notebook."""

import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def make_console(**options: Any) -> "Console":
    """Return a console that prints plain lines in a notebook.

    In a notebook, rich makes every line a separate output, and a progress bar a stream of escape codes.
    """
    from rich.console import Console

    if Console().is_jupyter:
        options = {"force_jupyter": False, "force_terminal": False, "width": 160} | options
    return Console(**options)


def columns(narrowest: int = 40) -> int:
    """Return how many columns text may fill: those of the terminal, or 100 where there is none."""
    return max(shutil.get_terminal_size((100, 24)).columns, narrowest)
