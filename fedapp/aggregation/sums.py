"""Sums that come out the same, bit for bit, in whatever order and in whatever parts they are added up.

Every number is cut into slices on fixed grids, whose spacings are powers of 2^36: what a number is on the coarsest grid, what
is left of it on the next, and so on. Slices of one grid are whole multiples of its spacing, and float64 adds up to 2^18 of
them without rounding, so neither their order nor their grouping matters. Kept are the two grids (three for float64) that
the largest number of all reaches into: what is cut off is below 2^-35 (2^-71) of that number. After Demmel and Nguyen, Parallel
Reproducible Summation, IEEE Transactions on Computers 2015.

So a worker may add up its own clients, and the server the workers: the result does not depend on how many there are.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.wire import Arrays, PackedSums, Update, WireError

WIDTH = 36  # bits between one grid and the next
MOST = 1 << 18  # vectors in one sum: their slices stay below 2^53 steps of their grid
LOWEST = -24  # grid of the largest number; finer ones would leave float64's range
CHUNK = 1 << 14  # numbers that are cut at a time, so that they stay in the processor's cache
LONG = 1 << 16  # numbers for which the compiled loop is worth its start
Sum = NDArray[np.float64]
# Types of vectors, by the number of grids of their sums
DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype(np.float32), 3: np.dtype(np.float64)}


def grids_of(dtype: np.dtype[Any]) -> int:
    """Return how many grids a sum of vectors of a type has."""
    return next((count for count, kind in DTYPES.items() if kind == dtype), 3)


class ExactSum:
    """The sum of some vectors, by slices."""

    def __init__(self, size: int, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype  # the vectors' type
        self.slices: Sum = np.zeros((grids_of(dtype), size))  # the coarsest first
        self.top = LOWEST  # the coarsest grid's number: its spacing is 2^(36 top)
        self.count = 0
        self._empty = True  # all slices are 0

    def add(
        self,
        vector: NDArray[Any],
        places: Sequence[slice] = (),
        times: int = 1,
        over: int = 1,
    ) -> None:
        """Add a vector times `times / over`; `places` are where its parts belong if it is not a whole one."""
        self._count(1)
        start = 0
        for place in places or (slice(0, self.slices.shape[1]),):
            part = vector[start : (start := start + place.stop - place.start)]
            self._raise_to(_grid_of(part, times, over))
            self._add_part(part, place.start, times, over)

    def _add_part(self, part: NDArray[Any], start: int, times: int, over: int) -> None:
        shifts = [1.5 * 2.0 ** (52 + WIDTH * (self.top - k)) for k in range(len(self.slices))]
        if len(part) >= LONG and len(shifts) == 2:
            from fedapp.aggregation.cutting import add_two  # which imports numba

            coarse, fine = self.slices[:, start : start + len(part)]
            add_two(part, coarse, fine, shifts[0], shifts[1], float(times), float(over))
            return
        buffer = np.empty(min(CHUNK, len(part)))
        for begin in range(0, len(part), CHUNK):
            rest = part[begin : begin + CHUNK].astype(np.float64)
            if times != 1:
                rest *= times
            if over != 1:
                rest /= over
            cut = buffer[: len(rest)]
            where = slice(start + begin, start + begin + len(rest))
            for kept, shift in zip(self.slices, shifts, strict=True):
                np.add(rest, shift, out=cut)
                cut -= shift
                kept[where] += cut
                rest -= cut

    def fill(self, slices: Sum, top: int, count: int) -> None:
        """Take slices over that were added up elsewhere."""
        self.slices, self.top, self.count, self._empty = slices, top, count, False

    def merge(self, other: "ExactSum") -> None:
        """Add another sum of vectors of the same kind."""
        self._count(other.count)
        self._raise_to(other.top)
        dropped = self.top - other.top
        for kept, part in zip(self.slices[dropped:], other.slices, strict=False):
            kept += part

    def _raise_to(self, top: int) -> None:
        """Take a coarser grid on, if a number needs it, and drop the finest."""
        if not self.slices.flags.writeable:  # a message's bytes are read-only
            self.slices = self.slices.copy()
        raised = min(top - self.top, len(self.slices))
        if raised > 0 and not self._empty:
            self.slices[raised:] = self.slices[: len(self.slices) - raised].copy()
            self.slices[:raised] = 0
        self.top, self._empty = max(top, self.top), False

    def _count(self, more: int) -> None:
        self.count += more
        if self.count > MOST:
            raise OverflowError(f"a sum of more than {MOST} vectors would not be exact")

    def total(self) -> Sum:
        """Return the sum."""
        total = self.slices[-1].copy()
        for part in self.slices[-2::-1]:
            total += part
        return np.asarray(total)

    def mean(self, weight: int) -> NDArray[Any]:
        """Return the sum divided by a weight, in the vectors' type."""
        return np.asarray(self.total() / weight, self.dtype)


def _grid_of(vector: NDArray[Any], times: int, over: int) -> int:
    """Return the number of the coarsest grid that a vector reaches into."""
    if not vector.size:
        return LOWEST
    largest = max(float(vector.max()), -float(vector.min())) * times / over
    exponent = math.frexp(largest)[1]  # largest < 2^exponent
    return max(-(-(exponent + 1) // WIDTH) - 1, LOWEST) if largest else LOWEST


PER_STEP = "/tau"  # behind a vector's name: each client's is divided by its number of local steps
BUFFERS = "buffers"
Places = tuple[slice, ...]


class Sums:
    """What is needed of a round's updates where single ones do not matter: the sums of their vectors, by name."""

    def __init__(self, keys: Sequence[str], size: int, weighted: bool) -> None:
        self.keys, self.size = tuple(keys), size  # the model's size
        self.weighted = weighted  # by numbers of examples; the model's statistics never are
        self.exact: dict[str, ExactSum] = {}

    def add(self, update: Update, places: Places = ()) -> None:
        """Add an update; `places` are where in the model its vectors belong."""
        for key in self.keys:
            name = key.removesuffix(PER_STEP)
            vector, statistics = update[name], name == BUFFERS
            times = update.num_examples if self.weighted and not statistics else 1
            over = update.steps if key.endswith(PER_STEP) else 1
            size = len(vector) if statistics else self.size
            if key not in self.exact:
                self.exact[key] = ExactSum(size, vector.dtype)
            self.exact[key].add(vector, () if statistics else places, times, over)

    def merge(self, other: "Sums") -> None:
        """Add what others have added up; `other` must not be used any more."""
        for key, exact in other.exact.items():
            if key in self.exact:
                self.exact[key].merge(exact)
            else:
                self.exact[key] = exact

    @property
    def count(self) -> int:
        """How many updates there are in it."""
        return max((exact.count for exact in self.exact.values()), default=0)

    def packed(self) -> PackedSums:
        """Return slices by key, and for each its coarsest grid and how many vectors are in it."""
        heads = {key: [exact.top, exact.count] for key, exact in self.exact.items()}
        return {key: exact.slices for key, exact in self.exact.items()}, heads

    def merge_packed(self, packed: PackedSums) -> None:
        """Add what `packed` returned elsewhere; raise WireError if it is not a sum of these vectors.

        The first is taken as it is, and must not change any more.
        """
        slices, heads = packed
        if set(slices) != set(self.keys) or set(heads) != set(self.keys):
            raise WireError(f"it has sums of {sorted(slices)} instead of {sorted(self.keys)}")
        other = Sums(self.keys, self.size, self.weighted)
        for key, array in slices.items():
            size = array.shape[-1] if key == BUFFERS else self.size
            if array.shape not in [(grids, size) for grids in DTYPES] or array.dtype != np.float64:
                raise WireError(f"its sum of '{key}' is {array.dtype} of shape {array.shape}")
            exact = other.exact[key] = ExactSum(0, DTYPES[len(array)])
            exact.fill(array, *heads[key])
        self.merge(other)


class Summed(list[Update]):
    """A round's updates, whose vectors are known by their sums alone."""

    def __init__(self, updates: Iterable[Update], sums: Sums) -> None:
        super().__init__(updates)
        self.sums = sums
        self.means: Arrays = {}  # vectors whose mean is not that of their sums


def exact_sum(updates: Sequence[Update], key: str, weighted: bool = False) -> ExactSum:
    """Return the sum of the vectors of a name, which may end in PER_STEP."""
    if isinstance(updates, Summed):
        return updates.sums.exact[key]
    sums = Sums([key], len(updates[0][key.removesuffix(PER_STEP)]), weighted)
    for update in updates:
        sums.add(update)
    return sums.exact[key]
