"""Shared by all tests: a cache of their own, and runs through the real ServerApp and ClientApp."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Set before fedapp is imported anywhere, and inherited by the processes that tests start.
os.environ["FEDAPP_CACHE"] = tempfile.mkdtemp(prefix="fedapp-test-cache-")

from fedapp import client_app, records, server_app
from fedapp.config import Value, parse_run_config
from fedapp.engine import InlineGrid

RunInline = Callable[..., Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first: what has to wait for real federations."""
    items.sort(key=lambda item: "test_deploy" not in item.nodeid)


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
    return records.read_rounds(directory)
