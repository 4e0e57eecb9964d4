"""The closest vector that agrees with others: P(v, C) = argmin |p - v| with <C_j, p> >= 0 for every row C_j.

By its dual P = v + C'z, z = argmin over z >= 0 of 1/2 z'Gz + b'z with G = CC' and b = Cv: one unknown per
row; only inner products depend on the length of the vectors. It is a non-negative least-squares problem.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from fedapp.products import Matrix, Numbers, add_rows, inner_products
from fedapp.threads import one_thread, thread_pool

# Eigenvalues of a Gram matrix below this part of the largest are rounding errors.
SINGULAR = {torch.float64: 1e-13, torch.float32: 1e-6}
NEGLIGIBLE = 1e-14  # a product this small, for vectors of length 1, is zero
CHUNK = 1 << 16  # columns of a piece that one thread multiplies at a time
SHORT = 10_000  # pieces up to this length are multiplied in float64, which costs next to nothing


def dual(gram: Matrix, products: Matrix, length: float, singular: float) -> Matrix:
    """Return z for G = `gram`, b = `products` and |v| = `length`; zero rows of C have z = 0."""
    z = np.zeros(len(products))
    norms = np.sqrt(np.diagonal(gram))
    rows = np.flatnonzero(norms > 0)
    b = products[rows] / norms[rows]
    if not (b < -NEGLIGIBLE * length).any():  # v agrees with all already
        return z
    values, axes = np.linalg.eigh(gram[np.ix_(rows, rows)] / np.outer(norms[rows], norms[rows]))
    large = values > singular * values[-1]
    roots, axes = np.sqrt(values[large]), axes[:, large]
    # G = A'A with A = roots axes'; b = Cv lies in the range of G, so -b = A'(-axes'b / roots).
    solution, _ = nnls(roots[:, None] * axes.T, -(axes.T @ b) / roots, maxiter=30 * len(rows) + 100)
    z[rows] = solution / norms[rows]
    return z


def pieces(sizes: Sequence[int]) -> list[slice]:
    """Return the slices of a vector that is made of pieces of these sizes."""
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def project_(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Make v, the first of a few rows, P(v, C) for the others, piece by piece; return it.

    In float64 whatever the rows are: they are often nearly parallel, and then float32 is far off.
    """
    for piece in rows.split(list(sizes), dim=1):
        exact = piece.double()
        gram = (exact @ exact.T).cpu().numpy()
        z = dual(gram[1:, 1:], gram[1:, 0], gram[0, 0] ** 0.5, SINGULAR[torch.float64])
        if z.any():
            piece[0].copy_(exact[0] + torch.from_numpy(z).to(exact) @ exact[1:])
    return rows[0]


class _Chunk(NamedTuple):
    """Some columns of a piece."""

    piece: int
    columns: slice


class Memory:
    """At most `size` vectors, one for each of some clients, and the projection onto the cone where all agree.

    A vector is a row times a scale, so fading all vectors changes no row. The projection does not depend on
    the scales: the rows' inner products are kept, piece by piece, and recomputed only for rows that changed.
    """

    def __init__(self, size: int, sizes: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.pieces = pieces(sizes)
        self.rows = np.zeros((size, sum(sizes)), dtype)
        self.scales = np.zeros(size)
        self.grams = np.zeros((len(sizes), size, size))  # the rows' products, unscaled
        # Share of the vectors, over all pieces, that the last projection pushed against.
        self.active = 0.0
        self._changed: set[int] = set()
        self._chunks = [
            _Chunk(number, slice(start, min(start + CHUNK, piece.stop)))
            for number, piece in enumerate(self.pieces)
            for start in range(piece.start, piece.stop, CHUNK)
        ]

    def restore(self, rows: NDArray[Any], scales: NDArray[Any], grams: NDArray[Any]) -> None:
        """Restore rows, scales and inner products of an earlier memory."""
        self.rows, self.scales, self.grams = (
            np.require(rows, requirements=["C", "A", "W"]),
            scales,
            grams,
        )

    def vector(self, slot: int) -> NDArray[Any]:
        """Return a slot's vector."""
        return self.scales[slot] * self.rows[slot]  # type: ignore[no-any-return]

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self.rows[slot], self.scales[slot] = 0, 0.0
        self._changed.add(slot)

    def update(self, fade: float, added: Mapping[int, NDArray[Any]]) -> None:
        """Multiply all vectors by `fade`, then add to some."""
        self.scales *= fade

        def renew(slot: int) -> None:
            self.rows[slot] *= self.rows.dtype.type(self.scales[slot])
            self.rows[slot] += added[slot]
            self.scales[slot] = 1.0

        list(thread_pool().map(renew, added))
        self._changed |= set(added)

    def project(self, v: NDArray[Any]) -> NDArray[Any]:
        """Return P(v, D); update the inner products of the rows that changed."""
        one_thread()
        changed, held = np.array(sorted(self._changed), np.int64), np.flatnonzero(self.scales)

        def multipliers(piece: slice, gram: Matrix, fresh: Matrix) -> Matrix:
            gram[changed], gram[:, changed] = fresh[:-1], fresh[:-1].T
            length, singular = float(np.linalg.norm(v[piece])), SINGULAR[self._exact(piece)]
            z = np.zeros(len(gram))
            z[held] = dual(gram[np.ix_(held, held)], fresh[-1, held], length, singular)
            return z

        fresh = self._inner_products(changed, v)
        zs = list(thread_pool().map(multipliers, self.pieces, self.grams, fresh))
        self.active = sum(map(np.count_nonzero, zs)) / max(len(held) * len(zs), 1)
        projected = v.copy()
        self._add_combinations(zs, projected)
        self._changed = set()
        return projected

    def _inner_products(self, changed: Numbers, v: NDArray[Any]) -> list[Matrix]:
        """Return for each piece the products of the rows that changed and, last, of v with all rows."""

        def part(chunk: _Chunk) -> Matrix:
            columns, exact = chunk.columns, self._exact(self.pieces[chunk.piece])
            if exact is torch.float32:
                return inner_products(self.rows, v, changed, columns)
            some = np.concatenate([self.rows[changed, columns], v[None, columns]])
            others = torch.from_numpy(self.rows[:, columns]).to(exact)
            return np.asarray((torch.from_numpy(some).to(exact) @ others.T).numpy())

        sums = [np.zeros((len(changed) + 1, len(self.rows))) for _ in self.pieces]
        # Chunks are added in their order, so that the sum does not depend on how many threads there are.
        for chunk, products in zip(
            self._chunks, thread_pool().map(part, self._chunks), strict=True
        ):
            sums[chunk.piece] += products
        return sums

    def _add_combinations(self, zs: Sequence[Matrix], total: NDArray[Any]) -> None:
        """Add to each piece its weighted sum of rows."""

        def add(chunk: _Chunk) -> None:
            columns, exact, z = (
                chunk.columns,
                self._exact(self.pieces[chunk.piece]),
                zs[chunk.piece],
            )
            if exact is torch.float32:
                chosen = np.flatnonzero(z)
                weights = z[chosen].astype(np.float32)
                add_rows(self.rows, chosen, weights, columns.start, columns.stop, total)
            else:
                rows = torch.from_numpy(self.rows[:, columns]).to(exact)
                total[columns] += (torch.from_numpy(z).to(exact) @ rows).numpy()

        list(thread_pool().map(add, [chunk for chunk in self._chunks if zs[chunk.piece].any()]))

    def _exact(self, piece: slice) -> torch.dtype:
        """Return how exactly a piece is multiplied."""
        short = piece.stop - piece.start <= SHORT
        return torch.float64 if short or self.rows.dtype == np.float64 else torch.float32
