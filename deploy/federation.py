"""Try the app on a real federation, on this machine: `python deploy/federation.py [PRESET.toml ...] [-c key=value] [--secure]`.

Starts a SuperLink and SuperNodes that listen on loopback alone, runs the app on them, and stops everything.
With --secure they speak TLS, and the SuperLink lets in only nodes whose keys were registered; certificates
and keys are made for this one run. docs/deploy.md tells how to do the same over several machines.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for those who start this file from anywhere

from deploy.credentials import make_certificates, make_node_key  # noqa: E402
from fedapp.config import Value, absolute_paths, add_config_arguments, read_overrides  # noqa: E402
from fedapp.errors import ConfigError  # noqa: E402

BIN = Path(sys.executable).parent
NAME = "federation"  # of the connection, in Flower's config
LOOPBACK = "127.0.0.1"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
Process = subprocess.Popen[bytes]


def assignments(keys: Mapping[str, Value]) -> str:
    """Write keys as `flwr run --run-config` and `--node-config` take them."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in keys.items())


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class Federation:
    """A SuperLink on loopback, and the SuperNodes that are started with it; use as a context manager.

    Logs, keys and Flower's own files are in `home`. With `simulation`, the SuperLink simulates its nodes.
    """

    def __init__(self, home: Path, secure: bool = False, simulation: bool = False) -> None:
        self.home = home
        self.secure = secure
        self.simulation = simulation
        self.port = free_port()
        self.credentials = home / "credentials"
        self.nodes: dict[int, Process] = {}
        self._started: list[Process] = []
        self._environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",  # what is logged can be read at once
            "RAY_ADDRESS": "local",  # a Ray of its own, whatever else runs on this machine
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> "Federation":
        """Start the SuperLink, and wait until it answers."""
        connection = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
        connection += f'address = "{LOOPBACK}:{self.port}"\n'
        if self.secure:
            make_certificates(self.credentials, ["localhost", LOOPBACK])
            connection += f'root-certificates = "{self.credentials}/ca.crt"\n'
        else:
            connection += "insecure = true\n"
        (self.home / "config.toml").write_text(connection)
        try:
            self.superlink = self._start("superlink", self.home, self._superlink_options())
            self._wait_for_port()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything that was started."""
        self.stop()

    def _superlink_options(self) -> list[str]:
        options = ["--host", LOOPBACK, "--port", str(self.port)]
        options += ["--disable-runtime-dependency-installation"]
        if self.simulation:
            options.append("--simulation")
        if not self.secure:
            return [*options, "--insecure"]
        place = self.credentials
        return [
            *options, "--ssl-ca-certfile", f"{place}/ca.crt", "--ssl-certfile", f"{place}/superlink.crt",
            "--ssl-keyfile", f"{place}/superlink.key", "--enable-supernode-auth",
        ]  # fmt: skip

    def start_node(
        self,
        place: int,
        node_config: Mapping[str, Value],
        register: bool = True,
        certificate: Path | None = None,
    ) -> Process:
        """Start a SuperNode; with TLS it has a key, which is made and registered when it is first needed."""
        options = ["--superlink", f"{LOOPBACK}:{self.port}", "--port", str(free_port())]
        options += ["--node-config", assignments(node_config)] if node_config else []
        if self.secure:
            key = self.credentials / f"node-{place}"
            if not key.exists():
                make_node_key(self.credentials, place)
                if register:
                    self.flwr("supernode", "register", f"{key}.pub", NAME)
            trusted = certificate or self.credentials / "ca.crt"
            options += ["--root-certificates", str(trusted)]
            options += ["--auth-supernode-private-key", str(key)]
        else:
            options.append("--insecure")
        home = self.home / f"node-{place}"
        home.mkdir(exist_ok=True)
        self.nodes[place] = self._start("supernode", home, options, name=f"node-{place}")
        return self.nodes[place]

    def _start(self, program: str, home: Path, options: Sequence[str], name: str = "") -> Process:
        """Start one of Flower's programs, in a group of its own; its log is appended to."""
        with (self.home / f"{name or program}.log").open("ab") as log:
            process = subprocess.Popen(
                [BIN / f"flower-{program}", *options],
                env=self._environment | {"FLWR_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _wait_for_port(self) -> None:
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and self.superlink.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((LOOPBACK, self.port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError(
            f"The SuperLink did not start; its log ends with\n{self.log_of()[-2000:]}"
        )

    def log_of(self, name: str = "superlink") -> str:
        """Return what the SuperLink, or `node-<p>`, has logged."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower's, and return what it prints."""
        done = subprocess.run(
            [BIN / "flwr", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode:
            raise RuntimeError(f"`flwr {' '.join(arguments)}` failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def start_run(self, config: str, *options: str, shown: Any = None) -> Process:
        """Start `flwr run` of the app, which shows what the ServerApp says; `shown` is where."""
        given = ["--run-config", config] if config else []
        process = subprocess.Popen(
            [BIN / "flwr", "run", str(ROOT), NAME, "--stream", *given, *options],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=shown,
            stderr=subprocess.STDOUT if shown else None,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def run(self, config: str, *options: str) -> tuple[str, dict[str, Any]]:
        """Run the app; return what was shown, and Flower's word on how it ended."""
        path = self.home / "run.txt"
        with path.open("wb") as shown:
            self.start_run(config, *options, shown=shown).wait(600)
        return path.read_text(errors="replace"), self.ended_run()

    def last_run(self) -> dict[str, Any]:
        """Return what the SuperLink says of the newest run, or nothing if there is none."""
        runs = json.loads(self.flwr("list", NAME, "--format", "json"))["runs"]
        return dict(runs[0]) if runs else {}

    def ended_run(self, limit: float = 30.0) -> dict[str, Any]:
        """Return it when it has ended, which is a moment after its log does."""
        end = time.monotonic() + limit
        while not str((run := self.last_run()).get("status")).startswith("finished"):
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        return run

    def stop(self) -> None:
        """Stop all processes: first with a request, then, or if this is interrupted, without."""
        try:
            for process in reversed(self._started):
                if process.poll() is None:
                    process.terminate()
            end = time.monotonic() + STOP_TIMEOUT
            for process in reversed(self._started):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(end - time.monotonic(), 0.1))
        finally:
            for process in self._started:
                kill(process)
            self._started.clear()


def kill(process: Process) -> None:
    """End a process and all that it started in its group, at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> int:
    """Start a federation, run the app on it, and stop it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_config_arguments(parser)
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="SuperNodes; default: 2")
    parser.add_argument(
        "--data-dirs",
        nargs="*",
        type=Path,
        default=[],
        metavar="DIR",
        help="the local data of each node, one directory each; without, they share a data set",
    )
    parser.add_argument("--secure", action="store_true", help="TLS, and registered nodes only")
    arguments = parser.parse_args()
    if arguments.data_dirs and len(arguments.data_dirs) != arguments.nodes:
        parser.error(f"--data-dirs takes one directory for each of the {arguments.nodes} nodes")
    try:
        given = read_overrides(arguments.presets, arguments.config)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):  # stop everything then, too
        signal.signal(number, signal.default_int_handler)
    home = Path(tempfile.mkdtemp(prefix="fedapp-federation-"))
    ended = False
    try:
        with Federation(home, arguments.secure) as federation:
            print(
                f"SuperLink on {LOOPBACK}:{federation.port}, {arguments.nodes} SuperNodes",
                flush=True,
            )
            for place in range(arguments.nodes):
                config: dict[str, Value] = {
                    "partition-id": place,
                    "num-partitions": arguments.nodes,
                    "state-dir": str(home / f"state-{place}"),
                }
                if arguments.data_dirs:
                    config["data-dir"] = str(arguments.data_dirs[place].absolute())
                federation.start_node(place, config)
            run = federation.start_run(assignments(absolute_paths(given)))
            if run.wait() == 0:
                ended = federation.ended_run().get("status") == "finished:completed"
    except KeyboardInterrupt:
        print("Interrupted; everything is stopped.", file=sys.stderr)
        return 130
    if not ended:
        print(f"The run did not end well: the logs are in {home}.", file=sys.stderr)
        return 1
    shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
