"""Aggregation rules: make one vector of a round's updates, however a few hostile clients chose theirs.

A rule takes the updates as rows, in the order of client ids, and the centre, which is its result of the round before
(only centered clipping looks at it). n is the number of rows, f the number of hostile ones to withstand. What is
summed is summed in a fixed order and by one thread, so that equal rows give equal bits on every engine.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedapp.aggregation.sums import ExactSum

Vector = NDArray[Any]
Rows = Sequence[Vector]
Matrix = NDArray[np.float64]
CHUNK = 1 << 15  # columns that are converted to float64 at a time
SORTED = 1 << 12  # columns that are sorted at a time, in a core's cache
SMOOTHING = 1e-6  # nu of RFA: the least distance that a weight is divided by
WEISZFELD_STEPS = 100  # at most
CONVERGED = 1e-6  # relative to the median distance: a smaller step is the last


class Rule(Protocol):
    """One way to combine the rows."""

    @property
    def recalls(self) -> bool:
        """Whether the result depends on the centre."""

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Return the combination, in the rows' type."""


@dataclass(frozen=True)
class Mean:
    """The mean. One row moves it as far as it likes."""

    recalls: ClassVar[bool] = False

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Add the rows up, exactly, and divide."""
        exact = ExactSum(rows[0].size, rows[0].dtype)
        for row in rows:
            exact.add(row)
        return exact.mean(len(rows))


@dataclass(frozen=True)
class Median:
    """The median of each number.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
    """

    recalls: ClassVar[bool] = False

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Return the median of each column."""
        return _middle(rows, (len(rows) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of each number without the largest and the smallest ceil(trim n).

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
    """

    trim: float
    recalls: ClassVar[bool] = False

    def cut(self, n: int) -> int:
        """Return how many numbers are left out at each end: as many hostile rows are withstood."""
        return min(math.ceil(self.trim * n), (n - 1) // 2)

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Sort each column, and take the mean of its middle."""
        return _middle(rows, self.cut(len(rows)))


@dataclass(frozen=True)
class MultiKrum:
    """The mean of the n - f rows whose closest n - f - 2 others are closest.

    Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017. It needs
    n >= 2f + 3. With m = n - f as here; the paper leaves m open.
    """

    f: int
    recalls: ClassVar[bool] = False

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Score every row by its distances, and take the mean of the best; of equal ones, the first."""
        n = len(rows)
        distances = square_distances(rows)
        np.fill_diagonal(distances, np.inf)  # a row is not its own neighbour
        closest = np.sort(distances, axis=1)[:, : max(n - self.f - 2, 1)]
        with np.errstate(over="ignore"):  # an infinite score is a bad one
            scores = closest.sum(axis=1)
        best = np.sort(np.argsort(scores, kind="stable")[: max(n - self.f, 1)])
        weights = np.zeros(n)
        weights[best] = 1 / len(best)
        return _combination(weights, rows).astype(rows[0].dtype)


@dataclass(frozen=True)
class GeometricMedian:
    """RFA: the point whose distances to the rows have the smallest sum, by the smoothed Weiszfeld algorithm.

    Pillutla et al., Robust Aggregation for Federated Learning, IEEE Transactions on Signal Processing 2022 (arXiv
    2019). The start is the median of each number, not the mean: a few steps from a mean that one row has moved far
    away do not return. Steps are taken until they no longer matter; the paper takes three.
    """

    recalls: ClassVar[bool] = False

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Move to the mean weighted by 1 / max(nu, distance), again and again."""
        v = Median()(rows).astype(np.float64)
        for _ in range(WEISZFELD_STEPS):
            distances = _distances(rows, v)
            weights = 1 / np.maximum(distances, SMOOTHING)
            before, v = v, _combination(weights / weights.sum(), rows)
            if _length(v - before) <= CONVERGED * np.median(distances):
                break
        return v.astype(rows[0].dtype)


@dataclass(frozen=True)
class CenteredClipping:
    """The centre plus the mean of the differences from it, each no longer than the radius tau.

    Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021, with one step (l = 1) a
    round. The centre is the result of the round before, and 0 in the first. The paper's tau is a constant that must be
    tuned; a radius of 0 takes the median of the rows' distances from the centre, which the hostile cannot move far.
    """

    radius: float = 0.0
    recalls: ClassVar[bool] = True

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Clip the differences from the centre, and add their mean to it."""
        n = len(rows)
        v = np.zeros(rows[0].size) if centre is None else centre.astype(np.float64)
        distances = _distances(rows, v)
        radius = self.radius or float(np.median(distances))
        factors = np.minimum(1, radius / np.maximum(distances, np.finfo(np.float64).tiny))
        # v + 1/n sum of c_i (x_i - v) = (1 - mean(c)) v + sum of c_i/n x_i
        moved = (1 - factors.mean()) * v + _combination(factors / n, rows)
        return np.asarray(moved, rows[0].dtype)


@dataclass(frozen=True)
class NearestNeighborMixing:
    """NNM: before a rule, every row becomes the mean of the n - f rows closest to it, itself included.

    Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023.
    """

    f: int
    rule: Rule

    @property
    def recalls(self) -> bool:
        """Whether the rule after it does."""
        return self.rule.recalls

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Mix, then combine."""
        return self.rule(self.mixed(rows), centre)

    def mixed(self, rows: Rows) -> list[Vector]:
        """Return the mixed rows."""
        n = len(rows)
        kept = max(n - self.f, 1)
        nearest = np.argsort(square_distances(rows), axis=1, kind="stable")[:, :kept]
        weights = np.zeros((n, n))
        np.put_along_axis(weights, nearest, 1 / kept, axis=1)
        with threadpool_limits(1):  # equal bits whatever else the machine does
            parts = [(weights @ part).astype(rows[0].dtype) for part in _parts(rows)]
        return list(np.concatenate(parts, axis=1))


def _middle(rows: Rows, cut: int) -> Vector:
    """Return the mean of each column without its `cut` largest and smallest numbers, a few columns at a time."""
    middle = np.empty_like(rows[0])
    for start in range(0, rows[0].size, SORTED):
        columns = np.stack([row[start : start + SORTED] for row in rows], axis=1)
        columns.sort(axis=1)  # a column's numbers lie side by side: several times as fast
        kept = np.ascontiguousarray(columns[:, cut : len(rows) - cut].T)
        middle[start : start + SORTED] = kept.mean(axis=0)
    return middle


def square_distances(rows: Rows) -> Matrix:
    """Return the square distances between all rows, from differences: far rows do not blur near ones."""
    from scipy.spatial.distance import pdist, squareform  # slow to import

    total = np.zeros(len(rows) * (len(rows) - 1) // 2)
    for part in _parts(rows):
        total += pdist(part, "sqeuclidean")
    return np.asarray(squareform(total), np.float64)


def _parts(rows: Rows) -> Iterator[Matrix]:
    """Yield the columns in float64, some at a time."""
    for start in range(0, rows[0].size, CHUNK):
        yield np.stack([row[start : start + CHUNK] for row in rows]).astype(np.float64)


def _distances(rows: Rows, v: Matrix) -> Matrix:
    """Return every row's distance from a point."""
    return np.array([_length(row - v) for row in rows])


def _length(vector: Matrix) -> float:
    return math.sqrt(np.einsum("i,i->", vector, vector))  # one thread, unlike a product of BLAS


def _combination(weights: Matrix, rows: Rows) -> Matrix:
    """Return the weighted sum of the rows, in float64."""
    return np.concatenate([np.einsum("i,ij->j", weights, part) for part in _parts(rows)])
