"""Fixtures of the tests of reports."""

import matplotlib as mpl
import pytest

from tests.support.commands import Fedapp, fedapp


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Fedapp:
    """Return a function that runs `fedapp`, whose pictures hold their text as text."""
    monkeypatch.setitem(mpl.rcParams, "svg.fonttype", "none")
    return lambda *words: fedapp(monkeypatch, *map(str, words))
