"""The Ray that we start: it listens on loopback alone, strangers are refused, and nothing of it stays behind."""

import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray._raylet import (  # type: ignore[attr-defined]
    AuthenticationMode,
    get_authentication_mode,
)

from fedapp.engine.ray_workers import RayWorkers

# One after the other: they share what they start.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
SETTINGS = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def processes() -> set[int]:
    """Return this process and all that descend from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def address(hexadecimal: str) -> Address:
    """Read an address of /proc/net: words of four bytes, each with its lowest byte first."""
    words = bytes.fromhex(hexadecimal)
    found = ipaddress.ip_address(b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4)))
    return getattr(found, "ipv4_mapped", None) or found


def listening() -> dict[str, tuple[int, Address]]:
    """Return the sockets that these processes listen on: inode -> process and address."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                sockets[f"socket:[{fields[9]}]"] = address(fields[1].partition(":")[0])
    found = {}
    for process in processes():
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                name = str(link.readlink())
            except OSError:
                continue
            if name in sockets:
                found[name] = process, sockets[name]
    return found


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, tuple[int, Address]]]:
    """Start two workers, and return the sockets that are new since."""
    before = listening()
    with RayWorkers(2) as workers:
        ray.get([actor.whereabouts.remote() for actor in workers.actors])
        yield {name: held for name, held in listening().items() if name not in before}
    assert not any(name in os.environ for name in SETTINGS)
    assert get_authentication_mode() == AuthenticationMode.DISABLED


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
