"""A SuperLink and SuperNodes as real processes on loopback: same bits, strangers refused, faults survived."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.fedcomgate import FedCOMGATEClient
from deploy.credentials import make_certificates
from deploy.federation import BIN, NAME, ROOT, Federation, Process, assignments, kill
from fedapp.config import Value
from fedapp.records import read_rounds
from fedapp.registry import Algorithm
from tests.conftest import RunInline, kebab
from tests.test_own_data import write_shards

pytestmark = pytest.mark.xdist_group("deploy")  # one after the other: they share what they start

NODES = 3
LATE = 50.0  # seconds that a round may take, far more than it needs
PATIENCE = 300.0


def node_config(federation: Federation, place: int) -> dict[str, Value]:
    """Say which clients a node hosts, and where it keeps their states."""
    state = federation.home / f"state-{place}"
    return {"partition-id": place, "num-partitions": NODES, "state-dir": str(state)}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink with TLS that lets registered nodes in, and three of those."""
    with Federation(tmp_path_factory.mktemp("secure"), secure=True) as federation:
        for place in range(NODES):
            federation.start_node(place, node_config(federation, place))
        yield federation


def wait_until(true: Callable[[], Any], what: str) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.1)


def wait_for_rounds(directory: Path, count: int) -> None:
    path = directory / "rounds.jsonl"
    wait_until(lambda: path.is_file() and path.read_text().count("\n") >= count, f"round {count}")


def wait_for_clients(directory: Path, count: int) -> int:
    """Wait for a round from now on in which so many clients take part; return its number."""
    seen = len(read_rounds(directory))

    def found() -> list[int]:
        return [line["round"] for line in read_rounds(directory)[seen:] if line["clients"] == count]

    wait_until(found, f"a round with {count} clients")
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


def test_the_same_bits_as_inline(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    keys: dict[str, Value] = {"algorithm": "fedcomgate", "num_rounds": 5}
    results: dict[str, Value] = {"results_dir": str(tmp_path), "run_name": "deployed"}
    shown, run = federation.run(assignments(kebab(keys | results)))
    assert run["status"] == "finished:completed", shown
    assert "raw data never leave a node" in shown
    deployed, inline = tmp_path / "deployed", run_inline(**keys)
    assert_same_model(deployed, inline)
    for ours, theirs in zip(read_rounds(deployed), read_rounds(inline), strict=True):
        assert ours | {"wall_seconds": 0} == theirs | {"wall_seconds": 0}
    sent = [line for line in federation.log_of("node-0").splitlines() if "never raw data" in line]
    assert len(sent) == 1


def test_strangers_are_refused(federation: Federation, tmp_path: Path) -> None:
    """One whose key is not registered, and one that trusts another authority: a forged SuperLink's victim."""
    make_certificates(tmp_path, ["localhost", "127.0.0.1"])
    strangers = {
        7: federation.start_node(7, node_config(federation, 0), register=False),
        8: federation.start_node(8, node_config(federation, 0), certificate=tmp_path / "ca.crt"),
    }
    for process in strangers.values():
        assert process.wait(60) != 0
        kill(process)  # what it had started
    assert "Failed to activate SuperNode" in federation.log_of("node-7")
    assert "CERTIFICATE_VERIFY_FAILED" in federation.log_of("node-8")
    nodes = json.loads(federation.flwr("supernode", "list", NAME, "--format", "json"))["nodes"]
    assert sum(node["status"] == "online" for node in nodes) == NODES


FAULTS: dict[str, Value] = {
    "dataset": "quadratic",
    "algorithm": "fedcomgate",
    "lr": 0.05,
    "num_clients": NODES,  # client c lives on node c
    "clients_per_round": NODES,
    "round_timeout": LATE,
    "checkpoint_every": 1,
}


def inline_with_failures(
    run_inline: RunInline, keys: dict[str, Value], failing: set[tuple[int, int]]
) -> Path:
    """Run the same config inline, in which clients fail in given rounds."""
    from fedapp.registry import ALGORITHMS

    class Flaky(FedCOMGATEClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            if (config["round"], self.client) in failing:
                raise RuntimeError("away")
            return super().fit(parameters, config)

    sound = ALGORITHMS["fedcomgate"]
    with pytest.MonkeyPatch.context() as patch:
        flaky = Algorithm("fedcomgate", "", sound.strategy, Flaky, True, sound.compressor)
        patch.setitem(ALGORITHMS, "fedcomgate", flaky)
        return run_inline(**keys | {"checkpoint_every": 0})


def signal_group(process: Process, number: signal.Signals) -> None:
    """Signal a node and what it has started."""
    subprocess.run(["kill", f"-{number.value}", "--", f"-{process.pid}"], check=True)


def bring_back(federation: Federation, place: int) -> None:
    """Start a killed node again and again, as a supervisor would.

    Until the SuperLink has missed two heartbeats of the node, it refuses a second one with the same key.
    """
    while True:
        process = federation.start_node(place, node_config(federation, place))
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            return
        kill(process)  # what it had started


def assert_same_model(one: Path, other: Path) -> None:
    models = [(directory / "model.safetensors").read_bytes() for directory in (one, other)]
    assert models[0] == models[1]


def test_late_and_killed_nodes_cost_their_own_updates_and_flwr_stop_nothing(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    """The model is that of a run in which just those clients failed in just those rounds.

    It is ended by `flwr stop`, and complete up to there.
    """
    keys = FAULTS | {"num_rounds": 1000, "results_dir": str(tmp_path), "run_name": "run"}
    run, directory = Started(federation, keys), tmp_path / "run"
    wait_for_rounds(directory, 1)
    signal_group(federation.nodes[0], signal.SIGSTOP)  # it will answer too late
    wait_for_clients(directory, NODES - 1)
    signal_group(federation.nodes[0], signal.SIGCONT)
    back = wait_for_clients(directory, NODES)
    kill(federation.nodes[1])  # in the middle of a round
    wait_for_clients(directory, NODES - 1)
    bring_back(federation, 1)
    wait_for_clients(directory, NODES)
    run.stop()
    wait_until((directory / "model.safetensors").is_file, "the model")
    assert (directory / "rounds.jsonl").read_text().endswith("\n")
    rounds = read_rounds(directory)
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert "Client 0 failed: " in run.shown()  # no answer in time, or no heartbeat
    assert "STATE IS LOST" not in run.shown()
    thin = [line["round"] for line in rounds if line["clients"] < NODES]
    assert thin[0] == 2
    absent = {(round_, 0 if round_ < back else 1) for round_ in thin}
    inline = keys | {"run_name": "inline", "num_rounds": len(rounds)}
    assert_same_model(directory, inline_with_failures(run_inline, inline, absent))


def test_the_server_waits_for_nodes_that_are_gone(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    keys = FAULTS | {"num_rounds": 2, "results_dir": str(tmp_path), "run_name": "run"}
    run, directory = Started(federation, keys | {"min_clients": NODES}), tmp_path / "run"
    wait_for_rounds(directory, 1)
    for place in range(NODES):
        federation.nodes[place].terminate()
    wait_until(
        lambda: "Waiting for nodes: " in run.shown().partition("round 1/")[2],
        "the server says that nodes are gone",
    )
    for place in range(NODES):
        federation.nodes[place].wait(60)
        kill(federation.nodes[place])  # what it had started
        federation.start_node(place, node_config(federation, place))
    assert run.end() == "finished:completed", run.shown()
    assert "STATE IS LOST" not in run.shown()
    expected = inline_with_failures(run_inline, keys | {"run_name": "inline"}, set())
    assert_same_model(directory, expected)


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


@linux
def test_a_killed_server_app_goes_on_where_it_was(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    keys = FAULTS | {"num_rounds": 4, "results_dir": str(tmp_path), "run_name": "run"}
    run, directory = Started(federation, keys), tmp_path / "run"
    wait_for_rounds(directory, 2)
    (process,) = processes("flwr-serverapp", str(federation.home))
    subprocess.run(["kill", "-KILL", str(process)], check=True)
    federation.flwr(
        "stop", str(federation.last_run()["run-id"]), NAME
    )  # or it waits for a heartbeat
    run.end()
    assert not (directory / "model.safetensors").exists()
    again = Started(federation, keys | {"resume": True})
    assert again.end() == "finished:completed", again.shown()
    assert re.search(r"Going on after round [1-3]\.", again.shown())
    assert "STATE IS LOST" not in again.shown()
    expected = inline_with_failures(run_inline, keys | {"run_name": "inline"}, set())
    assert_same_model(directory, expected)


def test_nodes_with_mistakes_and_a_lost_state(tmp_path: Path) -> None:
    """Four nodes without TLS: two with data of their own, one without any, one that knows no place."""
    shards = write_shards(tmp_path)
    keys: dict[str, Value] = {
        "algorithm": "scaffold", "model": "mlp-10", "num_clients": 3, "clients_per_round": 3, "num_rounds": 1000,
        "results_dir": str(tmp_path), "run_name": "run", "round_timeout": LATE,
        "require_all_clients": "no",
    }  # fmt: skip
    home = tmp_path / "home"
    home.mkdir()
    places: dict[int, dict[str, Value]] = {
        place: {"partition-id": place, "num-partitions": 3, "data-dir": shards[place]}
        for place in range(3)
    }
    places[1]["data-dir"] = str(tmp_path / "nowhere")
    with Federation(home) as federation:
        for place, config in places.items():
            federation.start_node(place, config)
        federation.start_node(3, {})
        run = Started(federation, keys)
        wait_for_rounds(tmp_path / "run", 1)
        signal_group(federation.nodes[2], signal.SIGTERM)
        federation.nodes[2].wait(60)
        federation.start_node(2, places[2])  # it no longer knows what its client remembered
        wait_until(lambda: "STATE IS LOST" in run.shown(), "the server says that a state is lost")
        seen = len(read_rounds(tmp_path / "run"))
        wait_for_rounds(tmp_path / "run", seen + 2)  # and the algorithm goes on
        run.stop()
        shown, wrong, lost = run.shown(), federation.log_of("node-1"), federation.log_of("node-3")
    assert shown.count("Client 1 failed: The node's data-dir") == 1
    assert "nowhere' is not there: give a directory that exists." in wrong
    assert "Traceback" not in wrong
    assert "hosts no clients: A node's config must say which clients it hosts" in shown
    assert "A node's config must say which clients it hosts" in lost
    assert "Traceback" not in lost
    assert shown.count("CLIENT STATE IS LOST: client 2") == 1
    rounds = read_rounds(tmp_path / "run")
    assert all(line["failures"] >= 1 for line in rounds)
    assert rounds[-1]["clients"] == 2
    assert rounds[-1]["test_accuracy"] > 0.15


def test_too_few_nodes_for_too_long_end_the_run(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with Federation(home) as federation:
        config: dict[str, Value] = {
            "node_timeout": 3.0,
            "results_dir": str(tmp_path),
            "run_name": "run",
        }
        shown, run = federation.run(assignments(kebab(config)))
    assert run["status"] == "finished:failed"
    assert "Waiting for nodes: those that are there host 0 of 20 clients" in shown
    assert "none came within node-timeout = 3 seconds: start the missing nodes" in shown
    assert "Traceback" not in shown


def command(*arguments: str, temporary: Path) -> "subprocess.Popen[str]":
    """Start the script that the documents name."""
    return subprocess.Popen(
        [BIN / "python", "deploy/federation.py", *arguments],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_one_command_starts_runs_and_stops_a_federation(tmp_path: Path) -> None:
    preset = tmp_path / "preset.toml"
    preset.write_text('dataset = "quadratic"\nnum-rounds = 3\n')
    results = f'run-name="run" results-dir="{tmp_path}"'
    script = command(
        str(preset), "-c", "num-rounds=1", "-c", results, "--secure", temporary=tmp_path
    )
    shown, _ = script.communicate(timeout=PATIENCE)
    assert script.returncode == 0, shown
    assert "round 1/1" in shown
    assert len(read_rounds(tmp_path / "run")) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["preset.toml", "run"]
    wrong = command("-c", "lr", temporary=tmp_path)
    told, _ = wrong.communicate(timeout=PATIENCE)
    assert wrong.returncode == 2
    assert told.startswith("-c 'lr' is not understood")


@linux
def test_nothing_is_left_when_the_command_is_ended(tmp_path: Path) -> None:
    script = command("-c", 'dataset="quadratic" run-name="run"', temporary=tmp_path)
    home = str(tmp_path / "fedapp-federation-")
    wait_until(lambda: len(processes("supernode", home)) >= 2, "two nodes")
    script.terminate()
    shown, _ = script.communicate(timeout=60)
    assert script.returncode == 130
    assert "Interrupted; everything is stopped." in shown
    wait_until(lambda: not processes("flower", home), "all processes end")


def test_credentials_are_secret_and_never_replaced(tmp_path: Path) -> None:
    words = ["deploy/credentials.py", str(tmp_path / "c"), "--host", "localhost", "--nodes", "2"]
    once = subprocess.run([BIN / "python", *words], cwd=ROOT, capture_output=True, text=True)
    assert once.returncode == 0, once.stderr
    files = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    assert set(files) == {
        "ca.crt", "superlink.crt", "superlink.key", "node-0", "node-0.pub", "node-1", "node-1.pub",
    }  # fmt: skip
    for name in ("superlink.key", "node-0", "node-1"):
        assert (tmp_path / "c" / name).stat().st_mode & 0o777 == 0o600
    again = subprocess.run([BIN / "python", *words], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr == f"{tmp_path / 'c'} is not empty: choose another DIR.\n"
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    with pytest.raises(FileExistsError):
        make_certificates(tmp_path / "c", ["localhost"])
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
