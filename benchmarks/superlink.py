"""A SuperLink with Flower's simulation, on loopback, for one program and for as long as it runs."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
FlwrRun = Callable[..., tuple[str, dict[str, Any]]]


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def own_superlink(home: Path) -> Iterator[FlwrRun]:
    """Yield a function that runs the app and gives its output and Flower's word on how it ended."""
    port = free_port()
    connection = f'[superlink.own]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "own"\n\n{connection}')
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ADDRESS": "local",  # a Ray of its own, whatever else runs on this machine
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    command: list[str | Path] = [
        BIN / "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1",
        "--port", str(port), "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    with (home / "superlink.log").open("w") as log:
        superlink = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        for _ in range(150):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield lambda config, nodes=2: _run(environment, config, nodes)
    finally:
        os.killpg(superlink.pid, signal.SIGTERM)
        try:
            superlink.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(superlink.pid, signal.SIGKILL)
            superlink.wait()


def _flwr(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [BIN / "flwr", *arguments], env=environment, capture_output=True, text=True, timeout=600
    )
    return done.stdout + done.stderr


def _run(environment: dict[str, str], config: str, nodes: int) -> tuple[str, dict[str, Any]]:
    nodes_config = f"num-supernodes={nodes}"
    shown = _flwr(
        environment, "run", str(ROOT), "own", "--stream", "-c", config,
        "--federation-config", nodes_config,
    )  # fmt: skip
    for _ in range(50):  # the log ends a moment before the run does
        runs = json.loads(_flwr(environment, "list", "own", "--format", "json"))["runs"]
        if runs[0]["status"].startswith("finished"):
            break
        time.sleep(0.2)
    return shown, runs[0]
