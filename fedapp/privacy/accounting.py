"""Epsilon of Gaussian releases: upper bounds, of which the smallest counts.

A release adds Gaussian noise to something that moves by at most a certain distance when one client is replaced by any
other. Its `multiplier` is the noise's standard deviation over that distance. Three bounds are used:

- Without sampling, or ignoring it: exact. k releases with multipliers m_1, ..., m_k are one with the multiplier
  (sum of 1/m_i^2)^(-1/2), also if the multipliers are chosen along the way; its epsilon is in closed form (Balle and
  Wang, ICML 2018, theorem 8).
- Of a sample without replacement, by Rényi divergences: Flower's `RdpAccountant`.
- Of a sample without replacement, by the privacy loss distribution: see `loss_distribution`.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from numpy.typing import NDArray

from fedapp.errors import ConfigError

Numbers = NDArray[np.float64]
# Rényi orders for samples. Any choice gives a bound; Flower's own, of more orders, takes seven times as long.
ORDERS = (*map(float, range(2, 33)), 40.0, 48.0, 64.0)
CELLS = 2000  # cells of the grid on which one release's positive privacy losses lie
IMPOSSIBLE = 1e-20  # probability of larger losses, which count as infinite ones
ROUNDING = 1e-12  # share of delta that Fourier transforms may be off by
LEAST_DELTA = 1e-9  # below it, that would count
# Multipliers for which sampling is accounted for: below, losses are in the thousands; above, all costs next to nothing.
SAMPLED = (0.02, 1e6)


@lru_cache(maxsize=1024)
def epsilon(
    multiplier: float, delta: float, releases: int, sample: int = 1, population: int = 1
) -> float:
    """Return what `releases` releases cost, each of a cohort of `sample` clients of `population`."""
    if not releases:
        return 0.0
    if not multiplier:
        return math.inf
    bounds = [gaussian_epsilon([(multiplier, releases)], delta)]
    if sample < population and SAMPLED[0] <= multiplier <= SAMPLED[1]:
        bounds.append(by_renyi(multiplier, delta, releases, sample, population))
        if delta >= LEAST_DELTA:
            bounds.append(by_losses(multiplier, delta, releases, sample / population))
    return min(bounds)


def gaussian_epsilon(releases: Iterable[tuple[float, int]], delta: float) -> float:
    """Return the exact epsilon of unsampled releases: pairs of a multiplier and how often it was used."""
    pairs = list(releases)
    if not all(multiplier for multiplier, _ in pairs):
        return math.inf
    distance = math.hypot(*(math.sqrt(count) / multiplier for multiplier, count in pairs))
    if not distance < 1e100:
        return math.inf
    high = 1.0
    while gaussian_delta(distance, high) > delta:
        high *= 2
    low = 0.0
    while high - low > 1e-10 * high:  # `high` is always an upper bound
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(distance, middle) > delta else (low, middle)
    return high if gaussian_delta(distance, 0.0) > delta else 0.0


def gaussian_delta(distance: float, eps: float) -> float:
    """Return the exact delta of N(0, 1) and N(distance, 1) at eps."""
    return float(_gaussian_deltas(distance, np.array([eps]))[0])


def _gaussian_deltas(distance: float, eps: Numbers) -> Numbers:
    if not distance:
        return np.zeros_like(eps)
    from scipy.special import log_ndtr  # slow to import

    above = log_ndtr(distance / 2 - eps / distance)
    below = eps + log_ndtr(-distance / 2 - eps / distance)
    possible = above > -np.inf
    ratio = np.subtract(below, above, out=np.full_like(eps, -np.inf), where=possible)
    return np.asarray(np.exp(above) * -np.expm1(np.minimum(ratio, 0)))


def sampled_deltas(multiplier: float, share: float, eps: Numbers) -> Numbers:
    """Return delta of one release of a sample at each eps >= 0 (Balle, Barthe and Gaboardi, 2018, theorem 9).

    `share` q of the clients are drawn without replacement: delta(eps) = q delta'(eps'), where delta' is that of all
    clients and e^eps' - 1 = (e^eps - 1)/q.
    """
    # log(1 + (e^eps - 1)/q), which does not overflow
    inner = eps - math.log(share) + np.log1p(-(1 - share) * np.exp(-eps))
    return share * _gaussian_deltas(1 / multiplier, np.maximum(inner, 0))


@lru_cache(maxsize=8)
def loss_distribution(multiplier: float, share: float) -> Any:
    """Return the privacy loss distribution of one release of a sample.

    `sampled_deltas` holds for every pair of neighbours in both orders, since the one replaced and its replacement can
    change places. So the pair of distributions with this curve, and its mirror image for eps < 0, dominates each round, and
    its products dominate the composition of rounds (Zhu, Dong and Wang, AISTATS 2022). Neither of the two pairs by which
    Poisson samples are accounted for does: which of them is worse can change from round to round. The losses lie on a
    grid, by linear interpolation of the curve in e^eps, which only adds to it (Doroshenko et al., PETS 2022).
    """
    from dp_accounting.pld import pld_pmf

    top = 1.0
    while sampled_deltas(multiplier, share, np.array([top]))[0] > IMPOSSIBLE:
        top *= 2
    while sampled_deltas(multiplier, share, np.array([top / 1.1]))[0] <= IMPOSSIBLE:
        top /= 1.1
    gap = top / CELLS
    eps = gap * np.arange(CELLS + 1, dtype=np.float64)
    deltas = sampled_deltas(multiplier, share, eps)
    change = np.minimum(np.diff(deltas), 0)
    positive = np.append(
        np.maximum(change[1:] - change[:-1] * math.exp(gap), 0) / math.expm1(gap),
        change[-1] / math.expm1(-gap),
    )
    negative = positive * np.exp(-eps[1:])
    zero = max(1 - deltas[-1] - positive.sum() - negative.sum(), 0.0)
    losses = np.concatenate([negative[::-1], [zero], positive])
    return pld_pmf.create_pmf(
        dict(zip(range(-CELLS, CELLS + 1), losses, strict=True)), gap, float(deltas[-1]), True
    )


def by_losses(multiplier: float, delta: float, releases: int, share: float) -> float:
    """Return epsilon by composing the privacy loss distribution of one release."""
    composed = loss_distribution(multiplier, share).self_compose(releases)
    return float(composed.get_epsilon_for_delta(delta - ROUNDING))


def by_renyi(multiplier: float, delta: float, releases: int, sample: int, population: int) -> float:
    """Return epsilon by Renyi divergences, as Flower's accountant bounds it."""
    relation, sampling = NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT
    accountant = accountant_type()(PrivacyConfig(delta, population, relation, sampling), ORDERS)
    accountant.compose(GaussianPrivacyEvent(multiplier, sample, population), releases)
    return float(accountant.get_epsilon(delta))


def accountant_type() -> Any:
    """Return Flower's accountant, or say what to install."""
    try:
        import dp_accounting  # noqa: F401
        from flwr.serverapp import RdpAccountant
    except ImportError:
        raise ConfigError(
            "dp.clip needs Flower's accountant: pip install 'fedapp[privacy]' (in a clone: pip install -e "
            "'.[privacy]'), or set it to 0."
        ) from None
    return RdpAccountant
