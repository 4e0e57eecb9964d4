"""Shared by all tests: a cache of their own, and runs through the real ServerApp and ClientApp."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

# Set before fedapp is imported anywhere, and inherited by the processes that tests start.
os.environ["FEDAPP_CACHE"] = tempfile.mkdtemp(prefix="fedapp-test-cache-")

from fedapp import client_app, rounds_file, server_app
from fedapp.config import Value, parse_run_config
from fedapp.engine import InlineGrid

RunInline = Callable[..., Path]
T = TypeVar("T")
# Seconds after which a test counts as hanging. Not a measure of speed: a busy machine may need minutes.
PATIENCE = 600.0


# Modules with tests that take long, and most of all groups whose tests run one after the other: started last, one of
# them would keep a process busy while the others have nothing left to do.
LONGEST = [
    "test_deploy",
    "test_flwr_run",
    "test_ray",
    "test_ray_faults",
    "test_theory",
    "test_killed",
    "test_disk",
    "test_two_runs",
    "test_soak",
    "test_checkpoint",
]


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist deal out groups in the order below, not by their numbers of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture
def run_inline(tmp_path: Path) -> RunInline:
    """Return a function that runs a config on InlineGrid and returns the run's directory."""

    def run(nodes: int = 1, **keys: Value) -> Path:
        config = parse_run_config({"results-dir": str(tmp_path)} | kebab(keys))
        grid = InlineGrid(client_app.app, config.flat(), nodes)
        return server_app.run(grid, config).path

    return run


def kebab(keys: dict[str, Value]) -> dict[str, Value]:
    """Write `fedprox__mu` as `fedprox.mu`, and `num_rounds` as `num-rounds`."""
    return {key.replace("__", ".").replace("_", "-"): value for key, value in keys.items()}


def read_rounds(directory: Path) -> list[dict[str, Any]]:
    """Read `rounds.jsonl`."""
    return rounds_file.read_rounds(directory)


def wait_for(condition: Callable[[], T], what: str) -> T:
    """Return what the condition gives, as soon as that is true."""
    until = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < until, f"{what}: not within {PATIENCE:.0f} s"
        time.sleep(0.05)
    return found


@contextmanager
def default_sigint() -> Iterator[None]:
    """Have processes that are started meanwhile react to Ctrl-C.

    A shell starts what a script puts in the background with SIGINT ignored, which all its children inherit: also
    the tests, and what they start.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
