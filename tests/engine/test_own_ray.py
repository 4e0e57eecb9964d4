"""The Ray that we start: it listens on loopback alone, strangers are refused, and nothing of it stays behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from tests.support.sockets import Address, listening
from tests.support.workers import SETTINGS, TwoWorkers

# One after the other: they share what they start.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]


@pytest.fixture
def started(workers: TwoWorkers) -> dict[str, tuple[int, Address]]:
    """Return the sockets that are new since the workers' Ray was started; `close` looks at the settings after it."""
    ray.get([actor.whereabouts.remote() for actor in workers.actors])
    before = workers.sockets_before
    return {name: held for name, held in listening().items() if name not in before}


def test_every_socket_is_on_loopback(started: dict[str, tuple[int, Address]]) -> None:
    assert len({process for process, _ in started.values()}) >= 5  # driver, GCS, raylet, workers
    assert [held for held in started.values() if not held[1].is_loopback] == []


def test_the_environment_of_this_process_is_as_it_was(
    started: dict[str, tuple[int, Address]],
) -> None:
    assert not any(name in os.environ for name in SETTINGS)


def token_of(process: int) -> str:
    environment = Path(f"/proc/{process}/environ").read_text().split("\0")
    return dict(line.partition("=")[::2] for line in environment)["RAY_AUTH_TOKEN"]


def test_who_has_no_token_is_refused(started: dict[str, tuple[int, Address]]) -> None:
    where = ray.get_runtime_context().gcs_address
    connect = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"

    def connected(**more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", connect, where],
            env=os.environ | more, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    strangers = [connected(), connected(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64)]
    for stranger in strangers:
        assert stranger.returncode != 0
        assert "InvalidAuthToken" in stranger.stderr
    others = {process for process, _ in started.values()} - {os.getpid()}
    ours = connected(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token_of(min(others)))
    assert ours.returncode == 0, ours.stderr
