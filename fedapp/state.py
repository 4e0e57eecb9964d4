"""What a client remembers between rounds: named arrays, kept on the node.

A client cannot know whether the server used its update: the reply may be lost, late or refused, or
the round repeated. So each state is kept under the `tag` of the attempt that made it, and the
server says with the next invitation which tag it accepted last; anything newer is ignored. It also
says which older ones its checkpoints refer to: a server that resumes finds them.

A state on disk carries its run, client, tag and a digest. The server learns the digest with the update, and names it in its
checkpoints and in the next invitation: a client never trains with a state that has changed meanwhile.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from flwr.app import ArrayRecord, RecordDict
from safetensors import SafetensorError

from fedapp import wire
from fedapp.files import (
    STALE_AFTER,
    Arrays,
    DamagedFileError,
    brief,
    load_arrays,
    remove_leftovers,
    save_arrays,
)

CLIENT_STATE = "client-state"  # in a run's directory, if nodes and server share a disk
NO_DIGEST = 0  # a state in memory has none, nor has one that must not be revealed
OLD = 1  # instead of a digest: the state of an older version, which has none


class StateError(RuntimeError):
    """A client's state cannot be kept or trusted; the message says why. Its update must not be used without it."""


class StateStore(Protocol):
    """Where the clients of a node keep their state."""

    def load(self, client: int, tag: int, digest: int = NO_DIGEST) -> Arrays | None:
        """Return the state that an attempt left, or None if there is none; StateError if it is damaged."""

    def save(self, client: int, tag: int, arrays: Arrays, keep: Collection[int]) -> int:
        """Keep a new state and those tagged with one of `keep`; drop the client's older ones; return a digest.

        Newer ones stay: this may be the late work of an attempt that was given up.
        """


class ContextStore:
    """State in Flower's `context.state`."""

    def __init__(self, records: RecordDict) -> None:
        self.records = records

    def load(self, client: int, tag: int, digest: int = NO_DIGEST) -> Arrays | None:
        """Read an array record."""
        record = self.records.get(f"state.{client}.{tag}")
        return wire.arrays_of(record) if isinstance(record, ArrayRecord) else None

    def save(self, client: int, tag: int, arrays: Arrays, keep: Collection[int]) -> int:
        """Write an array record, and remove the others."""
        self.records[f"state.{client}.{tag}"] = wire.record_of(arrays)
        for name in list(self.records):
            kind, _, owned = name.partition(".")
            owner, _, version = owned.partition(".")
            if kind == "state" and owner == str(client) and _is_old(version, tag, keep):
                del self.records[name]
        return NO_DIGEST


def copy_states(source: StateStore, target: "DirectoryStore", tags: Mapping[int, int]) -> None:
    """Copy the states that a checkpoint names, client -> tag, as far as the source has them."""
    for client, tag in tags.items():
        if (arrays := source.load(client, tag)) is not None:
            target.save(client, tag, arrays, ())


def _is_old(version: str, tag: int, keep: Collection[int]) -> bool:
    number = int(version) if version.isascii() and version.isdecimal() else tag
    return number < tag and number not in keep


def short(digest: str) -> int:
    """Return a digest as a whole number that Flower's records can hold, and that is neither NO_DIGEST nor OLD."""
    return max(int(digest[:15], 16), OLD + 1)


class DirectoryStore:
    """State on disk, `<state-dir>/<run>/<client>/<tag>.safetensors`, each written whole or not at all.

    `durable` states survive a power loss as soon as they are written. In a simulation the server syncs them before a
    checkpoint refers to them, which costs much less.
    """

    def __init__(self, directory: Path, durable: bool = False) -> None:
        self.directory, self.durable = directory, durable

    def path(self, client: int, tag: int) -> Path:
        """Return where a state is."""
        return self.directory / str(client) / f"{tag}.safetensors"

    def load(self, client: int, tag: int, digest: int = NO_DIGEST) -> Arrays | None:
        """Read a file, and check that it is what was written."""
        path = self.path(client, tag)
        if not path.is_file():
            return None
        try:
            arrays, about = load_arrays(path, self._about(client, tag), old=digest == OLD)
            if digest > OLD and short(about["digest"]) != digest:
                raise DamagedFileError(f"{path} is not the state that the server accepted.")
        except DamagedFileError as error:
            raise StateError(
                f"its state is damaged: {error} Restore that file from a backup, or delete it to restart this "
                "client's state as on-lost-state says."
            ) from None
        return arrays

    def save(self, client: int, tag: int, arrays: Arrays, keep: Collection[int]) -> int:
        """Write a file, and remove the others."""
        path = self.path(client, tag)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            digest = save_arrays(path, arrays, self._about(client, tag), self.durable)
        except (OSError, SafetensorError) as error:
            raise StateError(
                f"its state cannot be written in {self.directory} ({brief(error)}): make space there, or choose "
                "another state-dir"
            ) from None
        for other in path.parent.glob("*.safetensors"):
            if _is_old(other.stem, tag, keep):
                with suppress(OSError):  # a directory, which is not ours
                    other.unlink()
        remove_leftovers(path.parent, STALE_AFTER)
        return short(digest)

    def _about(self, client: int, tag: int) -> dict[str, str]:
        return {"run": self.directory.name, "client": str(client), "tag": str(tag)}
