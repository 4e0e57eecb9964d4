"""Vectors on grids whose steps are powers of two: rounding by its definition, and bytes that give every bit back."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedapp.compression import grid
from fedapp.compression.payload import PayloadError, seal

DTYPES = st.sampled_from([np.float32, np.float64])
SCALES = st.sampled_from([1e-30, 1e-6, 1.0, 1e3, 1e20])


def vector(seed: int, dtype: Any, scale: float, size: int = 60) -> NDArray[Any]:
    """Return numbers of very different lengths, some of them zero."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal(size) * np.exp(3 * rng.standard_normal(size)) * scale
    numbers[rng.random(size) < 0.1] = -0.0
    return numbers.astype(dtype)


@pytest.mark.parametrize(
    ("size", "exponent"),
    [(1.0, 0), (1.999, 0), (2.0, 1), (0.75, -1), (5e-324, -1074), (0.0, None), (math.inf, None)],
)
def test_the_exponent_is_the_floor_of_the_logarithm(size: float, exponent: int | None) -> None:
    assert grid.exponent_of(size) == exponent


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_the_root_mean_square_neither_overflows_nor_underflows(scale: float) -> None:
    assert math.isclose(grid.rms(scale * np.array([3.0, 0.0, 4.0, 0.0])), 2.5 * scale)
    assert grid.rms(np.zeros(3)) == 0


@given(st.integers(0, 10**6), DTYPES, SCALES, st.integers(-60, 20))
@settings(max_examples=60)
def test_rounding_goes_to_the_nearest_multiple(
    seed: int, dtype: Any, scale: float, finer: int
) -> None:
    x = vector(seed, dtype, scale)
    exponent = (grid.exponent_of(grid.rms(x)) or 0) + finer
    rounded = grid.round_to(x, exponent)
    assert rounded.vector.dtype == dtype
    step = 2.0**exponent
    error = np.abs(rounded.vector.astype(np.float64) - x.astype(np.float64))
    assert (error <= step / 2).all()
    if rounded.exponent is not None:
        whole = np.ldexp(rounded.vector.astype(np.float64), -exponent)
        assert (whole == np.rint(whole)).all()


@given(st.integers(0, 10**6), DTYPES, SCALES, st.integers(-60, 4), st.integers(-60, 4))
@settings(max_examples=80)
def test_whole_or_as_a_difference_every_bit_arrives(
    seed: int, dtype: Any, scale: float, one: int, two: int
) -> None:
    x, y = vector(seed, dtype, scale), vector(seed + 1, dtype, scale)
    start = grid.exponent_of(grid.rms(x)) or 0
    old, new = grid.round_to(x, start + one), grid.round_to(x + y, start + two)
    for base in (None, old):
        known = base.vector if base else None
        found = grid.decode(grid.encode(new, base), new.vector.size, known)
        assert found.dtype == dtype and found.tobytes() == new.vector.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_and_numbers_that_no_grid_holds_arrive(dtype: Any) -> None:
    limits = np.finfo(dtype)
    zeros = grid.round_to(np.zeros(9, dtype), 5)
    odd = [[limits.max] * 9, [limits.smallest_subnormal] * 9, [np.nan, np.inf, -np.inf] * 3]
    odd += [[limits.max, limits.smallest_subnormal, 0] * 3]
    for numbers in odd:
        x = np.array(numbers, dtype)
        for finer in (-5, 0, 5):
            new = grid.round_to(x, (grid.exponent_of(grid.rms(x)) or 0) + finer)
            for base in (None, zeros, new):
                known = base.vector if base else None
                payload = grid.encode(new, base)
                assert grid.decode(payload, 9, known).tobytes() == new.vector.tobytes()
    assert len(grid.encode(zeros, zeros)) < 30
    np.testing.assert_array_equal(grid.decode(grid.encode(zeros), 9), 0)


def test_bits_are_close_to_the_entropy() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(50_000).astype(np.float32)
    old = grid.round_to(x, -8)
    new = grid.round_to(x + rng.normal(0, 2.0**-7, x.size).astype(np.float32), -8)
    whole = np.rint((new.vector - old.vector) * 256)
    p = np.unique(whole, return_counts=True)[1] / x.size
    entropy = -(p * np.log2(p)).sum()
    assert 8 * len(grid.encode(new, old)) / x.size < 1.02 * entropy


def coded() -> tuple[bytes, NDArray[Any]]:
    x = vector(3, np.float32, 1.0, size=200)
    old = grid.round_to(x, -6)
    return grid.encode(grid.round_to(x + 0.1, -6), old), old.vector


def test_a_damaged_payload_is_refused() -> None:
    payload, base = coded()
    grid.decode(payload, 200, base)
    for place in range(len(payload)):
        wrong = bytearray(payload)
        wrong[place] ^= 16
        for damaged in (bytes(wrong), payload[:place]):
            with pytest.raises(PayloadError):
                grid.decode(damaged, 200, base)
    with pytest.raises(PayloadError, match="200 numbers instead of 201"):
        grid.decode(payload, 201, base)


def test_a_difference_to_something_else_is_refused() -> None:
    payload, base = coded()
    with pytest.raises(PayloadError, match="nothing to add it to"):
        grid.decode(payload, 200)
    others = (base[:-1], base.astype(np.float64), base + np.float32(2**-9), base * np.float32(1e30))
    for other in others:
        with pytest.raises(PayloadError, match="difference to another vector"):
            grid.decode(payload, 200, other)


@given(st.binary(max_size=80), st.integers(0, 3), st.integers(-1100, 2100), st.integers(0, 130))
@settings(max_examples=300)
def test_a_body_that_nobody_wrote_is_refused_or_makes_a_finite_vector(
    rest: bytes, how: int, exponent: int, width: int
) -> None:
    head = np.array((how, 0, exponent, width), grid._HEAD).tobytes()
    try:
        found = grid.decode(seal(grid.CODEC, 20, head + rest, b""), 20, np.zeros(20, np.float32))
    except PayloadError:
        return
    assert found.shape == (20,)
    assert how == grid.AS_IT_IS or np.isfinite(found).all()
