"""Clipping and Gaussian noise."""

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.supercore.differential_privacy import compute_stdv
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.privacy.accounting import Numbers
from fedapp.randomness import generator

Normals = Callable[[int], Numbers]  # draws N standard normal numbers


def system_normals(size: int) -> Numbers:
    """Draw standard normal numbers from the operating system's entropy; all are finite.

    52 bits give a probability (k + 1/2) 2^-53 below one half, which is exact, and one bit the sign. A probability near
    1 would be rounded to 1, and its quantile is infinite.
    """
    from scipy.special import ndtri  # slow to import

    bits = np.frombuffer(os.urandom(8 * size), np.uint64)
    lower = ndtri(((bits >> np.uint64(12)) + 0.5) * 2.0**-53)
    return np.asarray(np.where(bits & np.uint64(1), lower, -lower))


def clipped(vector: NDArray[Any], clip: float) -> Numbers:
    """Return a vector, shortened to the length `clip` if it is longer; one of no finite length is 0."""
    whole = vector.astype(np.float64)
    length = float(np.linalg.norm(whole))
    if not math.isfinite(length):
        return np.zeros_like(whole)
    return whole * (clip / length) if length > clip else whole


def clipped_mean(vectors: Iterable[NDArray[Any]], clip: float, count: int) -> Numbers:
    """Return the sum of clipped vectors over `count`, whether there are `count` of them or fewer."""
    return np.asarray(sum(clipped(vector, clip) for vector in vectors)) / count


def noised(vector: Numbers, deviation: float, normals: Normals) -> Numbers:
    """Add Gaussian noise of a standard deviation to every number."""
    return vector + deviation * normals(vector.size)


def noise_source(config: RunConfig, round_: int, client: int = 0) -> Normals:
    """Return where a release's noise comes from."""
    if config.dp.noise_from == "system":
        return system_normals
    return generator(config.seed, "privacy", round_, client).standard_normal


def private_update(vector: NDArray[Any], config: RunConfig, round_: int, client: int) -> Numbers:
    """Return what a client sends in place of its update: clipped, with noise."""
    dp = config.dp
    deviation = compute_stdv(dp.noise_multiplier, dp.clip, 1)
    return noised(clipped(vector, dp.clip), deviation, noise_source(config, round_, client))
