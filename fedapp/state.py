"""What a client remembers between rounds: named arrays, kept on the node.

A client cannot know whether the server used its update: the reply may be lost, late or refused, or
the round repeated. So each state is kept under the `tag` of the attempt that made it, and the
server says with the next invitation which tag it accepted last; anything newer is forgotten. It also
says which older ones a checkpoint of its own would ask for: a server that resumes finds them.
"""

import logging
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fedapp import wire

log = logging.getLogger("flwr")
Arrays = dict[str, NDArray[Any]]
LEFT_FOR = 3600.0  # seconds until what is half written counts as given up
CLIENT_STATE = "client-state"  # in a run's directory, if nodes and server share a disk


class StateError(RuntimeError):
    """A client's state cannot be kept; the message says why. Its update must not be used without it."""


class StateStore(Protocol):
    """Where the clients of a node keep their state."""

    def load(self, client: int, tag: int) -> Arrays | None:
        """Return the state that an attempt left, or None if there is none."""

    def save(self, client: int, tag: int, arrays: Arrays, keep: Collection[int]) -> None:
        """Keep a new state and those tagged with one of `keep`; drop the client's older ones.

        Newer ones stay: this may be the late work of an attempt that was given up.
        """


class ContextStore:
    """State in Flower's `context.state`."""

    def __init__(self, records: RecordDict) -> None:
        self.records = records

    def load(self, client: int, tag: int) -> Arrays | None:
        """Read an array record."""
        record = self.records.get(f"state.{client}.{tag}")
        return wire.arrays_of(record) if isinstance(record, ArrayRecord) else None

    def save(self, client: int, tag: int, arrays: Arrays, keep: Collection[int]) -> None:
        """Write an array record, and remove the others."""
        self.records[f"state.{client}.{tag}"] = wire.record_of(arrays)
        for name in list(self.records):
            kind, _, owned = name.partition(".")
            owner, _, version = owned.partition(".")
            if kind == "state" and owner == str(client) and _is_old(version, tag, keep):
                del self.records[name]


def _is_old(version: str, tag: int, keep: Collection[int]) -> bool:
    return version.isdigit() and int(version) < tag and int(version) not in keep


class DirectoryStore:
    """State on disk, one file per client and attempt, each written whole or not at all."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def load(self, client: int, tag: int) -> Arrays | None:
        """Map a file."""
        path = self.directory / str(client) / f"{tag}.safetensors"
        if not path.is_file():
            return None
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            log.warning("The state of client %d in %s cannot be read: %s", client, path, error)
            return None

    def save(self, client: int, tag: int, arrays: Arrays, keep: Collection[int]) -> None:
        """Write a file, and remove the others."""
        directory = self.directory / str(client)
        path = directory / f"{tag}.safetensors"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda temporary: save_file(arrays, temporary))
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else None  # without its path
            raise StateError(
                f"its state cannot be written in {self.directory} ({reason or error}): make space there, or choose "
                "another state-dir"
            ) from None
        for other in directory.glob("*.safetensors"):
            if _is_old(other.stem, tag, keep):
                other.unlink()
        for left in directory.glob(
            ".*"
        ):  # by a process that was killed as it wrote; or one that writes now
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < time.time() - LEFT_FOR:
                    left.unlink()


def write_atomically(path: Path, write: Any) -> None:
    """Let `write` fill a temporary file, then put it in place."""
    temporary = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
