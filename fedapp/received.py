"""What a node receives on a grid (`downlink = "grid"`), and the model that it keeps for the next difference.

A node keeps one model, for all of its clients: in its state-dir, or the directory that a simulation's server offers, or
in Flower's `context.state`. It is known by its digest. Without it, the node says so and is sent the next model whole;
nothing else depends on it. The protocol is in `wire/downlink.py`.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context
from numpy.typing import NDArray
from safetensors import SafetensorError

from fedapp import wire
from fedapp.compression import PayloadError, grid
from fedapp.compression.contexts import Pieces
from fedapp.files import (
    STALE_AFTER,
    DamagedFileError,
    arrays_digest,
    brief,
    load_arrays,
    remove_leftovers,
    save_arrays,
)
from fedapp.refusals import Reason
from fedapp.state import DirectoryStore, StateStore
from fedapp.wire import Arrays, Invitation

log = logging.getLogger("flwr")
KEPT = "model"  # directory beside the clients' states, and start of a record's name in the context


class ReceivedError(RuntimeError):
    """What the server sent cannot be used; the message says why."""

    reason = Reason.FAILED


class LacksModelError(ReceivedError):
    """What the server sent is a difference to a model that is not on this node."""

    reason = Reason.LACKS_MODEL

    def __init__(self) -> None:
        super().__init__(
            "its node lacks the model of its last round; the next one is sent whole to it"
        )


class ModelStore:
    """Where a node keeps the model that it received last: beside its clients' states."""

    def __init__(self, store: StateStore, context: Context) -> None:
        self._records = context.state
        self._path: Path | None = None
        if isinstance(store, DirectoryStore):  # which the nodes of a simulation share
            place = (context.node_config.get(key) for key in ("partition-id", "num-partitions"))
            name = "-of-".join(str(number) for number in place)
            self._path = store.directory / KEPT / f"{name}.safetensors"

    def load(self, digest: str) -> Arrays | None:
        """Return the model with a digest; None if it is not here."""
        if self._path is None:
            record = self._records.get(f"{KEPT}.{digest}")
            return wire.arrays_of(record) if isinstance(record, ArrayRecord) else None
        if not self._path.is_file():
            return None
        try:
            return load_arrays(self._path, {KEPT: digest})[0]
        except DamagedFileError as error:
            log.warning("%s The model is sent again.", error)
            return None

    def save(self, digest: str, model: Arrays) -> None:
        """Keep a model in the place of the one before."""
        if self._path is None:
            for name in [name for name in self._records if name.startswith(f"{KEPT}.")]:
                del self._records[name]
            self._records[f"{KEPT}.{digest}"] = wire.record_of(model)
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_arrays(self._path, model, {KEPT: digest}, durable=False)
        except (OSError, SafetensorError) as error:
            raise ReceivedError(
                f"the model cannot be kept in {self._path.parent} ({brief(error)}): make space there, or choose another "
                "state-dir"
            ) from None
        remove_leftovers(self._path.parent, STALE_AFTER)


def receive(invitation: Invitation, pieces: Pieces, store: ModelStore) -> Invitation:
    """Return an invitation with its vectors decoded, for a model of these pieces; keep what all clients receive."""
    base: Arrays = {}
    if invitation.base:
        base = store.load(invitation.base) or {}
        if not base:
            raise LacksModelError
    decoded: dict[int, NDArray[Any]] = {}  # clients share arrays, each of which is decoded once

    def plain(arrays: Arrays, known: Arrays) -> Arrays:
        found: Arrays = {}
        for name, array in arrays.items():
            if not (stream := wire.name_of_coded(name)):
                found[name] = array
                continue
            if id(array) not in decoded:
                decoded[id(array)] = _decode(stream, array, pieces, known.get(stream))
            found[stream] = decoded[id(array)]
        return found

    shared = plain(invitation.shared, base)
    per_client = {client: plain(own, {}) for client, own in invitation.per_client.items()}
    if invitation.model:
        model = {s: shared[s] for name in invitation.shared if (s := wire.name_of_coded(name))}
        if arrays_digest(model, {}) != invitation.model:
            raise ReceivedError("the model that the server sent is not what it says it is")
        if invitation.model != invitation.base:
            store.save(invitation.model, model)
    return replace(invitation, shared=shared, per_client=per_client)


def _decode(
    name: str, array: NDArray[Any], pieces: Pieces, base: NDArray[Any] | None
) -> NDArray[Any]:
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ReceivedError(f"the server's '{name}' is {array.dtype} instead of bytes")
    try:
        return grid.decode(array.data, sum(piece.size for piece in pieces), base, pieces)
    except PayloadError as error:
        raise ReceivedError(f"the server's '{name}' cannot be decoded: {error}") from None
