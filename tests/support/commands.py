"""The fedapp command, in this process."""

from collections.abc import Callable

import pytest

from fedapp.cli import main

Fedapp = Callable[..., int]


def fedapp(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["fedapp", *arguments])
    return main()
