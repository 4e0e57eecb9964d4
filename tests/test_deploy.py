"""A SuperLink and SuperNodes as real processes on loopback: same bits, strangers refused, faults survived."""

import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, StopRunRequest
from flwr.proto.fleet_pb2 import (
    DeactivateNodeRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, push_objects
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from clients.fedcomgate import FedCOMGATEClient
from deploy import federation as federation_script
from deploy.credentials import make_certificates, make_node_key
from deploy.federation import BIN, NAME, ROOT, Federation, Process, assignments, kill
from deploy.proxy import FLEET_ROUTES, REFUSAL, find_nginx
from fedapp.config import Value
from fedapp.errors import ConfigError
from fedapp.records import read_rounds
from fedapp.registry import Algorithm
from tests.conftest import RunInline, kebab
from tests.test_own_data import write_shards

pytestmark = pytest.mark.xdist_group("deploy")  # one after the other: they share what they start

NODES = 3
LATE = 600.0  # seconds that a round may take, far more than it needs; Flower misses heartbeats after one minute
PATIENCE = 900.0  # nothing here depends on how long things take


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


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink with TLS behind a proxy, which lets registered nodes in, and three of those."""
    home = tmp_path_factory.mktemp("secure")
    with Federation(home, secure=True, proxied=has_nginx()) as federation:
        for place in range(NODES):
            federation.start_node(place, node_config(federation, place))
        wait_until(lambda: federation.log_of().count("Activated node_id") == NODES, "the nodes")
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
    """Wait for a new round in which `count` clients take part; return its number."""
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


def nodes_of(federation: Federation) -> list[dict[str, Any]]:
    """Return what the SuperLink says of its nodes."""
    return list(json.loads(federation.flwr("supernode", "list", NAME, "--format", "json"))["nodes"])


class Stranger:
    """One who reaches the nodes' door, and has what every node has: the authority's public certificate."""

    def __init__(self, federation: Federation, home: Path) -> None:
        home.mkdir()
        self.home = home
        self.address = f"127.0.0.1:{federation.node_port}"
        self.certificate = str(shutil.copy(federation.credentials / "ca.crt", home))
        connection = f'address = "{self.address}"\nroot-certificates = "{self.certificate}"\n'
        (home / "config.toml").write_text(f"[superlink.{NAME}]\n{connection}")
        make_node_key(home, 0)

    def flwr(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command of Flower's."""
        return subprocess.Popen(
            [BIN / "flwr", *arguments],
            env=os.environ | {"FLWR_HOME": str(self.home), "FLWR_TELEMETRY_ENABLED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
        """Send a request with a path that is not tidied up; return the answer."""
        context = ssl.create_default_context(cafile=self.certificate)
        host, port = self.address.split(":")
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=PATIENCE)
        try:
            connection.request(
                method, path, body, {"Content-Type": "application/protobuf"} | headers
            )
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()


def node_clients(
    federation: Federation, stranger: "Stranger", place: int
) -> tuple[FleetHttpClient, ControlHttpClient, int]:
    """Return connections that hold a node's key, to the fleet and to the control API, and the node's number."""
    private = load_ssh_private_key((federation.credentials / f"node-{place}").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    signs = [NodeAuthHttpInterceptor(private, private.public_key())]
    how = (stranger.address, False, stranger.certificate, signs)
    fleet = FleetHttpClient.from_server_address(*how)

    def speaks_for(node_id: int) -> bool:
        request = SendNodeHeartbeatRequest(node=Node(node_id=node_id), heartbeat_interval=30)
        try:
            return bool(fleet.SendNodeHeartbeat(request).success)
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == 401
            return False

    (mine,) = [n["node-id"] for n in nodes_of(federation) if speaks_for(int(n["node-id"]))]
    return fleet, ControlHttpClient.from_server_address(*how), int(mine)


def send_unasked(fleet: FleetHttpClient, node_id: int, run_id: int) -> None:
    """Send the server a message that answers nothing, as if from the SuperLink to itself."""
    message = make_message(
        content=RecordDict(),
        metadata=Metadata(
            run_id=run_id, message_id="", src_node_id=1, dst_node_id=1, reply_to_message_id="", group_id="",
            created_at=time.time(), ttl=3600, message_type="train",
        ),
    )  # fmt: skip
    message.metadata.__dict__["_message_id"] = message.object_id
    node = Node(node_id=node_id)
    told = fleet.PushMessages(
        PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
        )
    )
    assert told.objects_to_push  # it is taken
    push = make_push_object_fn_protobuf(fleet.PushObject, node, run_id, told.session_id)
    with suppress(ObjectPushError):  # the server has fetched it, and the SuperLink forgotten it
        push_objects(get_all_nested_objects(message), push)


def test_the_same_bits_as_inline_while_a_stranger_gets_nothing(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    """He tries to list, run, stop, register and unregister with Flower's own command while honest nodes train.

    And one of the nodes sends the server messages that nobody asked for.
    """
    keys: dict[str, Value] = {"algorithm": "fedcomgate", "num_rounds": 5}
    results: dict[str, Value] = {"results_dir": str(tmp_path), "run_name": "deployed"}
    he = Stranger(federation, tmp_path / "stranger")
    fleet, _, mine = node_clients(federation, he, 2)
    run = Started(federation, keys | results)
    deployed = tmp_path / "deployed"
    wait_for_rounds(deployed, 1)
    run_id = str(re.findall(r"started run (\d+)", run.shown())[0])
    for _ in range(3):
        send_unasked(fleet, mine, int(run_id))
    if federation.proxied:
        node_id = str(mine)
        tried = [
            he.flwr("list", NAME),
            he.flwr("supernode", "list", NAME),
            he.flwr("supernode", "register", str(he.home / "node-0.pub"), NAME),
            he.flwr("supernode", "unregister", node_id, NAME),
            he.flwr("stop", run_id, NAME),
            he.flwr("run", str(ROOT), NAME, "--run-config", 'run-name="his"'),
            he.flwr("log", run_id, NAME, "--show"),
        ]
        for process in tried:
            shown = process.communicate(timeout=PATIENCE)[0]
            assert process.returncode != 0, (process.args, shown)
            assert "403" in shown, (process.args, shown)
        assert str(federation.last_run()["run-id"]) == run_id  # his own was not started
    assert run.end() == "finished:completed", run.shown()
    assert "raw data never leave a node" in run.shown()
    assert [node["status"] for node in nodes_of(federation)] == ["online"] * NODES
    inline = run_inline(**keys)
    assert_same_model(deployed, inline)
    for ours, theirs in zip(read_rounds(deployed), read_rounds(inline), strict=True):
        assert ours | {"wall_seconds": 0} == theirs | {"wall_seconds": 0}
    sent = [line for line in federation.log_of("node-0").splitlines() if "never raw data" in line]
    assert len(sent) == 1


@needs_nginx
def test_the_proxy_passes_what_nodes_need_and_nothing_else(
    federation: Federation, tmp_path: Path
) -> None:
    he = Stranger(federation, tmp_path / "stranger")
    passed = [f"/v1/fleet/{route}" for route in FLEET_ROUTES]
    served = [path for _, path in PROTOBUF_REQUEST_TYPES]
    assert set(passed) < set(served)  # Flower still calls them so
    for path in passed:
        status, told = he.ask("POST", path)
        assert status == 401, (path, told)  # Flower's own answer: no signature
        assert he.ask("GET", path)[0] == 403
    refused = [path for path in served if path not in passed]
    refused += [
        "/",
        "/health",
        "/docs",
        "/openapi.json",
        "/v1/responses",
        "/v1/fleet/",
        "/v1/fleet",
    ]
    for path in refused:
        for method in ("POST", "GET"):
            assert he.ask(method, path) == (403, f"{REFUSAL}\n"), path
    # No spelling of a refused path gets through.
    secret = "control/list-invitations"  # which nobody else asks for
    for path in (
        f"/v1/fleet/../{secret}",
        f"/v1/fleet/get-run/../../{secret}",
        f"/v1/fleet/%2e%2e/{secret}",
        f"/v1/fleet/get-run%2f..%2f..%2f{secret}",
        f"//v1/{secret}",
        f"/v1/fleet/get-run;/../../{secret}",
        f"/v1/fleet/get-run?/../../{secret}",
        f"/v1/fleet/get-run#/../../{secret}",
        f"/v1/fleet/get-run%0d%0aPOST%20/v1/{secret}",
        f"/v1/fleet/get-run%00/../../{secret}",
        f"/v1/fleet\\..\\{secret}",
        f"https://{he.address}/v1/{secret}",
        f"http://127.0.0.1:{federation.port}/v1/{secret}",
        f"/V1/{secret}",
        f"/v1/./{secret}",
    ):
        status, told = he.ask("POST", path)
        assert status in (400, 401, 403, 404), (path, status, told)
    smuggled = f"POST /v1/{secret} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
    he.ask("POST", "/v1/fleet/get-run", b"0\r\n\r\n" + smuggled, **{"Transfer-Encoding": "chunked"})
    he.ask("POST", "/v1/fleet/get-run", smuggled, Upgrade="h2c", Connection="Upgrade")
    assert he.ask("POST", "/v1/fleet/push-object", bytes(17 << 20))[0] == 413
    logged = federation.log_of()
    assert "/v1/fleet/get-run" in logged  # it says who asks for what
    assert "list-invitations" not in logged


@needs_nginx
def test_a_nodes_key_does_not_open_the_users_door(federation: Federation, tmp_path: Path) -> None:
    he = Stranger(federation, tmp_path / "stranger")
    fleet, control, mine = node_clients(federation, he, 0)
    nodes = [int(node["node-id"]) for node in nodes_of(federation)]
    other = next(node for node in nodes if node != mine)
    new = RegisterNodeFleetRequest(public_key=b"new")
    attempts: list[tuple[int, Callable[[], object]]] = [
        (403, lambda: control.ListRuns(ListRunsRequest())),
        (403, lambda: control.StopRun(StopRunRequest(run_id=1))),
        (403, lambda: fleet.RegisterNode(new)),
        (403, lambda: fleet.UnregisterNode(UnregisterNodeFleetRequest(node_id=mine))),
        (401, lambda: fleet.DeactivateNode(DeactivateNodeRequest(node_id=other))),
    ]
    for status, attempt in attempts:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            attempt()
        assert refused.value.response.status_code == status
    assert [node["status"] for node in nodes_of(federation)] == ["online"] * NODES


def test_unregistered_nodes_and_forged_authorities_are_refused(
    federation: Federation, tmp_path: Path
) -> None:
    """One whose key is not registered, and one that trusts another authority: a forged SuperLink's victim."""
    make_certificates(tmp_path, ["localhost", "127.0.0.1"])
    strangers = {
        7: federation.start_node(7, node_config(federation, 0), register=False),
        8: federation.start_node(8, node_config(federation, 0), certificate=tmp_path / "ca.crt"),
    }
    for process in strangers.values():
        assert process.wait(PATIENCE) != 0
        kill(process)  # what it had started
    assert "Failed to activate SuperNode" in federation.log_of("node-7")
    assert "CERTIFICATE_VERIFY_FAILED" in federation.log_of("node-8")
    assert sum(node["status"] == "online" for node in nodes_of(federation)) == NODES


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
        def train(self, received: Any, buffers: Any) -> Any:
            if (self.round, self.client) in failing:
                raise RuntimeError("away")
            return super().train(received, buffers)

    sound = ALGORITHMS["fedcomgate"]
    with pytest.MonkeyPatch.context() as patch:
        flaky = Algorithm("fedcomgate", "", sound.strategy, Flaky, True, sound.compressor)
        patch.setitem(ALGORITHMS, "fedcomgate", flaky)
        return run_inline(**keys | {"checkpoint_every": 0})


def signal_group(process: Process, number: signal.Signals) -> None:
    """Signal a node and what it has started."""
    subprocess.run(["kill", f"-{number.value}", "--", f"-{process.pid}"], check=True)


def bring_back(federation: Federation, place: int) -> None:
    """Start a killed node again and again, as a supervisor would, until the SuperLink lets it in.

    Until the SuperLink has missed two heartbeats of the node, it refuses a second one with the same key.
    """

    def let_in() -> int:
        return federation.log_of().count("Activated node_id")

    before = let_in()
    while True:
        process = federation.start_node(place, node_config(federation, place))
        while process.poll() is None:
            if let_in() > before:
                return
            time.sleep(0.2)
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
    assert thin[0] > 1
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
        federation.nodes[place].wait(PATIENCE)
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


@linux
def test_a_server_app_that_is_ended_saves_its_model_even_if_the_superlink_hangs(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    """Flower gives a process five seconds after a signal, of which its own last words to the SuperLink may take all."""
    keys = FAULTS | {"num_rounds": 1000, "results_dir": str(tmp_path), "run_name": "run"}
    run, directory = Started(federation, keys), tmp_path / "run"
    wait_for_rounds(directory, 1)
    (process,) = processes("flwr-serverapp", str(federation.home))
    signal_group(federation.superlink, signal.SIGSTOP)
    try:
        os.kill(process, signal.SIGTERM)
        wait_until(lambda: not processes("flwr-serverapp", str(federation.home)), "its end")
    finally:
        signal_group(federation.superlink, signal.SIGCONT)
    assert (directory / "model.safetensors").is_file()
    federation.flwr("stop", str(federation.last_run()["run-id"]), NAME)
    run.end()
    rounds = len(read_rounds(directory))
    inline = keys | {"run_name": "inline", "num_rounds": rounds}
    assert_same_model(directory, inline_with_failures(run_inline, inline, set()))


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
        federation.nodes[2].wait(PATIENCE)
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


def command(*arguments: str, temporary: Path, before: str = "") -> "subprocess.Popen[str]":
    """Start the script that the documents name; `before` is what a shell does first."""
    return subprocess.Popen(
        [
            "sh",
            "-c",
            f'{before} exec "$@"',
            "sh",
            BIN / "python",
            "deploy/federation.py",
            *arguments,
        ],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@needs_nginx
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
@needs_nginx
@pytest.mark.parametrize(
    ("number", "program", "count"),
    [(signal.SIGINT, "flwr-clientapp", 1), (signal.SIGTERM, "flower-superlink", 1)],
)
def test_nothing_is_left_when_the_command_is_ended(
    tmp_path: Path, number: signal.Signals, program: str, count: int
) -> None:
    """Neither processes nor keys, the moment it says so, whenever it comes and however impatient the user is."""
    script = command(
        "-c",
        f'dataset="quadratic" run-name="run" results-dir="{tmp_path}/results"',
        "--secure",
        temporary=tmp_path,
        before="trap '' INT TERM;",  # as in the background of a script
    )
    home = str(tmp_path / "fedapp-federation-")
    wait_until(lambda: len(processes(program, home)) >= count, program)
    assert list(tmp_path.glob("fedapp-federation-*/credentials/superlink.key"))
    os.kill(script.pid, number)
    time.sleep(0.2)
    os.kill(script.pid, signal.SIGTERM)  # once more changes nothing
    assert script.stdout is not None
    shown = "".join(iter(script.stdout.readline, ""))
    assert not processes("", home)
    assert not list(tmp_path.glob("fedapp-federation-*"))
    assert script.wait(PATIENCE) == 130, shown
    assert shown.endswith("Interrupted; everything is stopped.\n")


def test_without_nginx_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("deploy.proxy.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["federation.py", "--secure"])
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert federation_script.main() == 2
    assert capsys.readouterr().err == (
        "A secure federation needs nginx in front of the SuperLink: install it "
        "(on Debian and Ubuntu `sudo apt-get install nginx`).\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_secure_federation_that_does_not_start_leaves_its_log_but_no_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Federation, "_superlink_options", lambda _: ["--no-such-option"])
    with (
        pytest.raises(RuntimeError, match="The superlink did not start"),
        Federation(tmp_path, secure=True),
    ):
        pass
    assert "--no-such-option" in (tmp_path / "superlink.log").read_text()
    assert not (tmp_path / "credentials").exists()


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
