"""Calls to workers on this machine: results, errors, death, and the memory that a round's messages share."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import ray

from fedapp.engine import transfer
from fedapp.engine.calls import DirectCalls, WorkerDiedError, WorkerError
from fedapp.engine.ray import RayGrid
from fedapp.engine.ray_workers import RayWorkers
from fedapp.engine.transfer import Page, Pages, page_of
from fedapp.parsing import parse_run_config
from fedapp.server_app import run as run_app
from fedapp.state import DirectoryStore
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
KEYS: dict[str, Value] = {"algorithm": "scaffold", "num_rounds": 3, "model": "mlp-10"}


@pytest.fixture
def workers(workers: RayWorkers) -> RayWorkers:
    """The shared ones, in a run."""
    workers.begin({})
    return workers


def run_on(workers: RayWorkers, directory: Path, **keys: Value) -> bytes:
    config = parse_run_config({"results-dir": str(directory)} | kebab(keys))
    path = run_app(RayGrid(workers, config.flat()), config).path
    return (path / "model.safetensors").read_bytes()


def model_of(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def answer(workers: RayWorkers, call: Any) -> Any:
    workers.calls.wait([call], None)
    return workers.calls.result(call)


def test_workers_on_this_machine_are_called_directly(
    workers: RayWorkers, run_inline: RunInline, tmp_path: Path
) -> None:
    assert isinstance(workers.calls, DirectCalls)
    assert run_on(workers, tmp_path / "ray", **KEYS) == model_of(run_inline(**KEYS))
    assert not [p for p in workers._directory.iterdir() if p.is_file()], "files have no names"
    assert workers._directory.stat().st_mode & 0o777 == 0o700, "nobody else may call"


def test_calls_of_a_worker_are_answered_in_their_order(workers: RayWorkers) -> None:
    actor = workers.actors[0]
    calls = [workers.calls.start(actor, "whereabouts") for _ in range(5)]
    assert workers.calls.wait(calls, None, 5) == calls
    pids = {workers.calls.result(call)[1] for call in calls}
    assert pids == {ray.get(actor.whereabouts.remote())[1]}, "and Ray reaches it meanwhile"


def test_an_error_is_told_and_the_worker_goes_on(workers: RayWorkers) -> None:
    with pytest.raises(WorkerError, match=r"AttributeError: .*no_such_method") as caught:
        answer(workers, workers.calls.start(workers.actors[1], "no_such_method"))
    assert not isinstance(caught.value, WorkerDiedError)
    assert answer(workers, workers.calls.start(workers.actors[1], "whereabouts"))


def test_no_room_for_pages(
    workers: RayWorkers, run_inline: RunInline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all clients receive then goes through the socket, to each worker."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(workers, "_pages", Pages(workers._directory))
    monkeypatch.setattr(transfer, "_mapped", full)
    assert run_on(workers, tmp_path / "ray", **KEYS) == model_of(run_inline(**KEYS))


def test_a_page_is_not_written_to_while_a_worker_may_read_it(
    workers: RayWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that is given up leaves its page to the workers that still train."""
    freed: list[Page] = []
    monkeypatch.setattr(workers._pages, "free", freed.append)
    keys: dict[str, Value] = {"round_timeout": 0.01, "round_retries": 0, "local_steps": 300}
    config = parse_run_config({"results-dir": str(tmp_path)} | kebab(KEYS | keys))
    grid = RayGrid(workers, config.flat())
    with pytest.raises(Exception, match="fewer than min-clients"):
        run_app(grid, config)
    assert grid._flying
    before = len(freed)  # the page of the question who hosts whom
    while grid._flying:
        assert len(freed) == before
        grid._collect(None)
    assert len(freed) == before + 1


def test_pages_are_reused_and_grow(tmp_path: Path) -> None:
    pages = Pages(tmp_path)
    first = pages.write([b"ab", b"c"])
    second = pages.write([b"d"])
    assert first
    assert second
    assert first is not second
    seen = page_of(os.dup(first.descriptor))
    assert bytes(seen[:3]) == b"abc"
    pages.free(first)
    assert pages.write([b"xyz"]) is first
    assert bytes(seen[:3]) == b"xyz"
    pages.free(first)
    larger = pages.write([b"0" * 1000])
    assert larger not in (first, None)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 1


def test_a_worker_that_dies_is_told_and_replaced(
    workers: RayWorkers, run_inline: RunInline, tmp_path: Path
) -> None:
    """With a call in hand, and with one that waits behind it."""
    grid, calls, actor = RayGrid(workers, {}), workers.calls, workers.actors[1]
    pid = answer(workers, calls.start(actor, "whereabouts"))[1]
    os.kill(pid, signal.SIGSTOP)  # it has the calls, and does not answer
    threads = Path(f"/proc/{pid}/task")
    wait_for(
        lambda: all(") T " in (each / "stat").read_text() for each in threads.iterdir()),
        "the worker's stop",
    )
    waiting = [calls.start(actor, "whereabouts") for _ in range(2)]
    assert calls.wait(waiting, 0.2) == []
    os.kill(pid, signal.SIGKILL)
    assert not grid.save_states(DirectoryStore(tmp_path / "states"), {}), "one could not write"
    for call in waiting:
        with pytest.raises(WorkerDiedError):
            answer(workers, call)
    workers.replace(1)
    fresh = answer(workers, calls.start(workers.actors[1], "whereabouts"))[1]
    assert fresh != pid
    assert run_on(workers, tmp_path / "ray", **KEYS) == model_of(run_inline(**KEYS))


def test_a_worker_that_cannot_start_is_told(
    workers: RayWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.kill(workers.actors[1])
    with monkeypatch.context() as patch:
        patch.setattr(workers, "_app", "json:no_such_app")
        workers.replace(1)
    with pytest.raises(WorkerDiedError, match="no_such_app"):
        answer(workers, workers.calls.start(workers.actors[1], "whereabouts"))
    workers.replace(1)
    assert answer(workers, workers.calls.start(workers.actors[1], "whereabouts"))
