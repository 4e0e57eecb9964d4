"""The side of the process that Flower starts for a message: ask the run's warm worker, and start it if there is none."""

import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from flwr.app import Context, Message
from flwr.common.serde import (
    context_to_proto,
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from fedapp.doors import given_for
from fedapp.warm import channel

log = logging.getLogger("flwr")
KEY = "warm-worker"  # in a node's config; false: every message is served by a new process
PROGRAM = "flwr-clientapp"
# Into a directory that is deleted with the process.
INSTALLS = "--allow-runtime-dependency-installation"
BUSY_AFTER = 2.0  # seconds in which an idle worker says that it is ready
START_LIMIT = 300.0  # seconds in which a new one does
# Modules come from where they come from here: sys.path has the app's directory, which Flower names by its digest.
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from fedapp.warm.worker import main; main(*sys.argv[2:])"
)


def ask(message: Message, context: Context) -> Message | None:
    """Return the warm worker's answer to a message; None if this process must serve it itself.

    The context's state is then the worker's.
    """
    owner = _owner()
    if owner is None or not context.node_config.get(KEY, True):
        return None
    if given_for(list(context.run_config.values())):  # objects of this process
        return None
    try:
        return _ask(owner, message, context)
    except Exception as error:  # whatever it is, the message can be served without a worker
        log.info("Serving this message without the warm worker: %s", error)
        return None


def _owner() -> int | None:
    """Return the SuperExec that this process serves, if it serves one as Flower's ClientApp process on Linux."""
    arguments = sys.argv[1:]
    if Path(sys.argv[0]).name != PROGRAM or INSTALLS in arguments or not hasattr(os, "pidfd_open"):
        return None
    given = arguments.index("--parent-pid") + 1 if "--parent-pid" in arguments else 0
    parent = os.getppid()
    return parent if given and arguments[given : given + 1] == [str(parent)] else None


def _ask(owner: int, message: Message, context: Context) -> Message | None:
    place = channel.private_directory() / f"{_identity(owner, context)}.sock"
    request = message_to_proto(message).SerializeToString()
    remembered = context_to_proto(context).SerializeToString()
    with closing(_connected(place) or _started(place, owner)) as connection:
        connection.settimeout(None)
        log.debug("Asking the warm worker")
        channel.send(connection, (request, remembered))
        if channel.receive_exactly(connection, 1) == channel.FAILED:
            log.info("The warm worker failed; this process serves the message again")
            return None
        answer, state = channel.receive(connection)
    log.debug("The warm worker has answered")
    reply = message_from_proto(ProtoMessage.FromString(answer))
    records = recorddict_from_proto(ProtoRecordDict.FromString(state))
    for name in list(context.state):  # the object stays: Flower sends this one back
        del context.state[name]
    for name, record in records.items():
        context.state[name] = record
    return reply


def _identity(owner: int, context: Context) -> str:
    """Return the name of the worker that may serve a message of this run on this node, with this app and environment."""
    of_process = [owner, channel.started_at(owner), sys.executable, sys.path, str(Path.cwd())]
    about = [*of_process, context.run_id, context.node_id, sorted(os.environ.items())]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def _connected(place: Path) -> socket.socket | None:
    """Return a connection to the worker, if it is there and idle."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(BUSY_AFTER)
    try:
        with _closed_on_error(connection):
            connection.connect(str(place))
            channel.demand_same_user(connection)
            return _ready(connection)
    except (FileNotFoundError, ConnectionError, channel.ClosedError):  # or it was about to end
        return None


def _started(place: Path, owner: int) -> socket.socket:
    """Start a worker; return a connection to it. It logs where this process does."""
    ours, theirs = socket.socketpair()
    with closing(theirs):
        where = [str(theirs.fileno()), str(place), str(owner), channel.started_at(owner)]
        worker = subprocess.Popen(
            [sys.executable, "-P", "-c", START, json.dumps(sys.path), *where],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    ours.settimeout(START_LIMIT)
    try:
        with _closed_on_error(ours):
            return _ready(ours)
    except BaseException:
        worker.kill()
        raise


def _ready(connection: socket.socket) -> socket.socket:
    """Wait until the worker is ready."""
    if channel.receive_exactly(connection, 1) != channel.READY:
        raise channel.ChannelError("the worker is not ready")
    return connection


@contextmanager
def _closed_on_error(connection: socket.socket) -> Iterator[None]:
    """Close a connection if the block raises."""
    try:
        yield
    except BaseException:
        connection.close()
        raise
