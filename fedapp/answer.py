"""What a node answers an invitation with: every client's update, or, where a simulation asks for that, their sums."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from fedapp import wire
from fedapp.admission import has_negative_variance
from fedapp.aggregation import BUFFERS, PER_STEP, Sums
from fedapp.config import RunConfig
from fedapp.lengths import length
from fedapp.models.layout import Layout
from fedapp.wire import Invitation, Update

Kind = tuple[np.dtype[Any], tuple[int, ...]]


class Answer:
    """The answer to an invitation, client by client."""

    def __init__(
        self, content: RecordDict, invitation: Invitation, layout: Layout, config: RunConfig
    ) -> None:
        self._content, self._layout = content, layout
        self._size, self._dtype = sum(layout.tensors), np.dtype(invitation.dtype)
        self._names = {key.removesuffix(PER_STEP) for key in invitation.sums} | {BUFFERS}
        self._buffers = invitation.shared[BUFFERS]
        weighted = config.weighting == "examples"
        self._sums = Sums(invitation.sums, self._size, weighted) if invitation.sums else None

    def add(self, update: Update) -> None:
        """Add a client's update; what the server would refuse goes to it as it is, and it will say why."""
        if self._sums is not None and self._is_sound(seen := _decoded(update)):
            self._sums.add(seen, update.places)
            lengths = {name: length(seen[name]) for name in seen.arrays if name != BUFFERS}
            wire.add_summed(self._content, update, lengths)
        else:
            wire.add_update(self._content, update)

    def end(self) -> None:
        """Write the sums, if there are some."""
        if self._sums and self._sums.exact:
            wire.add_sums(self._content, self._sums.packed())

    def _is_sound(self, seen: Update) -> bool:
        """Return whether the server would take an update in."""
        examples, steps, loss = seen.num_examples, seen.steps, seen.train_loss
        if type(examples) is not int or type(steps) is not int or examples < 1 or steps < 1:
            return False
        if not isinstance(loss, float) or not math.isfinite(loss):
            return False
        size = sum(place.stop - place.start for place in seen.places) or self._size
        expected: dict[str, Kind] = dict.fromkeys(self._names, (self._dtype, (size,)))
        expected[BUFFERS] = _kind(self._buffers)
        kinds = {name: _kind(array) for name, array in seen.arrays.items()}
        if kinds != expected or not all(map(wire.is_moderate, seen.arrays.values())):
            return False
        return not has_negative_variance(seen[BUFFERS], self._layout)


def _decoded(update: Update) -> Update:
    """Return an update as the server sees it."""
    return replace(update, arrays=update.arrays | update.decoded)


def _kind(array: NDArray[Any]) -> Kind:
    """Return an array's type and shape."""
    return array.dtype, array.shape
