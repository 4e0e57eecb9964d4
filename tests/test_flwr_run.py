"""`flwr run` on a SuperLink of the test's own: the same bits as inline, and mistakes told."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedapp.registry import ALGORITHMS
from tests.conftest import RunInline, read_rounds

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
FlwrRun = Callable[..., tuple[str, dict[str, Any]]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def flwr_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlwrRun]:
    """Return a function that runs the app and gives its output and Flower's word on how it ended."""
    home, port = tmp_path_factory.mktemp("flwr-home"), free_port()
    connection = f'[superlink.test]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "test"\n\n{connection}')
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    command: list[str | Path] = [
        BIN / "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1",
        "--port", str(port), "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    log = (home / "superlink.log").open("w")
    superlink = subprocess.Popen(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )

    def flwr(*arguments: str) -> str:
        done = subprocess.run(
            [BIN / "flwr", *arguments], env=environment, capture_output=True, text=True, timeout=300
        )
        return done.stdout + done.stderr

    def run(config: str, nodes: int = 2) -> tuple[str, dict[str, Any]]:
        shown = flwr(
            "run", str(ROOT), "test", "--stream", "-c", config,
            "--federation-config", f"num-supernodes={nodes}",
        )  # fmt: skip
        for _ in range(50):  # the log ends a moment before the run does
            latest = json.loads(flwr("list", "test", "--format", "json"))["runs"][0]
            if latest["status"].startswith("finished"):
                break
            time.sleep(0.2)
        return shown, latest

    try:
        for _ in range(150):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield run
    finally:
        os.killpg(superlink.pid, signal.SIGTERM)
        try:
            superlink.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(superlink.pid, signal.SIGKILL)
            superlink.wait()
        log.close()


@pytest.mark.parametrize(
    ("algorithm", "nodes"),
    [*((algorithm, 2) for algorithm in ALGORITHMS), ("fedavg", 5), ("mifam", 5)],
)
def test_the_same_bits_as_inline(
    algorithm: str, nodes: int, flwr_run: FlwrRun, run_inline: RunInline, tmp_path: Path
) -> None:
    shown, status = flwr_run(
        f'algorithm="{algorithm}" num-rounds=6 results-dir="{tmp_path}" run-name="simulated"', nodes
    )
    assert status["status"] == "finished:completed", shown
    assert f"Results: {tmp_path}/simulated" in shown
    simulated, inline = tmp_path / "simulated", run_inline(algorithm=algorithm, num_rounds=6)
    assert (simulated / "model.safetensors").read_bytes() == (
        inline / "model.safetensors"
    ).read_bytes()
    records = [read_rounds(directory) for directory in (simulated, inline)]
    assert len(records[0]) == 6
    for ours, theirs in zip(*records, strict=True):
        assert ours | {"wall_seconds": 0} == theirs | {"wall_seconds": 0}
    assert not (simulated / "client-state").exists()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('algorithm="nope"', "algorithm = 'nope' is not known: choose fedavg"),
        ("clients-per-round=21", "set it to at most num-clients = 20."),
    ],
)
def test_a_mistake_ends_the_run_as_failed_without_a_traceback(
    config: str, said: str, flwr_run: FlwrRun
) -> None:
    shown, status = flwr_run(config)
    assert status["status"] == "finished:failed"
    assert said in shown
    assert "Traceback" not in shown
