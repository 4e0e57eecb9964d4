"""The frozen part of a model on its way: who lacks it, and where nodes keep it. The protocol is in `wire/frozen.py`."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, RecordDict

from fedapp import wire
from fedapp.config import RunConfig
from fedapp.files import DamagedFileError, load_arrays, save_arrays, writable_directory
from fedapp.refusals import Reason, Refusal
from fedapp.wire import Arrays

if TYPE_CHECKING:  # which imports torch
    from fedapp.models.frozen import FrozenPart

log = logging.getLogger("flwr")
MOST_SENT = 3  # how often a node may ask for it
KEPT = "frozen"  # directory in a node's state-dir, and start of a record's name in its context


class FrozenSender:
    """The server's side: sends what is frozen to the nodes that lack it."""

    def __init__(self, part: "FrozenPart | None") -> None:
        self._part = part
        self.digest = part.digest if part else ""
        self._asking: set[int] = set()  # nodes that have asked for it in a round
        self._sent = Counter[int]()  # node -> how often it was sent

    def record_for(self, node: int, lacks: bool) -> ArrayRecord | None:
        """Return what goes to a node with its invitation; `lacks` is what the node said when it was asked."""
        asks = node in self._asking or (lacks and not self._sent[node])
        if not asks or self._sent[node] >= MOST_SENT:
            return None
        self._asking.discard(node)
        self._sent[node] += 1
        return self._record

    @cached_property
    def _record(self) -> ArrayRecord | None:
        return wire.record_of(self._part.arrays()) if self._part else None

    def note(self, refusals: Iterable[Refusal], node_of: Mapping[int, int]) -> None:
        """Note which nodes lack it, from why their clients did not train."""
        lacking = (r.client for r in refusals if r.reason is Reason.LACKS_FROZEN)
        self._asking |= {node_of[client] for client in lacking if client in node_of}


class LacksFrozenError(RuntimeError):
    """The server's frozen parameters are not on this node yet."""

    reason = Reason.LACKS_FROZEN

    def __init__(self) -> None:
        super().__init__(
            "its node lacks the frozen parameters, which come with the next invitation"
        )


class FrozenStore:
    """A node's side: a copy in its state-dir, named by its digest, or in Flower's `context.state`."""

    def __init__(self, config: RunConfig, records: RecordDict) -> None:
        self._directory = Path(config.state_dir).expanduser() / KEPT if config.state_dir else None
        self._records = records

    def load(self, digest: str) -> Arrays | None:
        """Return the copy with a digest; None if there is none."""
        if self._directory is None:
            record = self._records.get(f"{KEPT}.{digest}")
            return wire.arrays_of(record) if isinstance(record, ArrayRecord) else None
        path = self._directory / f"{digest}.safetensors"
        if not path.is_file():
            return None
        try:
            return load_arrays(path, {"kind": KEPT})[0]
        except DamagedFileError as error:
            log.warning("%s It is replaced.", error)
            return None

    def save(self, digest: str, arrays: Arrays) -> None:
        """Keep a copy; in the context, in the place of others."""
        if self._directory is not None:
            writable_directory("state-dir", self._directory)
            save_arrays(self._directory / f"{digest}.safetensors", arrays, {"kind": KEPT})
            return
        for name in [name for name in self._records if name.startswith(f"{KEPT}.")]:
            del self._records[name]
        self._records[f"{KEPT}.{digest}"] = wire.record_of(arrays)


def bring_up_to_date(problem: object, digest: str, sent: Arrays, store: FrozenStore) -> None:
    """Give a node's problem the server's frozen part, if it has another; LacksFrozenError if that is not here."""
    from fedapp.models.frozen import frozen_part_of

    part = frozen_part_of(problem)
    if part is None or not digest or part.digest == digest:
        return
    arrays = sent or store.load(digest)
    if not arrays:
        raise LacksFrozenError
    problem.adopt_frozen(arrays, digest)  # type: ignore[attr-defined]
    if sent:
        store.save(digest, sent)
