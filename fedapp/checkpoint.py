"""Checkpoints: all that the server would need to go on after a round, in one file.

`<run>/checkpoint/round-<k>.safetensors` holds the strategy's state as named arrays, and a digest of them. It is
written whole or not at all; the last two are kept. What clients remember stays with them: the server tells them which
versions the kept checkpoints would ask for.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedapp.state import write_atomically
from fedapp.strategy import FederatedStrategy
from fedapp.wire import Arrays

log = logging.getLogger("flwr")
KEPT = 2


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run: Path) -> None:
        self.directory = run / "checkpoint"

    def paths(self) -> list[Path]:
        """Return the files, the newest first."""
        return sorted(self.directory.glob("round-*.safetensors"), reverse=True)

    def write(self, round_: int, strategy: FederatedStrategy) -> None:
        """Save the state after a round; a disk that is full costs this checkpoint and nothing else."""
        path = self.directory / f"round-{round_:07d}.safetensors"
        arrays = strategy.saved()
        metadata = {"round": str(round_), "digest": _digest(round_, arrays)}
        try:
            self.directory.mkdir(exist_ok=True)
            write_atomically(path, lambda place: _save(arrays, place, metadata))
        except (OSError, SafetensorError) as error:
            log.warning("The checkpoint of round %d could not be written: %s", round_, error)
            return
        strategy.checkpointed(arrays["accepted"])
        for old in [*self.paths()[KEPT:], *self.directory.glob(".*")]:  # and what a kill left
            old.unlink()

    def restore(self, strategy: FederatedStrategy) -> int:
        """Take up the newest state that is whole and fits; return its round, 0 if there is none."""
        usable: list[tuple[int, NDArray[Any]]] = []
        for path in self.paths():
            try:
                round_, arrays = _load(path)
                if not usable:
                    strategy.restore(arrays)
            except (OSError, SafetensorError, ValueError, KeyError) as error:
                log.warning("The checkpoint %s is of no use, and left out: %s", path, error)
                continue
            usable.append((round_, arrays["accepted"]))
        for _, accepted in reversed(usable):  # clients keep what the older one would ask for, too
            strategy.checkpointed(accepted)
        return usable[0][0] if usable else 0


def _save(arrays: Arrays, path: Path, metadata: dict[str, str]) -> None:
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, metadata)
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _load(path: Path) -> tuple[int, Arrays]:
    with safe_open(path, "numpy") as file:
        metadata = file.metadata() or {}
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    round_ = int(metadata["round"])
    if _digest(round_, arrays) != metadata["digest"]:
        raise ValueError("its content has changed since it was written")
    return round_, arrays


def _digest(round_: int, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return a checksum of the round, and of every array's name, type, shape and numbers."""
    digest = hashlib.sha256(str(round_).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
