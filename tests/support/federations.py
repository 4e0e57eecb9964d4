"""Real federations: what their tests start, wait for and look at."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.superlink import ONE_ACTOR
from deploy.processes import NAME, ROOT, Federation, Process, assignments
from deploy.proxy import find_nginx
from fedapp.errors import ConfigError
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value
from tests.conftest import PATIENCE, kebab, wait_for

NODES = 2
LATE = 600.0  # seconds that a round may take, far more than it needs; Flower misses heartbeats after one minute


class CalmFederation(Federation):
    """One that looks for tasks every second, as Flower does by itself.

    Five times a second, as `Federation` has it, its processes take three times as much of a processor while they wait,
    and in these tests they mostly wait.
    """

    def __init__(self, home: Path, **how: Any) -> None:
        super().__init__(home, **how)
        self.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "1"


def simulating(home: Path) -> Federation:
    """Return a SuperLink with Flower's simulation, not started yet."""
    with pytest.MonkeyPatch.context() as patch:
        # Flower unpacks an app: nothing of it may come from elsewhere.
        patch.setenv("PYTHONPATH", str(ROOT))
        return CalmFederation(home, simulation=True)


def simulated(
    federation: Federation, config: str, nodes: int = 2, app: Path = ROOT
) -> tuple[str, dict[str, Any]]:
    """Run an app there; return what was shown, and Flower's word on how it ended."""
    federation.app = app
    return federation.run(config, "--federation-config", f"num-supernodes={nodes} {ONE_ACTOR}")


def has_nginx() -> bool:
    """Tell whether strangers can be tested."""
    try:
        return bool(find_nginx())
    except ConfigError:
        return False


needs_nginx = pytest.mark.skipif(
    not has_nginx(), reason="NGINX IS NOT INSTALLED: that strangers are refused is NOT tested here"
)


def node_config(federation: Federation, place: int) -> dict[str, Value]:
    """Say which clients a node hosts, and where it keeps their states."""
    state = federation.home / f"state-{place}"
    return {"partition-id": place, "num-partitions": NODES, "state-dir": str(state)}


def wait_for_rounds(directory: Path, count: int) -> None:
    path = directory / "rounds.jsonl"
    wait_for(lambda: path.is_file() and path.read_text().count("\n") >= count, f"round {count}")


def wait_for_clients(directory: Path, count: int) -> int:
    """Wait for a new round in which `count` clients take part; return its number."""
    seen = len(read_rounds(directory))

    def found() -> list[int]:
        return [line["round"] for line in read_rounds(directory)[seen:] if line["clients"] == count]

    wait_for(found, f"a round with {count} clients")
    return found()[0]


class Started:
    """`flwr run`, under way."""

    def __init__(self, federation: Federation, keys: dict[str, Value]) -> None:
        self.path = federation.home / "run.txt"
        self.file = self.path.open("wb")
        self.process = federation.start_run(assignments(kebab(keys)), shown=self.file)
        self.federation = federation

    def shown(self) -> str:
        return self.path.read_text(errors="replace")

    def stop(self) -> None:
        """Let `flwr stop` end it."""
        self.federation.flwr("stop", str(self.federation.last_run()["run-id"]), NAME)
        assert self.end() == "finished:stopped", self.shown()

    def end(self) -> str:
        """Wait for the end; return how it was."""
        self.process.wait(PATIENCE)
        self.file.close()
        return str(self.federation.ended_run()["status"])


def nodes_of(federation: Federation) -> list[dict[str, Any]]:
    """Return what the SuperLink says of its nodes."""
    return list(json.loads(federation.flwr("supernode", "list", NAME, "--format", "json"))["nodes"])


def signal_group(process: Process, number: signal.Signals) -> None:
    """Signal a node and what it has started."""
    subprocess.run(["kill", f"-{number.value}", "--", f"-{process.pid}"], check=True)


def assert_same_model(one: Path, other: Path) -> None:
    models = [(directory / "model.safetensors").read_bytes() for directory in (one, other)]
    assert models[0] == models[1]


def processes(program: str, home: str) -> list[int]:
    """Return the processes of Flower's whose files are in, or below, a home."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if program.encode() in command and f"FLWR_HOME={home}".encode() in environment:
            found.append(int(process.name))
    return found


linux = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="looks processes up in /proc"
)
