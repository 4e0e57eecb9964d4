"""QSGD and the affine quantizer against their definitions."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.compression import make_compressor
from fedapp.errors import ConfigError
from tests.support.vectors import (
    PROPERTY,
    SEEDS,
    Vector,
    gaussian,
    generator,
    quantized,
    same_bits,
    step_of,
    through,
    ulps,
    unit_levels,
    vectors,
)

# QSGD, as it is defined: Q_j(v) = |v| sign(v_j) xi_j, xi_j one of the two levels around |v_j|/|v|.


@PROPERTY
@given(
    vectors,
    st.sampled_from([1, 2, 3, 7, 16, 100, 1024, 32767]),
    st.sampled_from(["l2", "max"]),
    st.sampled_from([0, 1, 7, 64, 5000]),
    SEEDS,
)
def test_qsgd_rounds_to_one_of_the_two_levels_around(
    v: Vector, levels: int, norm: str, bucket: int, seed: int
) -> None:
    v = np.where(np.abs(v) < 1e-35, np.float32(0), v)  # where float32 has its full precision
    out = through(make_compressor("qsgd", levels=levels, norm=norm, bucket=bucket), v, seed)
    width, order = bucket or max(v.size, 1), 2 if norm == "l2" else np.inf
    for start in range(0, v.size, width):
        piece = v[start : start + width]
        size = float(np.linalg.norm(piece.astype(np.float64), order))
        got = out[start : start + piece.size].astype(np.float64)
        assert (got * piece >= 0).all()  # the sign, or 0
        exact, found = unit_levels(piece, levels, size), unit_levels(got, levels, size)
        tolerance = levels * 2.0**-20
        assert (np.abs(found - np.rint(found)) <= tolerance).all()  # a multiple of 1/s
        assert (np.abs(found - exact) < 1 + tolerance).all()  # and one of the two next to it
        assert (got[piece == 0] == 0).all()


@pytest.mark.parametrize(
    ("v", "options"),
    [
        ([3, 4], {"levels": 5}),
        ([-3, 4], {"levels": 5}),
        ([-3, 0, -4, 0], {"levels": 10}),
        ([1, 2, -2, 4], {"levels": 5}),
        ([0, 0, -7], {"levels": 1}),
        ([1, -2, 4], {"levels": 4, "norm": "max"}),
        ([3, 4, -6, 8, 9], {"levels": 5, "bucket": 2}),
        ([1, 4, -6, 8, 0, 0], {"levels": 4, "norm": "max", "bucket": 2}),
    ],
)
def test_qsgd_returns_a_vector_that_lies_on_its_levels(
    v: list[float], options: dict[str, Any]
) -> None:
    exact = np.array(v, np.float32)
    compressor = make_compressor("qsgd", **options)
    for seed in range(50):
        np.testing.assert_allclose(through(compressor, exact, seed), exact, rtol=1e-6)


@pytest.mark.parametrize("levels", [1, 2, 5, 16, 100, 1000, 32767])
def test_qsgd_leaves_nothing_to_chance_on_its_levels(levels: int) -> None:
    v = np.arange(-levels, levels + 1).astype(np.float32)
    out = through(make_compressor("qsgd", levels=levels, norm="max"), v)
    np.testing.assert_array_equal(np.rint(out), v)


def test_qsgd_rounds_up_as_often_as_it_should() -> None:
    """|v| = 5 and s = 2: 3 is at level 1.2, -4 at level 1.6, and a level is 2.5."""
    v, compressor = np.array([3, -4], np.float32), make_compressor("qsgd", levels=2)
    rng = generator()
    out = np.stack([quantized(compressor, v, rng) for _ in range(4000)])
    assert set(out[:, 0]) == {2.5, 5.0}
    assert set(out[:, 1]) == {-2.5, -5.0}
    error = 5 * math.sqrt(0.25 / 4000)
    assert np.mean(out[:, 0] == 5.0) == pytest.approx(0.2, abs=error)
    assert np.mean(out[:, 1] == -5.0) == pytest.approx(0.6, abs=error)


# The affine quantizer.


@PROPERTY
@given(vectors, st.integers(2, 16), st.sampled_from(["stochastic", "nearest"]), SEEDS)
def test_uniform_leaves_zero_at_zero(v: Vector, bits: int, rounding: str, seed: int) -> None:
    v = np.append(v, np.float32(0))
    out = through(make_compressor("uniform", bits=bits, rounding=rounding), v, seed)
    assert (out[v == 0] == 0).all()


@PROPERTY
@given(vectors, st.integers(1, 16), SEEDS)
def test_uniform_is_off_by_less_than_a_step(v: Vector, bits: int, seed: int) -> None:
    out = through(make_compressor("uniform", bits=bits), v, seed)
    step = step_of(v, bits)
    assert (np.abs(out - v.astype(np.float64)) <= step * (1 + 1e-3) + ulps(v) + ulps(out)).all()


@PROPERTY
@given(vectors, st.integers(1, 16))
def test_uniform_to_the_nearest_is_off_by_half_a_step(v: Vector, bits: int) -> None:
    out = through(make_compressor("uniform", bits=bits, rounding="nearest"), v)
    step = step_of(v, bits)
    assert (np.abs(out - v.astype(np.float64)) <= step * 0.501 + ulps(v) + ulps(out)).all()


@PROPERTY
@given(vectors, st.integers(1, 16), SEEDS)
def test_uniform_decodes_to_at_most_as_many_values_as_it_has_levels(
    v: Vector, bits: int, seed: int
) -> None:
    out = through(make_compressor("uniform", bits=bits), v, seed)
    values = np.unique(out)
    assert len(values) <= 2**bits
    steps = np.diff(values.astype(np.float64)) / (step_of(v, bits) or 1)
    noise = 2 * ulps(values).max(initial=0) / (step_of(v, bits) or 1)
    assert (np.abs(steps - np.rint(steps)) <= 1e-3 + noise).all()


def test_uniform_by_hand() -> None:
    """Two bits, -1 to 1: the step is 1, and -1, 0 and 1 are levels. One bit: the two extremes."""
    v = np.array([-1, -0.4, 0, 0.4, 0.6, 1], np.float32)
    nearest = make_compressor("uniform", bits=2, rounding="nearest")
    np.testing.assert_array_equal(through(nearest, v), [-1, 0, 0, 0, 1, 1])
    nearest = make_compressor("uniform", bits=1, rounding="nearest")
    np.testing.assert_array_equal(through(nearest, v), [-1, -1, 1, 1, 1, 1])


@PROPERTY
@given(
    st.lists(vectors, min_size=1, max_size=5),
    st.integers(1, 16),
)
def test_uniform_has_a_scale_for_each_tensor(pieces: list[Vector], bits: int) -> None:
    sizes = tuple(piece.size for piece in pieces)
    together = make_compressor("uniform", bits=bits, rounding="nearest", tensors=sizes)
    alone = make_compressor("uniform", bits=bits, rounding="nearest")
    expected = np.concatenate([through(alone, piece) for piece in pieces])
    assert same_bits(through(together, np.concatenate(pieces)), expected)


def test_a_small_tensor_beside_a_large_one_needs_its_own_scale() -> None:
    v = np.concatenate([gaussian(100), np.float32(1e-6) * gaussian(50)])
    own = through(make_compressor("uniform", tensors=(100, 50)), v)
    shared = through(make_compressor("uniform"), v)
    assert np.abs(own - v)[100:].max() < 1e-7
    assert np.abs(shared - v)[100:].max() > 1e-4 or (shared[100:] == 0).all()


def test_zero_point_noise_shifts_each_piece_by_whole_steps() -> None:
    v, sizes, reach = gaussian(300), (200, 100), 3
    options: dict[str, Any] = {"bits": 6, "rounding": "nearest", "tensors": sizes}
    clean = through(make_compressor("uniform", **options), v)
    noisy = make_compressor("uniform", zero_point_noise=reach, **options)
    seen: set[tuple[int, ...]] = set()
    for seed in range(400):
        shift = (through(noisy, v, seed) - clean).astype(np.float64)
        shifts = []
        for piece, moved in ((v[:200], shift[:200]), (v[200:], shift[200:])):
            steps = moved / step_of(piece, 6)
            np.testing.assert_allclose(steps, np.rint(steps[0]), atol=1e-4)
            shifts.append(int(np.rint(steps[0])))
        seen.add(tuple(shifts))
    every = range(-reach, reach + 1)
    assert seen == {(first, second) for first in every for second in every}


@pytest.mark.parametrize("sizes", [(3, 4), (8,), (0,)])
def test_tensors_that_do_not_add_up_are_an_error(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        make_compressor("uniform", tensors=sizes).encode(gaussian(10), generator())
