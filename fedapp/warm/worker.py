"""The warm worker: serves the messages of one run on one node, one after the other, until it is no longer needed."""

import errno
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.common.serde import (
    context_from_proto,
    message_from_proto,
    message_to_proto,
    recorddict_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage

from fedapp.warm import channel

IDLE_LIMIT = 60.0  # seconds after which a worker that nobody asks ends; where rounds are longer, it would save little
GONE = select.POLLIN | select.POLLHUP | select.POLLRDHUP | select.POLLERR


def main(descriptor: str, place: str, owner: str, owner_started: str) -> None:
    """Serve the connection that was inherited, and then those that come to the socket at `place`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit())
    connection = socket.socket(fileno=int(descriptor))
    watched = os.pidfd_open(int(owner))
    if channel.started_at(int(owner)) != owner_started:
        sys.exit("The SuperExec that this worker was started for has ended")
    from fedapp import (
        node,  # torch; here, so that a worker whose node has ended does not wait for it
    )

    with _listening(Path(place)) as listener:
        serving: socket.socket | None = connection
        while serving is not None:
            with serving, suppress(OSError, channel.ChannelError):  # who asked has gone
                serving.sendall(channel.READY)
                _serve(serving, watched, node.app, Path(place))
            serving = _next(listener, watched)


@contextmanager
def _listening(place: Path) -> Iterator[socket.socket]:
    """Listen at a place, which nobody finds before the socket is ready, and leave nothing behind."""
    with socket.socket(socket.AF_UNIX) as listener:
        _clean(channel.private_directory())  # which a worker that has ended may have removed
        new = place.with_suffix(f".{os.getpid()}")
        before = os.umask(0o177)
        try:
            listener.bind(str(new))
        finally:
            os.umask(before)
        listener.listen()
        mine = new.stat().st_ino
        new.rename(place)
        try:
            yield listener
        finally:
            with suppress(OSError):
                if place.stat().st_ino == mine:  # not that of a worker which took over
                    channel.leave(place)


def _clean(directory: Path) -> None:
    """Remove the sockets of workers that were killed."""
    for place in directory.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.setblocking(False)
            if probe.connect_ex(str(place)) == errno.ECONNREFUSED:
                place.unlink()


def _next(listener: socket.socket, watched: int) -> socket.socket | None:
    """Return the next connection of this user's; None when the worker is no longer needed."""
    while True:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(watched, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * IDLE_LIMIT)}
        if listener.fileno() not in ready or watched in ready:
            return None
        connection, _ = listener.accept()
        try:
            channel.demand_same_user(connection)
            return connection
        except (OSError, channel.ChannelError):
            connection.close()


def _serve(connection: socket.socket, watched: int, app: ClientApp, place: Path) -> None:
    """Serve one message."""
    request, remembered = channel.receive(connection)
    message = message_from_proto(ProtoMessage.FromString(request))
    context = context_from_proto(ProtoContext.FromString(remembered))
    del request, remembered
    with _wanted(connection, watched, place):
        try:
            reply = app(message, context)
            answer = message_to_proto(reply).SerializeToString()
            state = recorddict_to_proto(context.state).SerializeToString()
        except Exception:  # who asked serves it again, and tells what is wrong
            answer = state = b""
    if not answer:
        connection.sendall(channel.FAILED)
        return
    connection.sendall(channel.READY)
    channel.send(connection, (answer, state))


@contextmanager
def _wanted(connection: socket.socket, watched: int, place: Path) -> Iterator[None]:
    """End this process, in the middle of what it does, when its node ends or nobody waits for the answer any more."""
    done, finish = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.register(connection, GONE)
        poll.register(done, select.POLLIN)
        if done not in {descriptor for descriptor, _ in poll.poll()}:
            channel.leave(place)
            os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.write(finish, b".")
        watcher.join()
        os.close(done)
        os.close(finish)
