"""Whole numbers as bytes, close to their entropy.

A number v >= 0 falls into a cell, as a float's leading bits would say it: the numbers up to 2^m
have cells of their own, and every further doubling of v + 2^m is cut into 2^m cells. The cells are
coded by a range coder (ANS) with their counts, which go before them; where in its cell a number lies
goes in plain bits, since within a cell all are about as frequent. Cells are coded several at a
time, under the product of their frequencies, because the coder's time is per symbol.

Where most numbers are zero, the gaps between the others are coded instead, and the others. Where
none of it pays, all bits are plain.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from fedapp.compression.payload import PayloadError, Reader, varint

Integers = NDArray[Any]
PLAIN, CODED, SPARSE = 0, 1, 2
CHUNK = 1 << 16  # numbers at a time: they stay in the processor's cache
MAX_ALPHABET = 36**2  # of a group of cells
TABULATED = 1 << 17  # up to here, a table maps numbers to cells
M = (8, 6, 4, 3, 2)
WORTH = 1.003  # a finer m is taken if it costs at most so much more: it is faster


def pack(values: Integers, limit: int, sparse: bool = True) -> bytes:
    """Code numbers in [0, limit); the reader must know how many there are, and the limit."""
    count = len(values)
    if count == 0 or limit <= 1:
        return b""
    if sparse and 8 * np.count_nonzero(values) < count:
        return bytes([SPARSE]) + _pack_sparse(values, limit)
    highest = int(values.max())
    cells = _Cells.fitting(values, highest)
    width = (limit - 1).bit_length()
    if cells.cost >= width * count:
        planes = (_pack_planes(part, width) for part in _chunks(values))
        return b"".join((bytes([PLAIN]), *planes))
    return b"".join((bytes([CODED]), cells.pack_table(), *_pack_coded(values, highest, cells)))


def unpack(reader: Reader, count: int, limit: int, sparse: bool = True) -> Integers:
    """Read what `pack` wrote."""
    if count == 0 or limit <= 1:
        return np.zeros(count, np.int32)
    mode = reader.number("u1")
    if mode == SPARSE and sparse:
        return _unpack_sparse(reader, count, limit)
    kind = np.int32 if limit < 1 << 30 else np.int64
    values = np.empty(count, kind)
    if mode == PLAIN:
        width = (limit - 1).bit_length()
        for part in _chunks(values):
            part[:] = _unpack_planes(reader, len(part), width)
    elif mode == CODED:
        _unpack_coded(reader, values, _Cells.read(reader, count, limit))
    else:
        raise PayloadError(f"there is no way {mode} to code numbers")
    if values.max() >= limit:
        raise PayloadError(f"a number in it is not below {limit}")
    return values


def pack_positions(positions: Integers, size: int) -> bytes:
    """Code increasing positions below `size` as the gaps between them."""
    return pack(np.diff(positions, prepend=-1) - 1, size, sparse=False)


def unpack_positions(reader: Reader, count: int, size: int) -> NDArray[np.int64]:
    """Read what `pack_positions` wrote."""
    gaps = unpack(reader, count, size, sparse=False).astype(np.int64)
    positions = np.cumsum(gaps + 1) - 1
    if count and positions[-1] >= size:
        raise PayloadError(f"a position in it is not below {size}")
    return positions


def _chunks(values: Integers) -> Iterator[Integers]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


# Most are zero: where the others are, and what they are.


def _pack_sparse(values: Integers, limit: int) -> bytes:
    positions = np.flatnonzero(values)
    head = varint(len(positions))
    gaps = pack_positions(positions, len(values))
    return head + gaps + pack(values[positions] - 1, limit - 1, sparse=False)


def _unpack_sparse(reader: Reader, count: int, limit: int) -> Integers:
    nonzero = reader.varint()
    if nonzero > count:
        raise PayloadError(f"it claims {nonzero} of {count} numbers")
    positions = unpack_positions(reader, nonzero, count)
    values = np.zeros(count, np.int32)
    values[positions] = unpack(reader, nonzero, limit - 1, sparse=False) + 1
    return values


# Plain bits.


def _pack_planes(values: Integers, width: int) -> bytes:
    whole = [(values >> shift).astype(np.uint8).tobytes() for shift in range(0, width - 7, 8)]
    bits = (np.packbits((values >> shift) & 1) for shift in range(width - width % 8, width))
    return b"".join((*whole, *(plane.tobytes() for plane in bits)))


def _unpack_planes(reader: Reader, count: int, width: int) -> NDArray[np.int64]:
    values = np.zeros(count, np.int64)
    for shift in range(0, width - 7, 8):
        values |= reader.numbers("u1", count).astype(np.int64) << shift
    for shift in range(width - width % 8, width):
        values |= _unpack_bits(reader, count).astype(np.int64) << shift
    return values


def _unpack_bits(reader: Reader, count: int) -> NDArray[np.uint8]:
    return np.unpackbits(reader.numbers("u1", -(-count // 8)), count=count)


# Cells.


def cell_of(values: Integers, m: int) -> NDArray[np.int64]:
    """Return the cells of numbers: exponent and the m leading bits of v + 2^m, as a float has them."""
    floats = (np.asarray(values, np.int64) + (1 << m)).astype(np.float64)
    return (floats.view(np.int64) >> (52 - m)) - ((1023 + m) << m)


def lowest_of(cells: Integers, m: int) -> NDArray[np.int64]:
    """Return the lowest number of each cell."""
    leading = (cells & ((1 << m) - 1)) | (1 << m)
    return (leading.astype(np.int64) << (cells >> m)) - (1 << m)


class _Cells:
    """How often each cell occurs, and what follows from it for writer and reader alike."""

    def __init__(self, m: int, counts: NDArray[np.int64]) -> None:
        self.m, self.counts, self.alphabet = m, counts, len(counts)
        # Cells that are coded as one symbol: 1, 2 or 4.
        self.group = 1 + (self.alphabet**2 <= MAX_ALPHABET) + 2 * (self.alphabet**4 <= MAX_ALPHABET)

    @classmethod
    def fitting(cls, values: Integers, highest: int) -> "_Cells":
        """Count cells, with the m that costs least or nearly so."""
        if highest < TABULATED:
            exact = np.zeros(highest + 1, np.int64)
            for part in _chunks(values):
                exact += np.bincount(part, minlength=highest + 1)
            tried = [cls(m, _fold(exact, m)) for m in M]
        else:
            tried = [cls(m, np.bincount(cell_of(values, m))) for m in M[2:]]
        least = min(cells.cost for cells in tried)
        return next(cells for cells in tried if cells.cost <= WORTH * least)

    @cached_property
    def cost(self) -> float:
        """Bits of the coded cells, their table and the plain bits."""
        total, occupied = self.counts.sum(), self.counts[self.counts > 0]
        entropy = total * np.log2(total) - (occupied * np.log2(occupied)).sum()
        plain = (self.counts * (np.arange(self.alphabet) >> self.m)).sum()
        table = (2 * np.floor(np.log2(self.counts + 1)) + 1).sum()
        return float(entropy + plain + table + 64)

    def pack_table(self) -> bytes:
        """Write m and the counts, in Elias's gamma code."""
        codes = (f"{count + 1:b}" for count in self.counts.tolist())
        bits = "".join("0" * (len(code) - 1) + code for code in codes)
        data = int(bits[::-1], 2).to_bytes(-(-len(bits) // 8), "little")
        return bytes([self.m]) + varint(self.alphabet) + varint(len(data)) + data

    @classmethod
    def read(cls, reader: Reader, count: int, limit: int) -> "_Cells":
        """Read the counts, which must be those of `count` numbers below `limit`."""
        m, alphabet, length = reader.number("u1"), reader.varint(), reader.varint()
        if m not in M or not 0 < alphabet <= cell_of(np.array([limit - 1]), m)[0] + 1:
            raise PayloadError("its table of frequencies does not fit the numbers")
        bits = f"{int.from_bytes(reader.bytes(length), 'little'):0{8 * length}b}"[::-1]
        counts, at = np.zeros(alphabet, np.int64), 0
        for cell in range(alphabet):
            first = bits.find("1", at, at + 63)
            end = 2 * first - at + 1
            if first < 0 or end > len(bits):
                raise PayloadError("its table of frequencies is damaged")
            counts[cell] = int(bits[first:end], 2) - 1
            at = end
        if counts.max() > count or counts.sum() != count:
            raise PayloadError("its table of frequencies does not fit the numbers")
        return cls(m, counts)

    @cached_property
    def only(self) -> int | None:
        """The cell of all numbers, if there is but one; then nothing needs to be coded."""
        return int(self.counts.argmax()) if np.count_nonzero(self.counts) == 1 else None

    def model(self) -> constriction.stream.model.Categorical:
        """Return the coder's model of a group of cells."""
        frequency = self.counts / self.counts.sum()
        product = np.ones(1)
        for _ in range(self.group):
            product = np.multiply.outer(product, frequency).ravel()
        return constriction.stream.model.Categorical(product, perfect=False)

    def groups(self) -> NDArray[Any]:
        """Return the cells of every group, as bytes of one number each, the first cell first."""
        kind = "u1" if self.alphabet <= 256 else "<u2"
        rows = np.indices((self.alphabet,) * self.group).reshape(self.group, -1).T
        return np.ascontiguousarray(rows, kind)

    def offset_bits(self) -> range:
        """Return the bits that can follow a cell."""
        return range((self.alphabet - 1) >> self.m)


def _fold(exact: NDArray[np.int64], m: int) -> NDArray[np.int64]:
    return np.bincount(cell_of(np.arange(len(exact)), m), exact).astype(np.int64)


def _pack_coded(values: Integers, highest: int, cells: _Cells) -> list[bytes]:
    table = (
        cell_of(np.arange(highest + 1), cells.m).astype(np.int32) if highest < TABULATED else None
    )
    coder = constriction.stream.stack.AnsCoder()
    model = cells.model()
    plain: list[bytes] = []
    for part in reversed(list(_chunks(values))):  # the coder gives back last what it took first
        if table is None:
            found = cell_of(part, cells.m).astype(np.int32)
        else:
            found = part if highest < 1 << cells.m else table.take(part)
        if cells.only is None:
            coder.encode_reverse(_grouped(found, cells), model)
        for bit in cells.offset_bits():
            inside = part[found >= (bit + 1) << cells.m] + (1 << cells.m)
            plain.append(np.packbits(inside & (1 << bit) != 0).tobytes())
    words = coder.get_compressed()
    return [varint(len(words)), words.astype("<u4").tobytes(), *plain]


def _grouped(found: Integers, cells: _Cells) -> NDArray[np.int32]:
    missing = -len(found) % cells.group
    if missing:
        found = np.concatenate([found, np.full(missing, cells.counts.argmax(), np.int32)])
    if cells.group == 1:
        return found.astype(np.int32, copy=False)
    symbols = found[:: cells.group].astype(np.int32)
    for column in range(1, cells.group):
        symbols *= cells.alphabet
        symbols += found[column :: cells.group]
    return symbols


def _unpack_coded(reader: Reader, values: Integers, cells: _Cells) -> None:
    words = reader.numbers("<u4", reader.varint()).astype(np.uint32)
    try:
        coder = constriction.stream.stack.AnsCoder(words)
    except ValueError:
        raise PayloadError("its coded numbers are damaged") from None
    model = cells.model()
    lowest = lowest_of(np.arange(cells.alphabet), cells.m).astype(values.dtype)
    members = cells.groups()
    wide = members.view(f"<u{members.itemsize * cells.group}").ravel()  # a group is one number
    parts = list(_chunks(values))
    for part in parts:
        if cells.only is not None:
            part[:] = lowest[cells.only]
            continue
        symbols = coder.decode(model, -(-len(part) // cells.group))
        found = wide.take(symbols).view(members.dtype)[: len(part)]
        part[:] = lowest.take(found) if cells.offset_bits() else found
    if not coder.is_empty():
        raise PayloadError("its coded numbers are damaged")
    for part in reversed(parts):
        _unpack_offsets(reader, part, cells, lowest)


def _unpack_offsets(reader: Reader, values: Integers, cells: _Cells, lowest: Integers) -> None:
    bounds = [lowest[(bit + 1) << cells.m] for bit in cells.offset_bits()]
    inside = [np.flatnonzero(values >= bound) for bound in bounds]  # before bits are added
    for bit, where in enumerate(inside):
        values[where] += _unpack_bits(reader, len(where)).astype(values.dtype) << bit
