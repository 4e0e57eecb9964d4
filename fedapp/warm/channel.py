"""Between a node's warm worker and the processes that ask it: a Unix socket, and two parts of bytes each way.

The socket has the permissions 0600 and lies in a directory of 0700 that belongs to this user; both sides ask the
kernel who is at the other end. So it is this user's alone, as the processes' memory is.
"""

import os
import socket
import stat
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

READY = b"+"  # from the worker, before it is asked
FAILED = b"-"  # its answer where serving raised; otherwise READY and two parts
# Bytes of the directory: a socket's own name has 24 at most, and Linux takes 107 for both.
LONGEST_PATH = 80
_LENGTHS = struct.Struct("!QQ")
_CREDENTIALS = struct.Struct("3i")  # process, user, group, as the kernel says
Parts = tuple[bytes, bytes]


class ChannelError(Exception):
    """The other end is not who it should be, or does not say what it should."""


class ClosedError(ChannelError):
    """The other end has gone."""


def private_directory() -> Path:
    """Return this user's directory for sockets, which nobody else can enter or replace."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    path = Path(base) / f"fedapp-{os.getuid()}"
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ChannelError(f"{path} is too long for sockets")
    path.mkdir(mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ChannelError(f"{path} is not a directory that only this user can enter")
    return path


def leave(place: Path) -> None:
    """Remove a socket, and its directory if it was the last there."""
    place.unlink(missing_ok=True)
    with suppress(OSError):
        place.parent.rmdir()


def demand_same_user(connection: socket.socket) -> None:
    """Raise ChannelError if the other end is another user's process."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(told)[1] != os.getuid():
        raise ChannelError("the other end belongs to another user")


def started_at(process: int) -> str:
    """Return when a process was started, which tells it from a later one with its number."""
    content = Path(f"/proc/{process}/stat").read_text()
    return content.rpartition(")")[2].split()[19]


def send(connection: socket.socket, parts: Parts) -> None:
    """Send two parts."""
    connection.sendall(_LENGTHS.pack(*map(len, parts)))
    for part in parts:
        connection.sendall(part)


def receive(connection: socket.socket) -> Parts:
    """Receive two parts."""
    first, second = _LENGTHS.unpack(receive_exactly(connection, _LENGTHS.size))
    return receive_exactly(connection, first), receive_exactly(connection, second)


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Receive a number of bytes."""
    received = bytearray()
    while len(received) < size:
        part = connection.recv(min(size - len(received), 1 << 20))
        if not part:
            raise ClosedError("the other end has closed the connection")
        received += part
    return bytes(received)
