"""Shared by all tests: a cache of their own, and runs through the real ServerApp and ClientApp."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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
from fedapp.lengths import Measured, UpdateLengths  # noqa: E402
from fedapp.parsing import parse_run_config  # noqa: E402
from fedapp.refusals import Refusal  # noqa: E402
from fedapp.tables import Value  # noqa: E402

if TYPE_CHECKING:
    from deploy.processes import Federation
    from tests.support.workers import TwoWorkers

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
# Fixtures that tests of several modules share, all in one xdist group, and after whose other tests they come.
SHARED = {"workers": "engine/test_ray.py", "simulation": "engine/test_flwr_run.py"}
held: dict[str, tuple[ExitStack, Any]] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist deal out groups in the order below, not by their numbers of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_unconfigure() -> None:
    """End what tests share, if they were interrupted, and delete this process's cache."""
    for stack, _ in held.values():
        stack.close()
    shutil.rmtree(os.environ["FEDAPP_CACHE"], ignore_errors=True)


def shared_by(item: pytest.Item | None) -> str:
    """Return the name of what a test shares with those of other modules, if anything."""
    return next((name for name in SHARED if name in getattr(item, "fixturenames", ())), "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first, and those that share something one after the other."""
    places = {name: place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> tuple[int, bool]:
        shares = shared_by(item)
        module = SHARED.get(shares, str(item.path.relative_to(TESTS).as_posix()))
        return places.get(module, len(places)), bool(shares)

    items.sort(key=place)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End what tests share with the last of them; also for the sake of the others, which need its place."""
    name = shared_by(item)
    if name in held and shared_by(nextitem) != name:
        held.pop(name)[0].close()


def shared(name: str, start: Callable[[], AbstractContextManager[T]]) -> T:
    """Return what tests share; it is started for the first of them."""
    if name not in held:
        stack = ExitStack()
        held[name] = stack, stack.enter_context(start())
    found: T = held[name][1]
    return found


@pytest.fixture(scope="session", autouse=True)
def long_updates() -> Iterator[list[str]]:
    """Note the updates that `max-update-ratio` refuses in this process."""
    noted: list[str] = []
    refused = UpdateLengths.refused

    def noting(self: UpdateLengths, measured: Measured) -> list[Refusal]:
        found = refused(self, measured)
        noted.extend(f"client {refusal.client}: {refusal.text}" for refusal in found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UpdateLengths, "refused", noting)
        yield noted


@pytest.fixture(autouse=True)
def no_long_updates(request: pytest.FixtureRequest, long_updates: list[str]) -> Iterator[None]:
    """Fail a test in which an honest client's update was refused as unusually long."""
    yield
    noted = [*long_updates]
    long_updates.clear()
    assert not noted or request.node.get_closest_marker("long_updates"), noted[0]


@pytest.fixture
def workers() -> "TwoWorkers":
    """Return two Ray workers: while they are there, this process's Ray has no place for others."""
    from tests.support.workers import TwoWorkers

    return shared("workers", TwoWorkers)


@pytest.fixture
def simulation(tmp_path_factory: pytest.TempPathFactory) -> "Federation":
    """Return a SuperLink with Flower's simulation."""
    from tests.support.federations import simulating

    return shared("simulation", lambda: simulating(tmp_path_factory.mktemp("flwr-home")))


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
