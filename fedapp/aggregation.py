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
from scipy.spatial.distance import pdist, squareform
from threadpoolctl import threadpool_limits

from fedapp.config import RunConfig
from fedapp.errors import ConfigError

Vector = NDArray[Any]
Rows = Sequence[Vector]
Matrix = NDArray[np.float64]
CHUNK = 1 << 15  # columns that are converted to float64 at a time
SMOOTHING = 1e-6  # nu of RFA: the least distance that a weight is divided by
WEISZFELD_STEPS = 100  # at most
CONVERGED = 1e-6  # of the median distance: a smaller step is the last
OFTEN = 0.01  # share of rounds with more hostile clients than assumed that a user is warned of


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
        """Add the rows up in their order, and divide."""
        total = rows[0].copy()
        for row in rows[1:]:
            total += row
        return np.asarray(total / len(rows))


def weighted_mean(rows: Rows, weights: Sequence[int]) -> Vector:
    """Return the mean with weights; shares of at most 1 cannot overflow."""
    total = sum(weights)
    mean = np.zeros_like(rows[0])
    for row, weight in zip(rows, weights, strict=True):
        mean += mean.dtype.type(weight / total) * row
    return mean


@dataclass(frozen=True)
class Median:
    """The median of each number.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
    """

    recalls: ClassVar[bool] = False

    def __call__(self, rows: Rows, centre: Vector | None = None) -> Vector:
        """Return the median of each column."""
        return np.asarray(np.median(np.stack(rows), axis=0), rows[0].dtype)


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
        n = len(rows)
        cut = self.cut(n)
        ordered = np.sort(np.stack(rows), axis=0)[cut : n - cut]
        return np.asarray(ordered.mean(axis=0), rows[0].dtype)


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


def square_distances(rows: Rows) -> Matrix:
    """Return the square distances between all rows, from differences: far rows do not blur near ones."""
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


# From a config to its rules.


def hostile_in_a_round(config: RunConfig) -> int:
    """Return f: how many of a round's clients are assumed to be hostile."""
    return _ceil(config.hostile * config.clients_per_round)


def rule_of(config: RunConfig) -> Rule:
    """Return the rule for updates; refuse one that cannot withstand what is assumed."""
    f, n = hostile_in_a_round(config), config.clients_per_round
    if (config.aggregation == "multi-krum" or config.mixing == "nnm") and not f:
        key = "aggregation" if config.aggregation == "multi-krum" else "mixing"
        raise ConfigError(
            f'{key} = "{config.model_dump()[key]}" needs to know how many clients may be hostile: set hostile to '
            "their share, for example 0.2."
        )
    if n < (least := least_updates(config)):
        raise ConfigError(
            f"hostile = {config.hostile:g} means {f} of {n} clients, and {_name(config)} withstands them among "
            f"{least} or more: set clients-per-round to at least that, or hostile lower."
        )
    rules: dict[str, Rule] = {
        "mean": Mean(),
        "median": Median(),
        "trimmed-mean": TrimmedMean(config.trim),
        "multi-krum": MultiKrum(f),
        "geometric-median": GeometricMedian(),
        "centered-clipping": CenteredClipping(config.clip_radius),
    }
    rule = rules[config.aggregation]
    if isinstance(rule, TrimmedMean) and rule.cut(n) < f:
        raise ConfigError(
            f"trim = {config.trim:g} leaves out {rule.cut(n)} of {n} clients at each end and would protect nobody "
            f"from the {f} of hostile = {config.hostile:g}: set trim to at least {config.hostile:g}."
        )
    return NearestNeighborMixing(f, rule) if config.mixing == "nnm" else rule


def buffer_rule_of(config: RunConfig) -> Rule:
    """Return the rule for the model's statistics, which have no length that a limit could be set to."""
    if config.aggregation == "trimmed-mean":
        return TrimmedMean(config.trim)
    robust = config.aggregation != "mean" or config.mixing != "none" or config.max_update_norm
    return Median() if robust else Mean()


def least_updates(config: RunConfig) -> int:
    """Return how many updates a round needs so that the rule withstands those that are assumed to be hostile."""
    f = hostile_in_a_round(config)
    if not f or (config.aggregation == "mean" and config.mixing == "none"):
        return 1
    return 2 * f + (3 if config.aggregation == "multi-krum" else 1)


def advice(config: RunConfig) -> list[str]:
    """Return what a user should know of what the rule withstands."""
    n, total = config.clients_per_round, config.num_clients
    said = []
    if config.aggregation == "trimmed-mean":
        cut = TrimmedMean(config.trim).cut(n)
        said.append(
            f"The trimmed mean with trim = {config.trim:g} withstands {cut} hostile of {n} clients in a round, and "
            "protects nobody from more: trim must be at least the share of hostile clients"
        )
    if not config.hostile:
        return said
    if config.aggregation == "mean" and config.mixing == "none":
        said.append(
            f'aggregation = "mean" withstands no hostile client, and hostile = {config.hostile:g} changes nothing: '
            "choose another aggregation"
        )
        return said
    f, hostile = hostile_in_a_round(config), _ceil(config.hostile * total)
    if (often := _share_of_cohorts(total, hostile, n, f)) >= OFTEN:
        said.append(
            f"With {hostile} of {total} clients hostile, {100 * often:.0f} % of rounds of {n} clients hold more than "
            f"the {f} that are assumed: set hostile or clients-per-round higher"
        )
    return said


def _share_of_cohorts(total: int, hostile: int, n: int, f: int) -> float:
    """Return how likely n clients, drawn of `total`, hold more than f hostile ones."""
    ways = math.comb(total, n)
    more = range(f + 1, min(hostile, n) + 1)
    return sum(math.comb(hostile, k) * math.comb(total - hostile, n - k) for k in more) / ways


def _ceil(count: float) -> int:
    """Round up, but for what is a rounding error: 0.07 of 100 is 7."""
    return math.ceil(count - 1e-9)


def _name(config: RunConfig) -> str:
    mixed = " after mixing" if config.mixing != "none" else ""
    return f"the {config.aggregation}{mixed}"
