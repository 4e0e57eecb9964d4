"""Cells: whole numbers as a symbol of a small alphabet, and plain bits.

A number v >= 0 falls into the cell that the leading bits of v + 2^m, written as a float, name: the
numbers below 2^m have their own cells, and every further doubling is cut into 2^m cells. Where in
its cell a number lies takes plain bits, since within a cell all numbers are about as frequent.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.payload import PayloadError, Reader, varint

Integers = NDArray[Any]
CHUNK = 1 << 16  # numbers at a time: they stay in the processor's cache
FINENESS = (8, 6, 4, 3, 2, 1)  # values of m
TABULATED = 1 << 18  # up to here, a table maps numbers to cells


def chunks(values: Integers) -> Iterator[Integers]:
    """Cut an array into pieces that fit the processor's cache."""
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def cell_of(values: Integers, m: int) -> NDArray[np.int64]:
    """Return the cells of numbers: exponent and m leading bits of the float v + 2^m."""
    floats = (np.asarray(values, np.int64) + (1 << m)).astype(np.float64)
    return (floats.view(np.int64) >> (52 - m)) - ((1023 + m) << m)


def lowest_of(cells: Integers, m: int) -> NDArray[np.int64]:
    """Return the lowest number of each cell."""
    leading = (np.asarray(cells, np.int64) & ((1 << m) - 1)) | (1 << m)
    return (leading << (cells >> m)) - (1 << m)


class Cells:
    """The cells 0 .. alphabet - 1 of a fineness m; both sides know them."""

    def __init__(self, m: int, alphabet: int) -> None:
        self.m, self.alphabet = m, alphabet

    def write(self) -> bytes:
        """Write which cells these are."""
        return bytes([self.m]) + varint(self.alphabet)

    @classmethod
    def read(cls, reader: Reader, limit: int) -> "Cells":
        """Read what `write` wrote; the cells must be those of numbers below `limit`."""
        m, alphabet = reader.number("u1"), reader.varint()
        if m not in FINENESS or not 0 < alphabet <= cell_of(np.array([limit - 1]), m)[0] + 1:
            raise PayloadError("its alphabet does not fit the numbers")
        return cls(m, alphabet)

    @cached_property
    def lowest(self) -> NDArray[np.int64]:
        """The lowest number of each cell."""
        return lowest_of(np.arange(self.alphabet), self.m)

    @cached_property
    def _table(self) -> NDArray[np.int32] | None:
        end = int(lowest_of(np.array([self.alphabet]), self.m)[0])
        return cell_of(np.arange(end), self.m).astype(np.int32) if end <= TABULATED else None

    @property
    def exact(self) -> bool:
        """Whether every number has its own cell."""
        return self.alphabet <= 1 << self.m

    def of(self, values: Integers) -> NDArray[np.int32]:
        """Return the cells of numbers."""
        if self.exact:
            return values.astype(np.int32, copy=False)
        if self._table is None:
            return cell_of(values, self.m).astype(np.int32)
        return self._table.take(values)

    def numbers(self, cells: Integers) -> Integers:
        """Return the lowest numbers of cells."""
        return cells if self.exact else self.lowest.take(cells)

    # Where in their cells numbers lie: of those whose cell is wide enough, bit by bit.

    @property
    def _bits(self) -> range:
        return range((self.alphabet - 1) >> self.m)

    def pack_offsets(self, values: Integers, cells: Integers) -> bytes:
        """Write where in their cells numbers lie."""
        planes = []
        for bit in self._bits:
            inside = values[cells >= (bit + 1) << self.m] + (1 << self.m)
            planes.append(np.packbits(inside & (1 << bit) != 0).tobytes())
        return b"".join(planes)

    def unpack_offsets(self, reader: Reader, values: Integers) -> None:
        """Read where in their cells numbers lie, and add it to the lowest numbers there."""
        bounds = [self.lowest[(bit + 1) << self.m] for bit in self._bits]
        inside = [np.flatnonzero(values >= bound) for bound in bounds]  # before bits are added
        for bit, where in enumerate(inside):
            bits = np.unpackbits(reader.numbers("u1", -(-len(where) // 8)), count=len(where))
            values[where] += bits.astype(values.dtype) << bit

    # Several cells as one symbol, because a coder's time is per symbol.

    def group_for(self, symbols: int) -> int:
        """Return how many cells (1, 2 or 4) make one of at most that many symbols."""
        return 1 + (self.alphabet**2 <= symbols) + 2 * (self.alphabet**4 <= symbols)

    def join(self, cells: NDArray[np.int32], group: int) -> NDArray[np.int32]:
        """Return symbols of `group` cells each; the last may be filled up with the cell 0."""
        if missing := -len(cells) % group:
            cells = np.concatenate([cells, np.zeros(missing, np.int32)])
        symbols = cells[::group]
        for column in range(1, group):
            symbols = symbols * np.int32(self.alphabet) + cells[column::group]
        return symbols

    def split(self, symbols: Integers, group: int, count: int) -> Integers:
        """Return the first `count` cells of symbols."""
        if group == 1:
            return symbols
        return (
            self._members(group).take(symbols).view("u1" if self.alphabet <= 256 else "<u2")[:count]
        )

    @cached_property
    def _members_of(self) -> dict[int, Integers]:
        return {}

    def _members(self, group: int) -> Integers:
        """Return the cells of each symbol, seen as one wide number."""
        if group not in self._members_of:
            size = 1 if self.alphabet <= 256 else 2
            rows = np.indices((self.alphabet,) * group).reshape(group, -1).T
            narrow = np.ascontiguousarray(rows, f"<u{size}")
            self._members_of[group] = narrow.view(f"<u{size * group}").ravel()
        return self._members_of[group]
