"""The closest vector that agrees with others: P(v, C) = argmin |p - v| with <C_j, p> >= 0 for every row C_j.

By its dual P = v + C'z, z = argmin over z >= 0 of 1/2 z'Gz + b'z with G = CC' and b = Cv: one unknown per
row; only inner products depend on the length of the vectors. It is a non-negative least-squares problem.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from fedapp.threads import one_thread

Matrix = NDArray[np.float64]
# Eigenvalues of a Gram matrix below this part of the largest are rounding errors.
SINGULAR = {torch.float64: 1e-13, torch.float32: 1e-6}
NEGLIGIBLE = 1e-14  # a product this small, for vectors of length 1, is zero
CHUNK = 1 << 16  # columns that one thread multiplies at a time
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


class Memory:
    """At most `size` vectors, one for each of some clients, and the projection onto the cone where all agree.

    A vector is a row times a scale, so fading all vectors changes no row. The projection does not depend on
    the scales: the rows' inner products are kept, piece by piece, and recomputed only for rows that changed.
    """

    def __init__(self, size: int, sizes: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.pieces = pieces(sizes)
        self.rows = np.zeros((size, sum(sizes)), dtype)
        self.scales = np.zeros(size)
        self.grams = np.zeros((len(sizes), size, size))  # of the rows, unscaled
        self._changed: set[int] = set()

    def restore(self, rows: NDArray[Any], scales: NDArray[Any], grams: NDArray[Any]) -> None:
        """Restore rows, scales and inner products of an earlier memory."""
        self.rows, self.scales, self.grams = rows, scales, grams

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
        for slot, vector in added.items():
            self.rows[slot] *= self.rows.dtype.type(self.scales[slot])
            self.rows[slot] += vector
            self.scales[slot] = 1.0
        self._changed |= set(added)

    def project(self, v: NDArray[Any]) -> NDArray[Any]:
        """Return P(v, D); update the inner products of the rows that changed."""
        one_thread()
        changed, held = sorted(self._changed), np.flatnonzero(self.scales)
        rows = torch.from_numpy(self.rows)
        some = torch.from_numpy(np.concatenate([self.rows[changed], v[None]]))
        projected = v.copy()
        for piece, gram in zip(self.pieces, self.grams, strict=True):
            fresh, exact = inner_products(some[:, piece], rows[:, piece])
            gram[changed], gram[:, changed] = fresh[:-1], fresh[:-1].T
            length = float(np.linalg.norm(v[piece]))
            z = np.zeros(len(gram))
            z[held] = dual(gram[np.ix_(held, held)], fresh[-1, held], length, SINGULAR[exact])
            if z.any():
                projected[piece] += _combination(z, rows[:, piece], exact).numpy()
        self._changed = set()
        return projected


def inner_products(some: Tensor, rows: Tensor) -> tuple[Matrix, torch.dtype]:
    """Return the inner products of some rows with others, and how exact they are."""
    exact = torch.float64 if rows.shape[1] <= SHORT else rows.dtype

    def part(a: Tensor, b: Tensor) -> Tensor:
        return (a.to(exact) @ b.to(exact).T).double()

    # Chunks are added in their order, so that the sum does not depend on how many threads there are.
    parts = thread_pool().map(part, some.split(CHUNK, dim=1), rows.split(CHUNK, dim=1))
    return sum(parts, torch.zeros(len(some), len(rows), dtype=torch.float64)).numpy(), exact


def _combination(z: NDArray[np.float64], rows: Tensor, exact: torch.dtype) -> Tensor:
    """Return the weighted sum of rows."""
    weights = torch.from_numpy(z).to(exact)
    parts = thread_pool().map(lambda part: weights @ part.to(exact), rows.split(CHUNK, dim=1))
    return torch.cat(list(parts))


@lru_cache(maxsize=1)
def thread_pool() -> ThreadPoolExecutor:
    """Return this process's threads, each of which computes alone."""
    return ThreadPoolExecutor(os.cpu_count(), initializer=one_thread)


# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=thread_pool.cache_clear)
