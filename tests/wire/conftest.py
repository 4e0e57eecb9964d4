"""Fixtures of the tests of messages: a quiet log."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Do not log every failure of every example; a test that looks at the log sets the level itself."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel("CRITICAL")
    yield
    log.setLevel(level)
