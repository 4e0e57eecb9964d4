"""Vectors that the clients of a past round receive with their next invitation.

Gradient tracking needs the mean of a client's last round, so the server keeps the mean of every round for which some
client still waits. With N clients and s a round these are about (N/s)(ln s + 0.58) rounds in the long run, however
many rounds there are: 1,440 for 10 of 5,000 clients. At most `IN_MEMORY` of them are held in memory. The others are
in `<run>/undelivered/<tag>.safetensors` until nobody waits for them and no checkpoint refers to them; a checkpoint
names them with their digests instead of copying them.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedapp.errors import RunError
from fedapp.files import (
    Arrays,
    DamagedFileError,
    brief,
    fsync,
    load_arrays,
    remove_leftovers,
    save_arrays,
)
from fedapp.state import short

IN_MEMORY = 8  # rounds
UNDELIVERED = "undelivered"  # in a run's directory
FILE = re.compile(r"([0-9]+)\.safetensors")


class Deliveries:
    """What each past round's clients still have to receive, by the round's tag."""

    def __init__(self, directory: Path | None = None, run: str = "") -> None:
        self._held: dict[int, Arrays] = {}
        self._spilled: dict[int, int] = {}  # tag -> digest of its file
        self._loaded: dict[int, Arrays] = {}  # read back for this round
        self._unsynced: set[int] = set()
        self._kept: list[set[int]] = []  # tags of the files that the last two checkpoints name
        self._directory = directory  # None: everything stays in memory
        self._run = run

    @property
    def tags(self) -> set[int]:
        """Return the rounds for which somebody waits, by their tags."""
        return {*self._held, *self._spilled}

    @property
    def held(self) -> int:
        """Return how many rounds' vectors are in memory."""
        return len(self._held) + len(self._loaded)

    def get(self, tag: int) -> Arrays:
        """Return what a round's clients receive; nothing if there is nothing."""
        if tag not in self._spilled:
            return self._held.get(tag, {})
        if tag not in self._loaded:
            self._loaded[tag] = self._load(tag, self._spilled[tag])
        return self._loaded[tag]

    def put(self, tag: int, vectors: Arrays, awaited: Collection[int]) -> None:
        """Add a round's vectors, and forget the rounds that no client waits for."""
        self._loaded = {}
        self._held = {t: v for t, v in {**self._held, tag: vectors}.items() if t in awaited}
        unneeded = [t for t in self._spilled if t not in awaited]
        for old in unneeded:
            del self._spilled[old]
        self._remove_unneeded(unneeded)
        while self._directory and len(self._held) > IN_MEMORY:
            self._spill(min(self._held))

    def clear(self) -> None:
        """Forget everything."""
        self._held, self._loaded = {}, {}
        dropped, self._spilled = list(self._spilled), {}
        self._remove_unneeded(dropped)

    # Checkpoints.

    def saved(self) -> Arrays:
        """Return what is in memory, and the tags and digests of the files."""
        arrays = {
            f"{tag}.{name}": value
            for tag, vectors in self._held.items()
            for name, value in vectors.items()
        }
        if self._spilled:
            arrays["files"] = np.array(sorted(self._spilled.items()), np.int64)
        return arrays

    def restore(self, saved: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `saved` returned; DamagedFileError if a file is not what it was."""
        held: dict[int, Arrays] = {}
        spilled = files_of(saved)
        for tag, digest in spilled.items():
            self._load(tag, digest)
        for key, value in saved.items():
            tag_text, _, name = key.partition(".")
            if name:
                held.setdefault(int(tag_text), {})[name] = value
        self._held, self._spilled, self._loaded = held, spilled, {}

    def sync(self) -> None:
        """Wait until the files are on the disk, before a checkpoint refers to them."""
        if self._directory and self._unsynced:
            for tag in self._unsynced & self._spilled.keys():
                fsync(self._path(tag))
            fsync(self._directory)
            fsync(self._directory.parent)
        self._unsynced = set()

    def checkpointed(self, tags: Collection[int]) -> None:
        """Keep the files that a new checkpoint names; remove those that only a dropped one named."""
        self._kept = [*self._kept[-1:], set(tags)]
        if self._directory and self._directory.is_dir():
            remove_leftovers(self._directory)
            names = (FILE.fullmatch(path.name) for path in self._directory.iterdir())
            self._remove_unneeded({int(found[1]) for found in names if found})

    def _remove_unneeded(self, tags: Collection[int]) -> None:
        if self._directory:
            for tag in set(tags) - self._spilled.keys() - set().union(*self._kept):
                with suppress(OSError):  # a directory, which we have not made
                    self._path(tag).unlink()

    # Files.

    def _path(self, tag: int) -> Path:
        assert self._directory is not None
        return self._directory / f"{tag}.safetensors"

    def _about(self, tag: int) -> dict[str, str]:
        return {"run": self._run, "tag": str(tag)}

    def _spill(self, tag: int) -> None:
        path = self._path(tag)
        try:
            path.parent.mkdir(exist_ok=True)
            digest = save_arrays(path, self._held[tag], self._about(tag), durable=False)
        except (OSError, SafetensorError) as error:
            raise RunError(
                f"{path.parent} cannot be written ({brief(error)}): make space there, and continue from the last "
                "checkpoint with resume = true."
            ) from None
        self._spilled[tag] = short(digest)
        self._unsynced.add(tag)
        del self._held[tag]

    def _load(self, tag: int, digest: int) -> Arrays:
        if not self._directory:
            raise DamagedFileError(f"The vectors of tag {tag} are in files, and none are at hand.")
        arrays, about = load_arrays(self._path(tag), self._about(tag))
        if short(about.get("digest", "0")) != digest:
            raise DamagedFileError(f"{self._path(tag)} is not what the checkpoint names.")
        return arrays


def files_of(saved: Mapping[str, NDArray[Any]]) -> dict[int, int]:
    """Return the tags of the files that a checkpoint names, with their digests."""
    return {int(tag): int(digest) for tag, digest in saved.get("files", np.zeros((0, 2), np.int64))}
