"""The fedapp command, in this process."""

import pytest

from fedapp.cli import main


def fedapp(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["fedapp", *arguments])
    return main()
