"""A federation with TLS, node keys and a proxy: who is let in, and to what; and the same bits as inline meanwhile."""

import http.client
import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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

from deploy.credentials import make_certificates, make_node_key
from deploy.processes import BIN, NAME, ROOT, Federation, kill
from deploy.proxy import FLEET_ROUTES, REFUSAL
from fedapp.tables import Value
from tests.conftest import PATIENCE, RunInline
from tests.support.federations import (
    NODES,
    Started,
    needs_nginx,
    node_config,
    nodes_of,
    wait_for_rounds,
)
from tests.support.runs import assert_same

# One after the other: they share what they start.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("deploy")]


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
    keys: dict[str, Value] = {"algorithm": "fedcomgate", "num_rounds": 3, "clients_per_round": 20}
    results: dict[str, Value] = {"results_dir": str(tmp_path), "run_name": "deployed"}
    he = Stranger(federation, tmp_path / "stranger")
    fleet, _, mine = node_clients(federation, he, 1)
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
    assert_same(deployed, inline)
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
