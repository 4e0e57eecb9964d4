"""Inner products and weighted sums of the rows of a large float32 matrix, which is read once and not copied.

numba compiles them for the processor at hand. The order of each sum depends on the columns alone, not on threads.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.kernels.compiling import compiled

Matrix = NDArray[np.float64]
Rows = NDArray[np.float32]
Row = NDArray[np.float32]
Numbers = NDArray[np.int64]
# Columns whose products are added in float32; rows of this length stay in a core's cache.
TILE = 4096
SIDE = 4  # rows of a block on either side: more have no registers
ZERO = np.float32(0)

kernel = partial(compiled, nogil=True)
# Sums may be divided over the lanes of a vector register, and a product and its sum rounded once.
summing = partial(compiled, nogil=True, fastmath={"reassoc", "contract", "nsz"})


def inner_products(rows: Rows, v: Row, chosen: Numbers, columns: slice) -> Matrix:
    """Return the products of the chosen rows and, last, of v with all rows, over some columns, in float64."""
    m, n = len(rows), len(chosen)
    others = np.setdiff1d(np.arange(m), chosen)
    order = np.concatenate([chosen, [-1], others]).astype(np.int64)  # -1: v
    found = np.zeros((n + 1, m + 1))
    _upper_products(rows, v, order, columns.start, columns.stop, found)
    found[:, : n + 1] = np.triu(found[:, : n + 1]) + np.triu(found[:, : n + 1], 1).T
    products = np.empty((n + 1, m))
    products[:, chosen], products[:, others] = found[:, :n], found[:, n + 1 :]
    return products


@summing
def _block(
    a0: Row, a1: Row, a2: Row, a3: Row, b0: Row, b1: Row, b2: Row, b3: Row
) -> tuple[Any, ...]:
    """Return the products of four rows with four."""
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = ZERO
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = ZERO
    for k in range(len(a0)):
        x0, x1, x2, x3 = a0[k], a1[k], a2[k], a3[k]
        y0, y1, y2, y3 = b0[k], b1[k], b2[k], b3[k]
        s00, s01, s02, s03 = s00 + x0 * y0, s01 + x0 * y1, s02 + x0 * y2, s03 + x0 * y3
        s10, s11, s12, s13 = s10 + x1 * y0, s11 + x1 * y1, s12 + x1 * y2, s13 + x1 * y3
        s20, s21, s22, s23 = s20 + x2 * y0, s21 + x2 * y1, s22 + x2 * y2, s23 + x2 * y3
        s30, s31, s32, s33 = s30 + x3 * y0, s31 + x3 * y1, s32 + x3 * y2, s33 + x3 * y3
    return s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33


@kernel
def _part(rows: Rows, v: Row, order: Numbers, place: int, start: int, stop: int) -> Row:
    """Return some columns of the row at a place of an order; of the last one beyond its end."""
    row = order[min(place, len(order) - 1)]
    return v[start:stop] if row < 0 else rows[row, start:stop]


@kernel
def _upper_products(
    rows: Rows, v: Row, order: Numbers, start: int, stop: int, found: Matrix
) -> None:
    """Add to found[i, j], for j >= i, the product of the i-th and the j-th row of the order."""
    n, m = found.shape
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        for j in range(0, m, SIDE):
            b0 = _part(rows, v, order, j, first, last)
            b1 = _part(rows, v, order, j + 1, first, last)
            b2 = _part(rows, v, order, j + 2, first, last)
            b3 = _part(rows, v, order, j + 3, first, last)
            for i in range(0, min(n, j + SIDE), SIDE):
                a0 = _part(rows, v, order, i, first, last)
                a1 = _part(rows, v, order, i + 1, first, last)
                a2 = _part(rows, v, order, i + 2, first, last)
                a3 = _part(rows, v, order, i + 3, first, last)
                block = _block(a0, a1, a2, a3, b0, b1, b2, b3)
                for p in range(min(SIDE, n - i)):
                    for q in range(min(SIDE, m - j)):
                        found[i + p, j + q] += block[SIDE * p + q]


@kernel
def add_rows(rows: Rows, chosen: Numbers, weights: Row, start: int, stop: int, total: Row) -> None:
    """Add the weighted sum of the chosen rows to a vector, over some columns."""
    added = np.empty(TILE, np.float32)
    for first in range(start, stop, TILE):
        last = min(first + TILE, stop)
        added[:] = 0
        for i in range(len(chosen)):
            row, weight = rows[chosen[i], first:last], weights[i]
            for k in range(last - first):
                added[k] += weight * row[k]
        for k in range(last - first):
            total[first + k] += added[k]
