"""Scales of a vector's rows and columns: which numbers are large, told in a few bits.

Every tensor of the vector is a matrix. Its rows, its columns, both or neither have a scale, the mean size of their
numbers, rounded to a power of sqrt(2); the class of a number is the sum of its row's and its column's exponents.
Rows and columns of zeros are a separate class. Both sides know the classes before a number is coded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.compression import integers
from fedapp.compression.payload import PayloadError, Reader
from fedapp.models.layout import Piece

NOTHING = -1  # the class of zeros
LOWEST, HIGHEST = -300, 300  # half the exponents of float32 numbers, and some room
SPAN = 64  # exponents of rows: smaller ones count as the lowest
COLUMN_SPAN = 24  # exponents of columns are relative to their row's, between -24 and 24
ROWS, COLUMNS = 1, 2  # what has a scale; neither: the tensor has one
ITERATIONS = 2
SCALE_BITS = 2.5  # about what a scale costs

Cost = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # bits of a number by its scale


@dataclass(frozen=True)
class Scales:
    """The exponents of rows and columns; 0 stands for zeros, otherwise they count from 1."""

    pieces: tuple[Piece, ...]
    kinds: NDArray[np.int64]  # for each piece, what of it has a scale
    lowest: int  # exponent of rows that are written as 1
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @cached_property
    def classes(self) -> NDArray[np.int16]:
        """The class of every number."""
        found = np.empty(sum(piece.size for piece in self.pieces), np.int16)
        start = row = column = 0
        for piece, kind in zip(self.pieces, self.kinds.tolist(), strict=True):
            shape = piece.shape
            rows = self.rows[row : row + _count_rows(shape, kind)]
            columns = self.columns[column : column + _count_columns(shape, kind)]
            row, column = row + len(rows), column + len(columns)
            found[start : start + piece.size] = _sums(rows, columns, shape).ravel()[: piece.size]
            start += piece.size
        return found

    def exponents(self, classes: NDArray[Any]) -> NDArray[np.int64]:
        """Return the exponents of classes: their scale is 2^(exponent/2)."""
        return classes.astype(np.int64) - COLUMN_SPAN + self.lowest

    def write(self) -> bytes:
        """Write the exponents."""
        head = np.array(self.lowest, "<i2").tobytes() + integers.pack(self.kinds, 4)
        rows = integers.pack(self.rows, SPAN + 1)
        return head + rows + integers.pack(self.columns, 2 * COLUMN_SPAN + 2)

    @classmethod
    def read(cls, reader: Reader, pieces: tuple[Piece, ...]) -> "Scales":
        """Read what `write` wrote."""
        lowest = reader.number("<i2")
        if not LOWEST <= lowest <= HIGHEST:
            raise PayloadError("its scales are out of range")
        kinds = integers.unpack(reader, len(pieces), 4)
        both = list(zip((piece.shape for piece in pieces), kinds.tolist(), strict=True))
        rows = integers.unpack(reader, sum(_count_rows(*one) for one in both), SPAN + 1)
        count = sum(_count_columns(*one) for one in both)
        columns = integers.unpack(reader, count, 2 * COLUMN_SPAN + 2)
        return cls(pieces, kinds, lowest, rows, columns)


def find_scales(v: NDArray[np.float32], pieces: tuple[Piece, ...], cost: Cost) -> Scales:
    """Return the scales of a vector; `cost` tells what numbers of a scale cost, to see which scales pay."""
    kinds, rows, columns, start = [], [], [], 0
    for piece in pieces:
        kind, row, column = _best(np.abs(v[start : start + piece.size]), piece, cost)
        start += piece.size
        kinds.append(kind)
        rows.append(row)
        columns.append(column)
    exponents = np.concatenate([np.zeros(0), *rows])
    finite = exponents[np.isfinite(exponents)]
    highest = int(finite.max()) if len(finite) else 0
    lowest = max(int(finite.min()) if len(finite) else 0, highest - SPAN + 1)
    codes = np.where(np.isfinite(exponents), np.maximum(exponents - lowest, 0) + 1, 0)
    return Scales(
        pieces,
        np.array(kinds, np.int64),
        lowest,
        codes.astype(np.int64),
        np.concatenate([np.zeros(0, np.int64), *columns]).astype(np.int64),
    )


def _count_rows(shape: tuple[int, int], kind: int) -> int:
    return shape[0] if kind & ROWS else min(shape[0], 1)


def _count_columns(shape: tuple[int, int], kind: int) -> int:
    return shape[1] if kind & COLUMNS else 0


def _sums(
    rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the class of each number of a matrix."""
    if not len(columns):
        columns = np.full(1, COLUMN_SPAN + 1, np.int64)
    sums = rows[:, None] - 1 + columns[None, :] - 1
    zeros = (rows[:, None] == 0) | (columns[None, :] == 0)
    return np.broadcast_to(np.where(zeros, NOTHING, sums), shape)


def _best(
    sizes: NDArray[np.float32], piece: Piece, cost: Cost
) -> tuple[int, NDArray[np.float64], NDArray[np.int64]]:
    """Return which scales of a piece pay: exponents of rows, -inf for zeros, and of columns as they are written."""
    shape = piece.shape
    if not piece.size % shape[1]:
        matrix = sizes.reshape(shape)
    else:
        matrix = np.zeros(shape, np.float32)
        matrix.ravel()[: piece.size] = sizes
    fit = _Fit(matrix, piece.size)
    kinds = (0, ROWS, COLUMNS, ROWS | COLUMNS) if min(shape) > 1 else (0, ROWS)[: shape[0]]
    found = ((kind, *fit.exponents(kind)) for kind in kinds)
    kind, rows, columns = min(found, key=lambda one: fit.bits(one[1], one[2], cost))
    codes = np.where(np.isfinite(columns), columns + COLUMN_SPAN + 1, 0)
    return kind, rows, codes.astype(np.int64)


class _Fit:
    """A matrix of sizes, whose last row may be incomplete."""

    def __init__(self, matrix: NDArray[np.float32], size: int) -> None:
        largest = matrix.max(initial=0)
        self.unit = float(largest) or 1.0
        self.matrix = matrix / np.float32(self.unit)  # sums neither over- nor underflow
        self.size = size
        rows, columns = matrix.shape
        last = size - (rows - 1) * columns
        self.lengths = np.full(rows, columns, np.float64)
        self.lengths[-1] = last
        self.heights = np.full(columns, rows, np.float64)
        self.heights[last:] -= 1

    def exponents(self, kind: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return exponents of rows and columns, -inf for zeros, whose sums fit the sizes."""
        of_rows = self._over_rows
        if not kind & ROWS:
            of_rows = np.array([(of_rows * self.lengths).sum() / self.size])
        of_columns = np.zeros(0)
        if kind == COLUMNS:
            of_columns = self._over_columns(np.ones(len(self.lengths))) * _inverse(of_rows)
        elif kind == ROWS | COLUMNS:
            for _ in range(ITERATIONS):
                of_columns = self._over_columns(_inverse(of_rows))
                weights = _inverse(of_columns).astype(np.float32)
                of_rows = np.einsum("ij,j->i", self.matrix, weights) / self.lengths
        columns = _exponents(of_columns)
        columns[of_columns > 0] = columns[of_columns > 0].clip(-COLUMN_SPAN, COLUMN_SPAN)
        return _exponents(of_rows * self.unit), columns

    @cached_property
    def _over_rows(self) -> NDArray[np.float64]:
        return np.asarray(self.matrix.sum(axis=1) / self.lengths)

    def _over_columns(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(
            np.einsum("i,ij->j", weights.astype(np.float32), self.matrix) / self.heights
        )

    def bits(self, rows: NDArray[np.float64], columns: NDArray[np.float64], cost: Cost) -> float:
        """Return about the bits of a matrix with these scales: sums of exponents, and how often each occurs."""
        weights = self.lengths if len(rows) == len(self.lengths) else np.array([float(self.size)])
        alive = np.isfinite(rows)
        rows, weights, sent = rows[alive], weights[alive], len(rows) + len(columns)
        if len(columns):
            low, columns = rows.min(initial=0), columns[np.isfinite(columns)] + COLUMN_SPAN
            counts = np.convolve(
                np.bincount((rows - low).astype(int), weights / len(self.heights), 1),
                np.bincount(columns.astype(int), minlength=1),
            )
            rows, weights = np.arange(len(counts)) + low - COLUMN_SPAN, counts
        return float((cost(rows) * weights).sum()) + SCALE_BITS * sent


def _inverse(scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 1/s, and 0 where s is so small that 1/s would be infinite."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales > 1e-30)


def _exponents(scales: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.asarray(np.rint(2 * np.log2(scales)))
