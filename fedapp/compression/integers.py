"""Whole numbers as bytes, close to their entropy.

Both sides know how many numbers there are, and the limit that they are below. They are coded as cells
(`cells.py`) by whichever of two coders (`entropy.py`) suits them. Where most are zero, the gaps between the
others are coded instead, and the others. Where nothing of this pays, all bits are plain.
"""

import numpy as np
from numpy.typing import NDArray

from fedapp.compression import entropy
from fedapp.compression.cells import FINENESS, TABULATED, Integers, chunks
from fedapp.compression.payload import PayloadError, Reader, varint

PLAIN, ANS, SPARSE, HUFFMAN = 0, 1, 2, 3
ANS_WORTH = 1.003  # finer cells are taken if they cost at most so much more: they are faster
HUFFMAN_WORTH = 1.015  # the same of Huffman's code
HUFFMAN_FROM = 2.5  # bits a symbol: it is not tried below


def pack(values: Integers, limit: int, sparse: bool = True) -> bytes:
    """Code numbers in [0, limit); the reader must know how many there are, and the limit."""
    count = len(values)
    if count == 0 or limit <= 1:
        return b""
    if sparse and 8 * np.count_nonzero(values) < count:
        return bytes([SPARSE]) + _pack_sparse(values, limit)
    tried = entropy.count_cells(values, FINENESS, TABULATED)
    least = min(cells.cost for cells in tried)
    width = (limit - 1).bit_length()
    plain = width * count
    for cells in tried:
        group = cells.group_for(entropy.BYTE)
        if cells.alphabet <= entropy.BYTE and cells.cost <= min(HUFFMAN_WORTH * least, plain):
            if group * cells.entropy >= HUFFMAN_FROM * count:
                data = entropy.pack_huffman(values, cells)
                if 8 * len(data) <= min(HUFFMAN_WORTH * least, plain):
                    return bytes([HUFFMAN]) + data
            break
    if least < plain:
        cells = next(cells for cells in tried if cells.cost <= ANS_WORTH * least)
        data = entropy.pack_ans(values, cells)
        if 8 * len(data) <= plain:
            return bytes([ANS]) + data
    return bytes([PLAIN]) + pack_bits(values, width)


def unpack(reader: Reader, count: int, limit: int, sparse: bool = True) -> Integers:
    """Read what `pack` wrote."""
    if count == 0 or limit <= 1:
        return np.zeros(count, np.int32)
    mode = reader.number("u1")
    if mode == SPARSE and sparse:
        return _unpack_sparse(reader, count, limit)
    if mode == PLAIN:
        values = unpack_bits(reader, count, (limit - 1).bit_length())
    elif mode == ANS:
        values = entropy.unpack_ans(reader, count, limit)
    elif mode == HUFFMAN:
        values = entropy.unpack_huffman(reader, count, limit)
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
    found = unpack(reader, nonzero, limit - 1, sparse=False)
    values: Integers = np.zeros(count, np.int32 if limit < 1 << 30 else np.int64)
    values[positions] = found
    values[positions] += 1
    return values


# Plain bits.


def pack_bits(values: Integers, width: int) -> bytes:
    """Write the lowest `width` bits of numbers."""
    return b"".join(_pack_planes(part, width) for part in chunks(values))


def unpack_bits(reader: Reader, count: int, width: int) -> Integers:
    """Read what `pack_bits` wrote."""
    values = np.empty(count, np.int32 if width < 31 else np.int64)
    for part in chunks(values):
        part[:] = _unpack_planes(reader, len(part), width)
    return values


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
