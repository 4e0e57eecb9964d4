"""Epsilon: equal to the exact one where that is known, and never below what an attack achieves."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from fedapp.privacy import accounting
from fedapp.privacy.accounting import epsilon
from tests.support.private import CLIP, config_of, counted


def exact_epsilon(deviation: float, distance: float, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism as such (Balle and Wang, 2018, theorem 8)."""

    def excess(e: float) -> float:
        a, b = distance / (2 * deviation), e * deviation / distance
        return float(norm.cdf(a - b) - math.exp(e) * norm.cdf(-a - b)) - delta

    return float(brentq(excess, 0, 500))


@pytest.mark.parametrize("z", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("releases", [1, 10, 100])
@pytest.mark.parametrize("where", ["server", "client"])
def test_epsilon_of_all_clients_is_the_gaussians(z: float, releases: int, where: str) -> None:
    spent = counted(
        config_of(clients_per_round=8, dp__noise_multiplier=z, dp__where=where)
    ).spent(releases)  # fmt: skip
    # k releases with deviation z clip, of what moves by 2 clip, are one of sqrt(k) times the distance.
    exact = exact_epsilon(z * CLIP, 2 * CLIP * math.sqrt(releases), 1e-5)
    assert spent == pytest.approx(exact, rel=1e-6)
    # Rényi's curve a/(2 sigma^2), turned into epsilon as Canonne, Kamath and Steinke do, is a bound.
    a = np.linspace(1.01, 400, 100_000)
    curve = releases * a / (2 * (z / 2) ** 2)
    best = (curve + np.log1p(-1 / a) - (math.log(1e-5) + np.log(a)) / (a - 1)).min()
    assert 0.6 * best < spent <= best


@pytest.mark.parametrize(("sample", "population"), [(5, 20), (50, 500), (100, 10_000)])
@pytest.mark.parametrize("z", [1.0, 4.0])
def test_epsilon_of_a_sample_is_no_less_than_an_attack_achieves(
    sample: int, population: int, z: float
) -> None:
    """All others send 0; whether one of them sends clip or -clip is told apart by the sum's density."""
    config = config_of(num_clients=population, clients_per_round=sample, dp__noise_multiplier=z)
    spent = counted(config).spent(1)
    q, grid = sample / population, np.linspace(-1 - 9 * z, 1 + 9 * z, 200_001)

    def density(sign: int) -> NDArray[Any]:
        return np.asarray((1 - q) * norm.pdf(grid, 0, z) + q * norm.pdf(grid, sign, z))

    over = np.maximum(density(1) - math.exp(spent) * density(-1), 0)
    assert over.sum() * (grid[1] - grid[0]) <= 1e-5
    for releases in (1, 10):
        assert counted(config).spent(releases) < epsilon(z / 2, 1e-5, releases)


def losses_of_an_attack(
    z: float, q: float, roles: Sequence[bool], size: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Return the privacy losses of many runs in which all but one client send the same vector of length clip.

    In each round, the others send what the one's replacement sends (`True`), or what the one itself would send: then it is
    the replacement that stands out. It is 2 clip away, in units of which the noise is z/2, if it is drawn at all.
    """
    deviation = z / 2
    total = np.zeros(size)
    for stands_out in roles:
        x = deviation * rng.normal(size=size)
        if stands_out:
            x += rng.random(size) < q
        ratio = np.log1p(q * np.expm1((x - 0.5) / deviation**2))
        total += ratio if stands_out else -ratio
    return total


@pytest.mark.parametrize("roles", ["the same", "the other", "alternating"])
@pytest.mark.parametrize(
    ("z", "sample", "population", "rounds"), [(4.0, 50, 500, 100), (1.0, 5, 20, 10)]
)
def test_epsilon_of_many_samples_is_no_less_than_an_attack_achieves(
    z: float, sample: int, population: int, rounds: int, roles: str
) -> None:
    """Monte Carlo, at a delta that is met often enough; the bound is close to the worst of the three."""
    delta, size = 0.01, 40_000
    parts = {"the same": [True], "the other": [False], "alternating": [True, False]}[roles]
    rng = np.random.default_rng(0)
    losses = losses_of_an_attack(
        z, sample / population, (parts * rounds)[:rounds], size, rng
    )  # fmt: skip
    bound = epsilon(z / 2, delta, rounds, sample, population)

    def achieved(eps: float) -> float:
        return float(np.maximum(-np.expm1(eps - losses), 0).mean())

    sure = 5 * math.sqrt(delta / size)
    assert achieved(bound) <= delta + sure
    if roles == "the same":
        assert achieved(0.75 * bound) > delta + sure, "three quarters of it would be no bound"


def test_that_attack_shows_what_is_no_bound() -> None:
    """Accounting with the noise over clip, as for clients that are added or removed, is refuted by it."""
    losses = losses_of_an_attack(4.0, 0.1, [True] * 100, 40_000, np.random.default_rng(0))
    wrong = epsilon(4.0, 0.01, 100, 50, 500)
    assert np.maximum(-np.expm1(wrong - losses), 0).mean() > 0.02


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("multiplier", [0.5, 2.0, 10.0])
def test_the_loss_distribution_has_the_curve_of_one_sample(share: float, multiplier: float) -> None:
    """On the grid, and above it in between; for both orders of the neighbours."""
    one = accounting.loss_distribution(multiplier, share).to_dense_pmf()
    for e in np.linspace(0, 20 * one._discretization, 61):
        exact = float(accounting.sampled_deltas(multiplier, share, np.array([e]))[0])
        assert exact * (1 - 1e-9) - 1e-15 <= one.get_delta_for_epsilon(e) <= exact * 1.01 + 1e-9
        mirrored = 1 - math.exp(-e) * (1 - one.get_delta_for_epsilon(e))
        assert one.get_delta_for_epsilon(-e) == pytest.approx(mirrored, abs=1e-12)


def test_the_curve_of_one_sample_is_that_of_its_densities() -> None:
    q, sigma = 0.1, 2.0
    x = np.linspace(-40, 41, 400_001)
    drawn = (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, 1, sigma)
    for e in (0.0, 0.05, 0.3):
        direct = np.maximum(drawn - math.exp(e) * norm.pdf(x, 0, sigma), 0).sum() * (x[1] - x[0])
        assert accounting.sampled_deltas(sigma, q, np.array([e]))[0] == pytest.approx(direct, rel=1e-4)  # fmt: skip


def test_the_bounds_that_the_document_names() -> None:
    """A hundred rounds of 50 of 500 clients, z = 4: by Rényi's divergences, by losses, and by both."""
    assert accounting.by_renyi(2.0, 1e-5, 100, 50, 500) == pytest.approx(5.38, abs=0.005)
    assert accounting.by_losses(2.0, 1e-5, 100, 0.1) == pytest.approx(2.541, abs=0.001)
    assert epsilon(2.0, 1e-5, 100, 50, 500) == pytest.approx(2.541, abs=0.001)


@pytest.mark.parametrize(
    ("sample", "population", "z"), [(50, 500, 4.0), (3, 4, 1.0), (1, 900, 9.0)]
)
def test_epsilon_grows_from_round_to_round(sample: int, population: int, z: float) -> None:
    spent = [epsilon(z / 2, 1e-5, k, sample, population) for k in (0, 1, 2, 3, 5, 10, 99, 100, 101)]
    assert spent == sorted(spent)
    assert spent[-2] < spent[-1]


@pytest.mark.parametrize("multiplier", [0.0, 5e-324, 1e-300, 1e-3, 1e300])
def test_no_noise_and_extreme_noise_have_an_epsilon(multiplier: float) -> None:
    for delta in (1e-12, 1e-5, 0.9):
        for sample in (1, 10):
            assert epsilon(multiplier, delta, 3, sample, 10) >= 0
    assert epsilon(0.0, 1e-5, 1) == math.inf
    assert epsilon(1e300, 1e-5, 1) == 0


def test_sampling_nearly_all_costs_no_more_than_all() -> None:
    assert epsilon(0.5, 1e-5, 50, 19, 20) <= epsilon(0.5, 1e-5, 50)
