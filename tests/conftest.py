"""Shared by all tests: a cache of their own, and runs through the real ServerApp and ClientApp."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

# The same examples in every run, so that a change is judged by itself; `--hypothesis-profile=search` looks for new
# ones. No example has a time limit: on a busy machine any may be slow.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=300)
settings.load_profile("same")
# Tests write many small files, and every fsync waits for the disk; not so in memory, if there is enough.
MEMORY = Path("/dev/shm")
ENOUGH = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30
TEMPORARY = os.environ.get("PYTEST_DEBUG_TEMPROOT") or (
    str(MEMORY) if ENOUGH else tempfile.gettempdir()
)
os.environ["PYTEST_DEBUG_TEMPROOT"] = TEMPORARY
# Set before fedapp is imported anywhere, and inherited by the processes that tests start.
os.environ["FEDAPP_CACHE"] = tempfile.mkdtemp(prefix="fedapp-test-cache-", dir=TEMPORARY)
# Ray gives its workers a low priority: beside other tests they would hardly run.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

from fedapp import client_app, rounds, rounds_file, server_app  # noqa: E402
from fedapp.engine import InlineGrid  # noqa: E402
from fedapp.parsing import parse_run_config  # noqa: E402
from fedapp.tables import Value  # noqa: E402

RunInline = Callable[..., Path]
T = TypeVar("T")
# Seconds after which a test counts as hanging. Not a measure of speed: a busy machine may need minutes.
PATIENCE = 900.0
TESTS = Path(__file__).parent


# Modules with tests that take long, and most of all groups whose tests run one after the other: started last, one of
# them would keep a process busy while the others have nothing left to do.
LONGEST = [
    "deploy/test_strangers.py",
    "deploy/test_federation.py",
    "deploy/test_mistakes.py",
    "deploy/test_command.py",
    "engine/test_flwr_run.py",
    "engine/test_ray.py",
    "engine/test_ray_faults.py",
    "engine/test_load.py",
    "theory/test_theory.py",
    "benchmarks/test_kills.py",
    "test_disk.py",
    "test_notebook.py",
    "test_api.py",
    "test_two_runs.py",
    "benchmarks/test_soak.py",
    "test_checkpoint.py",
]


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist deal out groups in the order below, not by their numbers of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_unconfigure() -> None:
    """Delete this process's cache."""
    shutil.rmtree(os.environ["FEDAPP_CACHE"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first."""
    places = {name: place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        return places.get(str(item.path.relative_to(TESTS).as_posix()), len(places))

    items.sort(key=place)


@pytest.fixture
def run_inline(tmp_path: Path) -> RunInline:
    """Return a function that runs a config on InlineGrid and returns the run's directory."""

    def run(nodes: int = 1, **keys: Value) -> Path:
        config = parse_run_config({"results-dir": str(tmp_path)} | kebab(keys))
        grid = InlineGrid(client_app.app, config.flat(), nodes)
        return server_app.run(grid, config).path

    return run


@pytest.fixture
def single_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nodes send every client's update, as real ones do, instead of adding them up."""
    monkeypatch.setattr(rounds, "may_add_up", lambda grid: False)


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
