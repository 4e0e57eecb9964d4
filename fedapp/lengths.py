"""The usual length of updates: one client's single message must not end a run.

An update is refused if one of its vectors is longer than `max-update-ratio` times the usual length of the vectors of
that name (a method's u, dc, D, ... have different scales). Buffers have no length that could be compared. The usual
length is the largest of

- the median over this round's vectors and a sample of those accepted in earlier rounds;
- the largest such median of all earlier rounds, so that updates may shrink to nothing (at an optimum, with a decaying
  step size) and grow again, as after a reset of the clients' states;
- the median over this round alone, if it has at least three updates: if most of a round is long, that is the run,
  which may diverge, and not a client;
- a thousandth of the model's length, or of 1: with the default ratio, what is no longer than the model is never refused.

Medians are lower medians over the vectors that are not zero, so a single giant is refused in the first round, too. While
fewer than three vectors have been seen, there is nothing to compare with, and everything is used. Only what is used counts
for later rounds; an attempt that is repeated leaves no trace.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.errors import DivergedError
from fedapp.refusals import Reason, Refusal
from fedapp.wire import Arrays, Update

FEWEST = 3  # vectors that have a usual length
SAMPLE = 16  # lengths of one round that are remembered, at most
REMEMBERED = 8 * SAMPLE  # lengths of each vector
NAMED = 3  # updates that stood out most, which a divergence is told with
STANDS_OUT = 10.0  # times the usual length, from which a divergence is put down to one update
FLOOR = 1e-3  # relative to the model's length
Lengths = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A round's updates in the order of client ids: how long their vectors are, and how long is usual."""

    clients: list[int]
    lengths: Lengths  # clients x names
    usual: Lengths  # the usual length for each name


class UpdateLengths:
    """The lengths of a run's updates."""

    def __init__(self, names: Sequence[str], ratio: float) -> None:
        self.names = list(names)
        self.ratio = ratio  # 0: nothing is refused
        self._recent = np.zeros((len(names), REMEMBERED))  # 0: not used yet
        self._largest = np.zeros(len(names))  # the largest median so far
        self._longest = np.zeros((NAMED, 5))  # round, client, name, length, times the usual

    def measure(self, updates: Sequence[Update], x: NDArray[Any]) -> Measured:
        """Measure a round's updates; none of them counts yet."""
        lengths = np.array(
            [[_length_of(update, name) for name in self.names] for update in updates]
        )
        lengths = lengths.reshape(len(updates), len(self.names))
        floor = FLOOR * max(length(x), 1.0)
        usual = [max(floor, self._usual(place, column)) for place, column in enumerate(lengths.T)]
        return Measured([update.client for update in updates], lengths, np.array(usual))

    def _usual(self, place: int, lengths: Lengths) -> float:
        if self._seen(place, lengths) < FEWEST:
            return float(lengths.max(initial=0.0))  # nothing to compare with
        alone = _median(lengths) if (lengths > 0).sum() >= FEWEST else 0.0
        return max(float(self._largest[place]), self._median(place, lengths), alone)

    def refused(self, measured: Measured) -> list[Refusal]:
        """Return the clients whose updates are too long, each with the reason."""
        if not self.ratio:
            return []
        found = {
            measured.clients[row]: (
                f"its '{self.names[place]}' has the length {measured.lengths[row, place]:.3g}, which is more than "
                f"max-update-ratio = {self.ratio:g} times the usual {measured.usual[place]:.3g}"
            )
            for row, place in np.argwhere(measured.lengths > self.ratio * measured.usual)
        }
        return [Refusal(client, Reason.UNUSUALLY_LONG, text) for client, text in found.items()]

    def accept(self, measured: Measured, clients: Sequence[int], round_: int) -> None:
        """Count the updates of the clients that a round uses."""
        chosen = set(clients)
        used = [place for place, client in enumerate(measured.clients) if client in chosen]
        lengths = measured.lengths[used]
        medians = [self._median(place, column) for place, column in enumerate(lengths.T)]
        self._largest = np.maximum(self._largest, medians)
        recent = [
            np.concatenate([before, _sample(column)])[-REMEMBERED:]
            for before, column in zip(self._recent, lengths.T, strict=True)
        ]
        self._recent = np.array(recent).reshape(self._recent.shape)
        rows = [
            (round_, measured.clients[index], place, lengths[row, place], excess)
            for row, index in enumerate(used)
            for place, excess in enumerate(lengths[row] / measured.usual)
            if excess > 0
        ]
        both = np.concatenate([self._longest, np.array(rows).reshape(-1, 5)])
        self._longest = both[np.argsort(-both[:, 4], kind="stable")[:NAMED]]

    def _median(self, place: int, lengths: Lengths) -> float:
        """Return the median over some lengths and the remembered ones; 0 if there are too few."""
        if self._seen(place, lengths) < FEWEST:
            return 0.0
        return _median(np.concatenate([self._recent[place], lengths]))

    def _seen(self, place: int, lengths: Lengths) -> int:
        """Return how many lengths there are to compare with, these included."""
        return int((self._recent[place] > 0).sum() + (lengths > 0).sum())

    def divergence(self, text: str) -> DivergedError:
        """Return the error that ends a diverging run; it names the updates that stood out most."""
        told = [
            f"client {client:.0f} in round {round_:.0f} ('{self.names[int(place)]}': {length:.3g}, "
            f"{excess:.3g} times the usual)"
            for round_, client, place, length, excess in self._longest
            if round_
        ]
        longest = f" The longest updates that were used: {', '.join(told)}." if told else ""
        round_, *_, excess = self._longest[0]
        return DivergedError(text + longest, since=int(round_) if excess >= STANDS_OUT else 0)

    def saved(self) -> Arrays:
        """Return the lengths so far, for a checkpoint."""
        return {"recent": self._recent, "largest": self._largest, "longest": self._longest}

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved` returned; an old checkpoint has nothing of it, and lengths count from there on."""
        own = self.saved()
        shapes = {name: array.shape for name, array in saved.items()}
        if saved and shapes != {name: array.shape for name, array in own.items()}:
            raise ValueError(f"its lengths of updates are {shapes}")
        if saved:
            self._recent, self._largest = saved["recent"], saved["largest"]
            self._longest = saved["longest"]


def _length_of(update: Update, name: str) -> float:
    """Return the length of an update's vector, as its node says it where it has added the vectors up."""
    return update.lengths[name] if name in update.lengths else length(update[name])


def length(vector: NDArray[Any]) -> float:
    """Return the Euclidean norm; what has been checked to be moderate does not overflow."""
    return math.sqrt(float(np.dot(vector, vector)))


def _median(lengths: Lengths) -> float:
    """Return the lower median of the lengths that are not 0; 0 if there are none."""
    ordered = np.sort(lengths[lengths > 0])
    return float(ordered[(len(ordered) - 1) // 2]) if len(ordered) else 0.0


def _sample(lengths: Lengths) -> Lengths:
    """Return at most SAMPLE of the lengths that are not 0, evenly spaced in their order."""
    ordered = np.sort(lengths[lengths > 0])
    if len(ordered) <= SAMPLE:
        return ordered
    return np.asarray(ordered[np.linspace(0, len(ordered) - 1, SAMPLE).round().astype(int)])
