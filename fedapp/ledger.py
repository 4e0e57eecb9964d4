"""What the server knows of its clients' states: which update of each it used last, and what it still owes them.

Every attempt at a round has a tag. A client saves its state under the tag of the attempt in which it trained, and the
server tells it with the next invitation which of its updates was used last: a state that belongs to an update which
was lost or refused is never trained from.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapp.client_numbers import ClientNumbers, Numbers, TalliedNumbers
from fedapp.data import Facts
from fedapp.deliveries import Deliveries, files_of
from fedapp.state import OLD
from fedapp.wire import Arrays, Invitation, Update

MOST_LOSSES = 3  # resets of all states on the word of one client


@dataclass(frozen=True)
class Place:
    """Where a run lives."""

    identity: str = "run"  # names the clients' states
    state_dir: str = ""  # for clients whose nodes name none
    durable_states: bool = False  # clients must sync their states, because the server cannot
    undelivered: Path | None = None  # for vectors that clients wait for; None: in memory


class StateLedger:
    """Tags, what was accepted, what is still to be delivered, and what checkpoints need."""

    def __init__(self, place: Place, keeps_state: bool, attempts: int) -> None:
        self.place = place
        self.keeps_state = keeps_state  # clients remember something
        self.tag = 0  # the attempt under way
        self.accepted = TalliedNumbers()  # client -> tag of its last update that was used
        self.digests = ClientNumbers()  # client -> digest of the state which that update left
        self.deliveries = Deliveries(place.undelivered, place.identity)
        self.attempts = attempts  # at a round, at most
        self._checkpoints: list[ClientNumbers] = []  # `accepted` of the checkpoints that are kept
        self._losses = Counter[int]()  # client -> resets of all states on its word

    def begin(self, round_: int, attempt: int) -> None:
        """Begin an attempt at a round."""
        self.tag = round_ * self.attempts + attempt

    def invitation(
        self,
        round_: int,
        clients: Sequence[int],
        facts: Facts | None,
        per_client: Callable[[int], Arrays],
    ) -> Invitation:
        """Return what some clients of a node must know; `per_client` is what one alone receives."""
        return Invitation(
            round=round_,
            tag=self.tag,
            run=self.place.identity,
            state_dir=self.place.state_dir,
            accepted={client: self.accepted.get(client, 0) for client in clients},
            kept={client: self._kept(client) for client in clients},
            shared={},
            facts=facts,
            digests={client: self.digests.get(client, 0) for client in clients},
            durable=self.place.durable_states,
            per_client={client: alone for client in clients if (alone := per_client(client))},
        )

    def _kept(self, client: int) -> list[int]:
        """Return the tags of a client's states that checkpoints refer to."""
        return sorted({accepted.get(client, 0) for accepted in self._checkpoints})

    def accept(self, updates: Sequence[Update]) -> None:
        """Note that the updates are used."""
        clients = [update.client for update in updates]
        self.accepted.put(clients, self.tag)
        self.digests.put(clients, [update.state_digest for update in updates])

    def has_lost(self, update: Update) -> bool:
        """Return whether a client lost a state that the server accepted; that it says so is not enough."""
        return update.state_lost and self.keeps_state and update.client in self.accepted

    def has_lost_too_often(self, update: Update) -> bool:
        """Return whether all states were reset on this client's word before, more often than is credible."""
        return self.has_lost(update) and self._losses[update.client] >= MOST_LOSSES

    def reset(self, lost: Sequence[int]) -> None:
        """Forget all states, because these clients lost theirs.

        A client without an accepted update begins without state, so from the next round on the server's means are over
        what the clients really hold.
        """
        self._losses.update(lost)
        self.accepted, self.digests = TalliedNumbers(), ClientNumbers()
        self.deliveries.clear()

    def deliver(self, vectors: Arrays) -> None:
        """Send vectors to this round's clients, each with its next invitation."""
        self.deliveries.put(self.tag, vectors, awaited=self.accepted.distinct)

    def delivery(self, client: int) -> Arrays:
        """Return what was left for a client."""
        return self.deliveries.get(self.accepted.get(client, 0))

    def saved(self) -> Arrays:
        """Return the accepted updates and what is still to be delivered, for a checkpoint."""
        arrays = {f"undelivered.{name}": value for name, value in self.deliveries.saved().items()}
        clients, tags = self.accepted.rows()
        return arrays | {"accepted": np.column_stack([clients, tags, self.digests.at(clients)])}

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved()` returned."""
        clients, tags, digests = accepted_states(saved)
        self.deliveries.restore(part_of(saved, "undelivered"))
        self.accepted = TalliedNumbers(clients, tags)
        self.digests = ClientNumbers(clients, digests)

    def checkpointed(self, saved: Arrays) -> None:
        """Note that a checkpoint is on disk; clients keep the states that it refers to."""
        clients, tags, _ = accepted_states(saved)
        self._checkpoints = [*self._checkpoints[-1:], ClientNumbers(clients, tags)]
        self.deliveries.checkpointed(files_of(part_of(saved, "undelivered")))


def part_of(saved: Arrays, kind: str) -> Arrays:
    """Return a copy of a checkpoint's arrays of one kind, by the rest of their names."""
    start = f"{kind}."
    return {
        key[len(start) :]: value.copy() for key, value in saved.items() if key.startswith(start)
    }


def accepted_states(saved: Arrays) -> tuple[Numbers, Numbers, Numbers]:
    """Return the clients of a checkpoint, the tag of each one's last accepted update, and its state's digest."""
    rows = saved["accepted"]
    if rows.shape[1:] == (2,):  # written by a version without digests
        rows = np.column_stack([rows, np.full(len(rows), OLD)])
    clients, tags, digests = rows.reshape(-1, 3).T
    return clients, tags, digests
