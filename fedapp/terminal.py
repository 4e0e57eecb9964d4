"""Where text is printed: a terminal, a file, or a notebook."""

from typing import Any

from rich.console import Console


def make_console(**options: Any) -> Console:
    """Return a console that prints plain lines in a notebook.

    There rich would make a separate output of every line, and a progress bar would be a stream of escape codes.
    """
    if Console().is_jupyter:
        options = {"force_jupyter": False, "force_terminal": False, "width": 160} | options
    return Console(**options)
