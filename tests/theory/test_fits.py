"""The fits that the theorems are judged by, with values known by hand."""

import math

import numpy as np
import pytest

from fedapp.theory.fits import above, linear_rate, rising, rounds_of, slope, spread


@pytest.mark.parametrize("p", [-1.0, -0.5, 2.0])
def test_fits_find_the_exponent_of_a_power_law(p: float) -> None:
    x = np.array([1.0, 3.0, 10.0, 40.0])
    assert slope(x, 7 * x**p) == pytest.approx(p)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_fits_of_what_is_not_positive_and_finite_are_not_numbers(bad: float) -> None:
    assert math.isnan(slope([1.0, 2.0, 3.0], [1.0, bad, 2.0]))
    rate, fit = linear_rate(np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, bad, 1.0]), -math.inf)
    assert math.isnan(rate)
    assert fit == 0


def test_fits_of_linear_rates_stop_at_the_floor() -> None:
    """A factor of 0.5 for ten rounds, then noise, which is below the floor."""
    values = np.append(0.5 ** np.arange(10), [1e-9, 3e-9, 1e-9])
    rate, fit = linear_rate(values, 1e-4)
    assert rate == pytest.approx(0.5)
    assert fit == pytest.approx(1)


def test_fits_say_how_good_they_are() -> None:
    """Logs 0, 1, 0, 1, ...: a slope of 6/70 a round, and R^2 = 1/21 by hand (eight points)."""
    rate, fit = linear_rate(np.exp([0.0, 1, 0, 1, 0, 1, 0, 1]), 1e-9)
    assert rate == pytest.approx(math.exp(1 / 21))
    assert fit == pytest.approx(1 / 21)


def test_fits_need_six_values() -> None:
    assert math.isnan(linear_rate(0.5 ** np.arange(5.0), 1e-9)[0])
    assert linear_rate(0.5 ** np.arange(6.0), 1e-9)[0] == pytest.approx(0.5)
    assert linear_rate(np.append(0.5 ** np.arange(6.0), 0), 0.5**5)[0] == pytest.approx(0.5)


def test_fits_count_rounds_from_one() -> None:
    np.testing.assert_array_equal(rounds_of(np.zeros(3)), [1, 2, 3])


def test_fits_write_ranges() -> None:
    assert spread([3.0, 1.0, 2.0]) == "1.00 to 3.00"
    assert spread([1.001, 1.002]) == "1.00"


@pytest.mark.parametrize(
    ("values", "factor", "expected"),
    [
        ([1.0, 2.0, 3.0], 1.0, True),
        ([1.0, 1.0], 1.0, False),
        ([1.0, 3.0, 2.0], 1.0, False),
        ([1.0, 2.0], 2.0, False),
        ([1.0, 2.1], 2.0, True),
        ([1.0, math.inf], 1.0, False),
        ([math.nan, 1.0], 1.0, False),
    ],
)
def test_fits_tell_what_rises(values: list[float], factor: float, expected: bool) -> None:
    assert rising(values, factor) is expected


def test_fits_ask_for_no_more_than_to_rise() -> None:
    assert rising([1.0, 1.1])


def test_fits_do_not_call_it_above_to_diverge() -> None:
    assert above([1.0, 2.0], 0.5)
    assert not above([1.0, 0.5], 0.5)
    assert not above([1.0, math.inf], 0.5)
