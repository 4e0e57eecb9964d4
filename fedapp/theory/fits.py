"""Fits of power laws and linear rates, and comparisons of values that may not be finite."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def slope(x: Sequence[float] | Values, y: Sequence[float] | Values) -> float:
    """Return the exponent p of the power law y ~ x^p; not a number if y is not positive and finite."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if not (np.isfinite(y).all() and (y > 0).all()):
        return float("nan")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def linear_rate(values: Values, floor: float) -> tuple[float, float]:
    """Return the factor by which values shrink a round until `floor`, and the R^2 of that fit."""
    above = values[: int(np.argmax(values < floor)) or len(values)]
    if not (np.isfinite(above).all() and (above > 0).all() and len(above) > 5):
        return float("nan"), 0.0
    k, logs = np.arange(len(above)), np.log(above)
    fit = np.polyfit(k, logs, 1)
    residual = logs - np.polyval(fit, k)
    return float(np.exp(fit[0])), float(1 - residual.var() / logs.var())


def rounds_of(values: Values) -> Values:
    """Return 1, 2, ..., one for each value."""
    return np.arange(1.0, len(values) + 1)


def spread(values: Iterable[float], form: str = ".2f") -> str:
    """Write the range of some values."""
    values = list(values)
    low, high = (f"{v:{form}}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def above(values: Iterable[float], limit: float) -> bool:
    """Tell whether all values are above a limit, and finite: to diverge is not to stall."""
    return all(np.isfinite(value) and value > limit for value in values)


def rising(values: Sequence[float], factor: float = 1.0) -> bool:
    """Tell whether values are finite, and each larger than the one before, times a factor."""
    return bool(np.isfinite(values).all()) and all(b > factor * a for a, b in pairwise(values))
