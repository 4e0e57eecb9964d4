"""The processes of a federation on this machine: a SuperLink, its proxy, SuperNodes, and `flwr run` on them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from deploy.credentials import make_certificates, make_node_key
from deploy.proxy import find_nginx, nginx_configuration
from fedapp.tables import Value

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
NAME = "federation"  # the connection's name in Flower's config
LOOPBACK = "127.0.0.1"
START_TIMEOUT = 120.0
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

    Logs, keys and Flower's own files are in `home`; keys are deleted when it stops. With `simulation`, the SuperLink simulates
    its nodes. A secure one has a proxy, at `node_port`, for the nodes. Without (`proxied=False`), whoever reaches
    the SuperLink's port is a user, and may start runs.
    """

    def __init__(
        self,
        home: Path,
        secure: bool = False,
        simulation: bool = False,
        proxied: bool = True,
        app: Path = ROOT,
    ) -> None:
        self.home = home
        self.app = app  # the project that `flwr run` runs
        self.secure = secure
        self.simulation = simulation
        self.proxied = secure and proxied
        self.port = free_port()
        self.node_port = free_port() if self.proxied else self.port
        self.credentials = home / "credentials"
        self.nodes: dict[int, Process] = {}
        self._started: list[Process] = []
        self.environment = (
            os.environ
            | {
                "FLWR_HOME": str(home),
                "FLWR_TELEMETRY_ENABLED": "0",
                "PYTHONUNBUFFERED": "1",  # what is logged can be read at once
                "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds until a message's process is started; Flower's own: 1
                "RAY_ADDRESS": "local",  # its own Ray, whatever else runs on this machine
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            }
        )

    def __enter__(self) -> "Federation":
        """Start the SuperLink and, if it is secure, the proxy; wait until they answer."""
        connection = f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
        connection += f'address = "{LOOPBACK}:{self.port}"\n'
        if self.secure:
            make_certificates(self.credentials, ["localhost", LOOPBACK])
            connection += f'root-certificates = "{self.credentials}/ca.crt"\n'
        else:
            connection += "insecure = true\n"
        (self.home / "config.toml").write_text(connection)
        try:
            options = self._superlink_options()
            self.superlink = self._start("superlink", self.home, _flower("superlink", options))
            self._wait_for_port("superlink", self.superlink, self.port)
            if self.proxied:
                self._start_proxy()
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

    def _start_proxy(self) -> None:
        """Start nginx, which passes nodes' requests to the SuperLink."""
        directory = self.home / "proxy"
        directory.mkdir(mode=0o700)
        text = nginx_configuration(
            f"{LOOPBACK}:{self.node_port}",
            f"{LOOPBACK}:{self.port}",
            str(self.credentials),
            str(directory),
            user="root" if os.geteuid() == 0 else "",  # the one whom all of this belongs to
        )
        path = directory / "nginx.conf"
        path.write_text(text)
        command = [find_nginx(), "-e", "stderr", "-c", str(path)]
        proxy = self._start("proxy", self.home, command)
        self._wait_for_port("proxy", proxy, self.node_port)

    def start_node(
        self,
        place: int,
        node_config: Mapping[str, Value],
        register: bool = True,
        certificate: Path | None = None,
    ) -> Process:
        """Start a SuperNode; with TLS it has a key, which is made and registered when it is first needed."""
        options = ["--superlink", f"{LOOPBACK}:{self.node_port}", "--port", str(free_port())]
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
        self.nodes[place] = self._start(f"node-{place}", home, _flower("supernode", options))
        return self.nodes[place]

    def _start(self, name: str, home: Path, command: Sequence[str]) -> Process:
        """Start a program in its own process group; its log is appended to."""
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment | {"FLWR_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _wait_for_port(self, name: str, process: Process, port: int) -> None:
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex((LOOPBACK, port)) == 0:
                    return
            time.sleep(0.2)
        raise RuntimeError(
            f"The {name} did not start; its log ends with\n{self.log_of(name)[-2000:]}"
        )

    def log_of(self, name: str = "superlink") -> str:
        """Return what the SuperLink, the proxy, or `node-<p>`, has logged."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower's, and return what it prints."""
        done = subprocess.run(
            [BIN / "flwr", *arguments],
            env=self.environment,
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
            [BIN / "flwr", "run", str(self.app), NAME, "--stream", *given, *options],
            env=self.environment,
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

    def ended_run(self, limit: float = 120.0) -> dict[str, Any]:
        """Return it when it has ended, which is a moment after its log does."""
        end = time.monotonic() + limit
        while not str((run := self.last_run()).get("status")).startswith("finished"):
            if time.monotonic() > end:
                break
            time.sleep(0.2)
        return run

    def stop(self) -> None:
        """Stop all processes: first with a request, then, or if this is interrupted, without. Then delete the keys."""
        try:
            for number in self.processes():
                _signal(number, signal.SIGTERM)
            end = time.monotonic() + STOP_TIMEOUT
            while self.processes() and time.monotonic() < end:
                time.sleep(0.1)
        finally:
            for process in self._started:
                kill(process)
            while alive := self.processes():
                for number in alive:
                    _signal(number, signal.SIGKILL)
                time.sleep(0.05)
            shutil.rmtree(self.credentials, ignore_errors=True)
            self._started.clear()

    def processes(self) -> list[int]:
        """Return all processes that run for this federation, also those that Flower has started in other groups.

        They are recognised by the home that they inherit. Without /proc, these are the processes that were started from here.
        """
        started = [process.pid for process in self._started if process.poll() is None]
        mark = f"FLWR_HOME={self.home}".encode()
        found = set(started)
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or is another user's
                variables = (entry / "environ").read_bytes().split(b"\0")
                if any(v == mark or v.startswith(mark + b"/") for v in variables):
                    found.add(int(entry.name))
        return sorted(found)


def _flower(program: str, options: Sequence[str]) -> list[str]:
    return [str(BIN / f"flower-{program}"), *options]


def _signal(number: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(number, which)


def kill(process: Process) -> None:
    """End a process and all that it started in its group, at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
