"""Checks of the plain values in a message: nothing from the other side is believed to have the right type."""

import math
from typing import Any

from flwr.app import Message

LONGEST_TEXT = 300  # characters of a node's text that are shown


def printable(text: str) -> str:
    """Return a node's text as one short line that is safe to print in a terminal."""
    shown = "".join(c if c.isprintable() else " " for c in text[: LONGEST_TEXT + 1])
    return shown if len(text) <= LONGEST_TEXT else f"{shown[: LONGEST_TEXT - 1]}…"


def error_text(message: Message) -> str:
    """Return why a message is an error: the last line that it gives."""
    end = (message.error.reason or "")[-10 * LONGEST_TEXT :]
    lines = end.strip().splitlines()
    return printable(lines[-1]) if lines else f"Flower reported error {message.error.code}"


def are_whole_numbers(values: Any) -> bool:
    """Return whether this is a list of whole numbers, none of them negative."""
    return isinstance(values, list) and all(type(n) is int and n >= 0 for n in values)


def are_finite_numbers(values: Any, count: int) -> bool:
    """Return whether this is a list of `count` finite floats."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(n, float) and math.isfinite(n) for n in values)
    )
