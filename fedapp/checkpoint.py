"""Checkpoints: all that the server needs to continue after a round, in one file.

`<run>/checkpoint/round-<k>.safetensors` holds the strategy's state as named arrays and a copy of `rounds.jsonl`; its
metadata says which run it belongs to, with which config, and carries a digest of everything. It is written whole or not
at all, and only once everything that it refers to is on the disk: the clients' states, by tag and digest, and
what is still to be delivered. The last two checkpoints are kept, and clients keep the states that they name.
"""

import hashlib
import itertools
import json
import logging
import math
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedapp.client_numbers import ClientNumbers
from fedapp.errors import ConfigError
from fedapp.files import (
    DamagedFileError,
    brief,
    checkpoint_paths,
    checkpoint_round,
    fsync,
    load_arrays,
    remove_leftovers,
    save_arrays,
)
from fedapp.ledger import accepted_states
from fedapp.manifest import CHECKPOINTS
from fedapp.observers import Observer
from fedapp.rounds_file import Record
from fedapp.state import NO_DIGEST, DirectoryStore, StateError
from fedapp.strategy import FederatedStrategy
from fedapp.wire import Arrays

log = logging.getLogger("flwr")
KEPT = 2
ROUNDS = "rounds"  # the array that holds a copy of rounds.jsonl
HERE = "states-here"  # the clients whose states are on a disk that the server sees
FROZEN = "frozen"  # in the metadata
UNUSABLE = ".unusable"  # added to the name of a checkpoint that was skipped


class OtherFrozenPartError(ConfigError):
    """The checkpoint is sound, but the network has another frozen part than when it was written."""


@dataclass(frozen=True)
class Restored:
    """Which round a run continues after, and the rounds up to it as they were recorded; 0: from the start."""

    round: int = 0
    rounds: str = ""
    # Digest of what the network holds frozen; None: an older version wrote no digest.
    frozen: str | None = None


class Checkpoints:
    """The checkpoints of one run.

    `states` is where the clients keep their states, if that is a disk of this machine: their files are synced before,
    and checked when a checkpoint that names them is restored.
    """

    def __init__(
        self,
        run: Path,
        identity: str = "",
        config: Mapping[str, Any] | None = None,
        states: DirectoryStore | None = None,
        old_until: int = 0,
    ) -> None:
        self.directory = run / CHECKPOINTS
        # Rounds up to this one were made by a version without digests.
        self.old_until = old_until
        self.identity, self.config, self.states = identity, dict(config or {}), states
        # client -> tag of its state that is known to be on the disk
        self._synced = ClientNumbers()

    def paths(self) -> list[Path]:
        """Return the files, the newest first."""
        return checkpoint_paths(self.directory)

    def write(self, round_: int, strategy: FederatedStrategy[Any], rounds: str = "") -> None:
        """Save the state after a round; a disk that is full costs this checkpoint and nothing else."""
        path = self._path(round_)
        saved = strategy.saved()
        copy = np.frombuffer(zlib.compress(rounds.encode(), 1), np.uint8)
        try:
            self.directory.mkdir(exist_ok=True)
            saved[HERE] = self._sync_states(saved)
            strategy.ledger.deliveries.sync()
            about = self._about(round_) | {FROZEN: strategy.frozen.digest}
            save_arrays(path, saved | {ROUNDS: copy}, about)
            fsync(self.directory.parent)
        except (OSError, SafetensorError) as error:
            log.warning("The checkpoint of round %d could not be written: %s", round_, brief(error))
            return
        for old in self.paths()[KEPT:]:
            old.unlink()
        remove_leftovers(self.directory)
        strategy.ledger.checkpointed(saved)

    def restore(
        self, strategy: FederatedStrategy[Any], diverged_since: int | None = None
    ) -> Restored:
        """Restore the newest checkpoint that is whole and fits.

        After a divergence it must be from before the round that caused it, or, if that is not known, older than the
        newest; `check_continuation` has refused a run that has none. Checkpoints that are skipped are set aside, and
        the reason is logged. If damage leaves none, the run cannot continue.
        """
        suspect = self._suspect(diverged_since)
        usable, skipped = self._usable(strategy, suspect, check_states=True)
        if not usable and skipped and self.config.get("on-lost-state") == "reset":
            usable, skipped = self._usable(strategy, suspect, check_states=False)
        if skipped and not usable:
            raise ConfigError(
                f"No checkpoint in {self.directory} can be used ({skipped[0]}) Restore that file from a backup; or, if "
                'only clients\' states are damaged, set on-lost-state = "reset"; or remove '
                f"{self.directory.parent} and start again."
            )
        self._set_aside({*self.paths()} - {self._path(r.round) for r, _ in usable})
        for _, arrays in reversed(usable):  # clients keep what the older one would ask for, too
            strategy.ledger.checkpointed(arrays)
        return usable[0][0] if usable else Restored()

    def _usable(
        self, strategy: FederatedStrategy[Any], suspect: float, check_states: bool
    ) -> tuple[list[tuple[Restored, Arrays]], list[str]]:
        """Restore the newest checkpoint that can be used; return all of these, and why others are damaged."""
        usable: list[tuple[Restored, Arrays]] = []
        damaged: list[str] = []
        for path in self.paths():
            try:
                restored, arrays = self.load(path)
                if restored.round >= suspect:
                    log.warning(
                        "Skipping checkpoint %s: it was written after what made the run diverge",
                        path,
                    )
                    continue
                if not usable:
                    self._check_frozen(restored, strategy)
                    if check_states:
                        self._check_states(path, arrays)
                    strategy.restore(arrays)
            except OtherFrozenPartError:
                raise
            except (DamagedFileError, ValueError, KeyError, zlib.error) as error:
                damaged.append(f"{path.name}: {brief(error)}")
                log.warning("Skipping unusable checkpoint %s: %s", path, error)
                continue
            usable.append((restored, arrays))
        return usable, damaged

    def _suspect(self, diverged_since: int | None) -> float:
        """Return the round from which on checkpoints cannot be trusted."""
        if diverged_since is None or not (paths := self.paths()):
            return math.inf
        return diverged_since or checkpoint_round(paths[0])

    def _path(self, round_: int) -> Path:
        return self.directory / f"round-{round_:07d}.safetensors"

    @staticmethod
    def _set_aside(paths: set[Path]) -> None:
        """Rename files, so that nothing is lost and none of them is taken for the newest one."""
        for path in paths:
            names = (path.with_name(f"{path.name}{UNUSABLE}-{n}") for n in itertools.count(1))
            path.rename(next(name for name in names if not name.exists()))

    def _about(self, round_: int) -> dict[str, str]:
        about = {"run": self.identity, "round": str(round_)}
        return about | {"config": json.dumps(self.config, sort_keys=True)}

    def load(self, path: Path) -> tuple[Restored, Arrays]:
        """Read a checkpoint, and check that it is whole and of this run."""
        arrays, about = load_arrays(path, {"run": self.identity} if self.identity else {}, old=True)
        round_ = int(about.get("round", -1))
        old = "run" not in about
        if old and (round_ > self.old_until or _old_digest(round_, arrays) != about.get("digest")):
            raise DamagedFileError(f"{path} is not a checkpoint of this run.")
        if path != self._path(round_):
            raise DamagedFileError(f"{path} is the checkpoint of round {round_}.")
        rounds = arrays.pop(ROUNDS, None)
        text = "" if rounds is None else _text(rounds)
        return Restored(round_, text, about.get(FROZEN)), arrays

    def _sync_states(self, saved: Arrays) -> NDArray[np.int64]:
        """Wait until the states that a checkpoint will name are on the disk; return whose are on this one."""
        if not self.states:
            return np.zeros(0, np.int64)
        clients, tags, _ = accepted_states(saved)
        here = self._synced.at(clients) == tags
        new = False
        for place in np.flatnonzero(~here).tolist():
            path = self.states.path(int(clients[place]), int(tags[place]))
            with suppress(FileNotFoundError):  # that node keeps them elsewhere
                fsync(path)
                fsync(path.parent)
                here[place] = new = True
        if new:
            fsync(self.states.directory)
            fsync(self.states.directory.parent)
        self._synced = ClientNumbers(clients[here], tags[here])
        return np.sort(clients[here])

    def _check_frozen(self, restored: Restored, strategy: FederatedStrategy[Any]) -> None:
        """Refuse to continue with a network whose frozen part is another one."""
        if restored.frozen not in (None, strategy.frozen.digest):
            raise OtherFrozenPartError(
                f"The frozen part of the network is not what {self.directory.parent} was trained with: make the network as "
                "before (its weights, and the versions of its libraries), or start a new run."
            )

    def _check_states(self, path: Path, saved: Arrays) -> None:
        """Refuse a checkpoint whose clients' states are not all there as they were."""
        if not self.states:
            return
        clients, tags, digests = accepted_states(saved)
        tag_of, digest_of = ClientNumbers(clients, tags), ClientNumbers(clients, digests)
        for client in saved[HERE].tolist() if HERE in saved else clients.tolist():
            tag, digest = tag_of[client], digest_of.get(client, NO_DIGEST)
            state = self.states.path(client, tag)
            try:
                if self.states.load(client, tag, digest) is None:
                    raise StateError(f"{state} is missing.")
            except StateError as error:
                raise DamagedFileError(
                    f"{path.name} needs the state of client {client}, and {error}"
                ) from None


class CheckpointWriter(Observer):
    """Writes a checkpoint every few rounds; `rounds_text` gives the rounds so far, and syncs them."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        strategy: FederatedStrategy[Any],
        every: int,
        rounds_text: Callable[[], str],
    ) -> None:
        self._checkpoints, self._strategy = checkpoints, strategy
        self._every, self._rounds_text = every, rounds_text

    def on_round(self, record: Record) -> None:
        """Write a checkpoint if one is due."""
        if record["round"] % self._every == 0:
            self._checkpoints.write(record["round"], self._strategy, self._rounds_text())


def _text(rounds: NDArray[Any]) -> str:
    return zlib.decompress(rounds.tobytes()).decode()


def _old_digest(round_: int, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the digest of checkpoints that do not name their run."""
    digest = hashlib.sha256(str(round_).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
