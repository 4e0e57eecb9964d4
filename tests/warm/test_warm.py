"""The warm worker of a node: the same bits as without, whom it lets in, and when it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage

from fedapp import client_app, doors
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from fedapp.warm import channel, front, worker
from tests.conftest import PATIENCE, kebab, wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="warm workers are for Linux")
ROOT = Path(__file__).parents[2]


@dataclass
class Served:
    """A message, what its node remembered, and what the ClientApp made of both, in this process."""

    message: bytes
    context: bytes
    reply: bytes
    state: bytes


class Recording(InlineGrid):
    """One node, of which every exchange is kept."""

    served: list[Served]

    def serve(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        before = _bytes(message_to_proto(message)), _bytes(context_to_proto(context))
        reply = super().serve(message)
        after = recorddict_to_proto(reply.content), recorddict_to_proto(context.state)
        self.served = [*getattr(self, "served", []), Served(*before, *map(_bytes, after))]
        return reply


def _bytes(proto: Any) -> bytes:
    return bytes(proto.SerializeToString(deterministic=True))


@pytest.fixture(scope="module")
def recorded() -> list[Served]:
    """A query and three rounds of an algorithm whose clients remember something and send compressed vectors."""
    keys: dict[str, Value] = {
        "algorithm": "fedcomgate",
        "model": "logreg",
        "num_clients": 3,
        "clients_per_round": 3,
    }
    config = parse_run_config(kebab(keys | {"num_rounds": 3, "local_steps": 2}))
    grid = Recording(client_app.app, config.flat())
    problem = make_problem(config)
    for _ in run_rounds(grid, make_strategy(config, problem), problem, config):
        pass
    return grid.served


class Owner:
    """A process that starts one for every message, as a SuperExec does."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.sockets = place / f"fedapp-{os.getuid()}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm.owner", str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"XDG_RUNTIME_DIR": str(place)},
        )

    def serve(self, number: int, message: bytes, context: bytes) -> dict[str, str]:
        """Have a message served; return what its process told."""
        (self.place / f"{number}.message").write_bytes(message)
        (self.place / f"{number}.context").write_bytes(context)
        assert self._process.stdin and self._process.stdout
        print(number, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "served\n"
        return dict(json.loads((self.place / f"{number}.json").read_text()))

    def assert_serves(self, number: int, served: Served, warm: bool) -> None:
        """Check that an answer and what the node then remembers are those of a process without a worker."""
        told = self.serve(number, served.message, served.context)
        assert told["raised"] == ""
        assert (self.place / f"{number}.reply").read_bytes() == served.reply
        assert (self.place / f"{number}.state").read_bytes() == served.state
        assert told["imported"] == ("" if warm else "torch")

    def workers(self) -> list[int]:
        """Return the workers that are alive."""
        mark = str(self.sockets).encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"fedapp.warm.worker" in command and mark in command:
                found.append(int(entry.name))
        return found

    def end(self) -> None:
        """Kill it: it cannot tell anybody."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)


@pytest.fixture
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    place = tmp_path_factory.mktemp("warm")
    started = Owner(place)
    yield started
    started.end()
    wait_for(lambda: not started.workers(), "the end of the workers")


@pytest.mark.slow
def test_a_run_has_one_worker_which_gives_the_same_bits_and_ends_with_its_node(
    owner: Owner, recorded: list[Served]
) -> None:
    """Round by round, with what the node remembers; after the worker is killed, another goes on."""
    query, first, second, third = recorded
    owner.sockets.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as killed:  # what another run's worker has left
        killed.bind(str(owner.sockets / "left.sock"))
    owner.assert_serves(0, query, warm=True)
    (known,) = owner.workers()
    (place,) = owner.sockets.glob("*.sock")
    assert (place.stat().st_mode & 0o777, owner.sockets.stat().st_mode & 0o777) == (0o600, 0o700)
    owner.assert_serves(1, first, warm=True)
    empty, raised = _without_content(first)
    # By the process, as without a worker.
    assert owner.serve(2, empty, first.context)["raised"] == raised
    owner.assert_serves(3, second, warm=True)  # and the worker goes on
    assert owner.workers() == [known]
    os.kill(known, signal.SIGKILL)  # its socket stays behind
    wait_for(lambda: not owner.workers(), "the end of the worker")
    owner.assert_serves(4, third, warm=True)
    (other,) = owner.workers()
    assert other != known
    owner.end()
    wait_for(lambda: not owner.workers(), "the end of the worker")
    assert not owner.sockets.exists()


def _without_content(served: Served) -> tuple[bytes, str]:
    """Return a message that the ClientApp cannot serve, and what it raises."""
    message = _message_of(served)
    for name in list(message.content):
        del message.content[name]
    with pytest.raises(Exception) as raised:  # whatever it is
        client_app.app(message, _context_of(served))
    return _bytes(message_to_proto(message)), f"{type(raised.value).__name__}: {raised.value}"


def _context_of(served: Served) -> Context:
    return context_from_proto(ProtoContext.FromString(served.context))


def _message_of(served: Served) -> Message:
    return message_from_proto(ProtoMessage.FromString(served.message))


@pytest.mark.slow
def test_where_others_could_look_in_a_message_is_served_without_a_worker(
    owner: Owner, recorded: list[Served]
) -> None:
    owner.sockets.mkdir()
    owner.sockets.chmod(0o755)
    owner.assert_serves(0, recorded[2], warm=False)
    assert owner.workers() == []


@pytest.fixture
def in_flowers_process(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Let this process be one that Flower has started for a message; return where a worker would listen."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("w")))
    monkeypatch.setattr(sys, "argv", ["flwr-clientapp", "--parent-pid", str(os.getppid())])
    return channel.private_directory()


def test_a_worker_belongs_to_a_run_a_node_an_environment_and_a_place(
    in_flowers_process: Path, recorded: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _context_of(recorded[1])

    def identity(context: Context = context) -> str:
        return front._identity(os.getppid(), context)

    others = [replace(context, run_id=77), replace(context, node_id=77)]
    found = [identity(), *map(identity, others), front._identity(os.getpid(), context)]
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "77")
        found.append(identity())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", ["/another/app", *sys.path])
        found.append(identity())
    assert len(set(found)) == len(found)
    assert identity() == found[0]


def test_nobody_asks_a_worker_that_is_switched_off_or_busy_or_lacks_an_object(
    in_flowers_process: Path, recorded: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    message, context = _message_of(recorded[1]), _context_of(recorded[1])
    monkeypatch.setattr(front, "_started", lambda *_: pytest.fail("a worker is started"))
    monkeypatch.setattr(front, "BUSY_AFTER", 0.01)
    context.node_config["warm-worker"] = False
    assert front.ask(message, context) is None
    context.node_config["warm-worker"] = True
    with monkeypatch.context() as patch:
        patch.setitem(doors._given, "somewhere:my_model", object())
        context.run_config["model"] = "somewhere:my_model"
        assert front.ask(message, context) is None
    context = _context_of(recorded[1])
    place = in_flowers_process / f"{front._identity(os.getppid(), context)}.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(place))
        busy.listen()
        assert front.ask(message, context) is None


def test_a_worker_ends_in_the_middle_of_a_message_that_nobody_waits_for(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    place = tmp_path / "sockets" / "its.sock"
    place.parent.mkdir()
    place.touch()
    watched = os.pidfd_open(os.getpid())
    child = os.fork()
    if not child:
        ours.close()
        with worker._wanted(theirs, watched, place):
            time.sleep(PATIENCE)
        os._exit(0)
    theirs.close()
    ours.close()
    _, status = os.waitpid(child, 0)
    assert (os.waitstatus_to_exitcode(status), place.parent.exists()) == (1, False)


def test_a_process_that_is_not_flowers_has_no_worker(
    recorded: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    message = _message_of(recorded[1])
    parent = str(os.getppid())
    for arguments in (
        ["pytest", "--parent-pid", parent],
        ["flwr-clientapp"],
        ["flwr-clientapp", "--parent-pid"],
        ["flwr-clientapp", "--parent-pid", "1" + parent],
        ["flwr-clientapp", "--parent-pid", parent, front.INSTALLS],
    ):
        monkeypatch.setattr(sys, "argv", arguments)
        assert front.ask(message, _context_of(recorded[1])) is None
    monkeypatch.setattr(sys, "argv", ["flwr-clientapp", "--parent-pid", parent])
    assert front._owner() == os.getppid()


def test_another_users_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = socket.socketpair()
    with one, other:
        channel.demand_same_user(one)
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        with pytest.raises(channel.ChannelError, match="another user"):
            channel.demand_same_user(one)


@pytest.mark.parametrize("spoil", ["", "link", "file", "open", "long"])
def test_a_directory_that_others_may_have_made_is_refused(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    base = tmp_path_factory.mktemp("long" * 20 if spoil == "long" else "d")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    place = base / f"fedapp-{os.getuid()}"
    if not spoil:
        assert channel.private_directory() == place
        return
    if spoil == "link":
        (base / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(base / "elsewhere")
    elif spoil == "file":
        place.touch()
    elif spoil == "open":
        place.mkdir()
        place.chmod(0o770)
    with pytest.raises((channel.ChannelError, FileExistsError)):
        channel.private_directory()
    assert place.exists() == (spoil != "long")


def test_a_torn_answer_is_noticed() -> None:
    one, other = socket.socketpair()
    with other:
        with one:
            one.sendall(b"\0" * 15 + b"\5" + b"abc")
        with pytest.raises(channel.ChannelError, match="closed"):
            channel.receive(other)
