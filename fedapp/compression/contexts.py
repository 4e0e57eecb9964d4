"""Whole numbers as bytes, by chances that depend on their rows, columns and neighbours: `kernels/contextual.py`."""

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.payload import PayloadError, Reader
from fedapp.models.layout import Piece, pieces_of

Pieces = tuple[Piece, ...]
Levels = NDArray[np.int32]
Words = NDArray[np.uint16]
LARGEST = 1 << 20  # magnitude that can be packed


def shape_of(pieces: Pieces, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sizes and row lengths of the tensors of a vector; without pieces, it is one row."""
    pieces = pieces_of(size, pieces)
    sizes = np.array([piece.size for piece in pieces], np.int64)
    return sizes, np.array([max(piece.columns, 1) for piece in pieces], np.int64)


def pack(numbers: NDArray[np.int64], pieces: Pieces) -> bytes:
    """Write whole numbers, up to LARGEST."""
    return written(coded(numbers.astype(np.float32), 0.0, pieces)[1])


def coded(v: NDArray[np.float32], price: float, pieces: Pieces) -> tuple[Levels, Words]:
    """Round numbers, each down if that saves squared error times `price` bits; return the whole ones, and their code."""
    from fedapp.compression.kernels import contextual as kernel

    shape, room = shape_of(pieces, v.size), v.size // 4 + 256
    while True:
        levels, words = np.zeros(v.size, np.int32), np.empty(room, np.uint16)
        count = kernel.encode(v, price, levels, *shape, words)
        if count != kernel.FULL:
            return levels, words[:count]
        room *= 2


def written(words: Words) -> bytes:
    """Write coded words."""
    return words.astype("<u2").tobytes()


def unpack(reader: Reader, size: int, pieces: Pieces) -> tuple[Levels, Words]:
    """Read all that is left; return the whole numbers, and the words that they were coded in."""
    from fedapp.compression.kernels import contextual as kernel

    words: Words = reader.numbers("<u2", len(reader) // 2).astype(np.uint16)
    levels, nothing = np.zeros(size, np.int32), np.empty(0, np.float32)
    used = kernel.decode(nothing, 0.0, levels, *shape_of(pieces, size), words)
    if used == kernel.HOSTILE:
        raise PayloadError("it holds a number that is too large")
    if used < len(words) or (len(words) and not words[-1]):
        raise PayloadError("it has bytes too many")
    return levels, words
