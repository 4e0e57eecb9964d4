"""Compression: exact round trips, unbiased rounding, sizes near the entropy, and hostile payloads."""

import math
import tracemalloc
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedapp.compression import Compressor, PayloadError, integers, make_compressor
from fedapp.compression.cells import CHUNK, FINENESS
from fedapp.compression.integers import ANS, HUFFMAN, PLAIN, SPARSE
from fedapp.compression.payload import OVERHEAD, Reader, seal, varint
from fedapp.errors import ConfigError
from tests.support.compressors import COMPRESSORS, QSGD8, RANDK, UNIFORM4

Vector = NDArray[np.float32]
Integers = NDArray[np.int64]
Draw = Callable[[np.random.Generator], NDArray[Any]]

PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)
SEEDS = st.integers(0, 2**32 - 1)
BORDERS = (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5)  # sizes around the pieces that are coded

every_compressor = pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
any_compressor = st.sampled_from(COMPRESSORS)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def through(compressor: Compressor, v: NDArray[Any], seed: int = 0) -> Vector:
    return compressor.decode(compressor.encode(v, generator(seed)), v.size)


def same_bits(a: Vector, b: Vector) -> bool:
    return a.dtype == b.dtype == np.float32 and a.tobytes() == b.tobytes()


# Vectors of every kind: how a vector of some size is drawn, before it is scaled.

KINDS: dict[str, Callable[[np.random.Generator, int], NDArray[Any]]] = {
    "gaussian": lambda rng, n: rng.normal(size=n),
    "heavy-tailed": lambda rng, n: np.clip(rng.standard_cauchy(n), -1e6, 1e6) / 1e6,
    "zero": lambda rng, n: np.zeros(n),
    "negative zero": lambda rng, n: -np.zeros(n),
    "one non-zero": lambda rng, n: np.where(np.arange(n) == n // 2, rng.choice([-1, 1]), 0),
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "two-valued": lambda rng, n: rng.choice(rng.normal(size=2), n),
    "far from zero": lambda rng, n: 1 + 1e-6 * rng.random(n),
    "sparse": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.03),
}
NOT_SCALED: dict[str, Callable[[np.random.Generator, int], NDArray[Any]]] = {
    "denormal": lambda rng, n: rng.integers(-50, 50, n) * 2.0**-149,
    "mixed magnitudes": lambda rng, n: rng.choice([-1, 1], n) * 10 ** rng.uniform(-45, 30, n),
}


@st.composite
def drawn_vectors(draw: st.DrawFn) -> Vector:
    kind = draw(st.sampled_from([*KINDS, *NOT_SCALED]))
    size = draw(st.integers(0, 3000))
    rng = generator(draw(SEEDS))
    if kind in NOT_SCALED:
        return NOT_SCALED[kind](rng, size).astype(np.float32)
    scale = 10 ** draw(st.floats(-30, 30))
    return (scale / 10 * KINDS[kind](rng, size)).astype(np.float32)


vectors = drawn_vectors() | hnp.arrays(
    np.float32, st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


def gaussian(size: int, seed: int = 1) -> Vector:
    return generator(seed).normal(size=size).astype(np.float32)


def unit_levels(v: NDArray[Any], levels: int, norm: float) -> NDArray[np.float64]:
    """Return s |v_j| / |v|."""
    magnitude = np.abs(v.astype(np.float64))
    return levels * magnitude / norm if norm else magnitude


def step_of(v: Vector, bits: int) -> float:
    """Return the distance of two levels: one level is spared for 0, except with one bit."""
    return float((v.max().astype(np.float64) - v.min()) / max(2**bits - 2, 1)) if v.size else 0.0


def ulps(v: NDArray[Any]) -> NDArray[np.float64]:
    """Return a bound of what rounding to float32 changes."""
    magnitude: NDArray[np.float64] = np.abs(v).astype(np.float64)
    return 2.0**-23 * magnitude + 2.0**-149


# Round trips.


@PROPERTY
@given(any_compressor, vectors, SEEDS)
def test_decoding_returns_what_was_quantized(compressor: Compressor, v: Vector, seed: int) -> None:
    before = v.copy()
    payload = compressor.encode(v, generator(seed))
    out = compressor.decode(payload, v.size)
    assert same_bits(out, compressor.dequantize(*compressor.quantize(v, generator(seed))))
    assert out.shape == v.shape
    assert np.isfinite(out).all()
    assert same_bits(v, before)


@PROPERTY
@given(any_compressor, vectors, SEEDS)
def test_transmit_is_encode_and_decode(compressor: Compressor, v: Vector, seed: int) -> None:
    payload, sent = compressor.transmit(v, generator(seed))
    assert payload == compressor.encode(v, generator(seed))
    assert same_bits(sent, compressor.decode(payload, v.size))


@every_compressor
def test_round_trip_at_the_borders_of_chunks(compressor: Compressor) -> None:
    for size in (0, 1, 2, 3, *BORDERS):
        for kind in ("gaussian", "sparse", "constant"):
            v = KINDS[kind](generator(size), size).astype(np.float32)
            payload, sent = compressor.transmit(v, generator(size))
            assert same_bits(compressor.decode(payload, size), sent), (size, kind)


@PROPERTY
@given(vectors)
@example(np.array([0.0, -0.0, 2.0**-149, -(2.0**-149), 1e30], np.float32))
def test_none_is_bit_exact(v: Vector) -> None:
    assert same_bits(through(make_compressor("none"), v), v)


@PROPERTY
@given(vectors)
def test_float16_has_eleven_bits_and_never_overflows(v: Vector) -> None:
    out = through(make_compressor("float16"), v)
    exact = v.astype(np.float64)
    largest = np.abs(exact).max(initial=0.0)
    assert (np.abs(out - exact) <= 2.0**-11 * np.abs(exact) + 2.0**-39 * largest + 2.0**-149).all()


def test_float16_keeps_what_eleven_bits_can_hold() -> None:
    v = np.array([1, -2047, 0.5, 1.25, 0, 1024], np.float32)
    for exponent in (-100, -30, 0, 30, 80):
        scaled = np.ldexp(v, exponent)
        assert same_bits(through(make_compressor("float16"), scaled), scaled)


@PROPERTY
@given(vectors, st.floats(0.001, 1))
def test_topk_keeps_the_k_largest_unchanged(v: Vector, ratio: float) -> None:
    out = through(make_compressor("topk", ratio=ratio), v)
    k = min(v.size, math.ceil(ratio * v.size))
    largest = np.argsort(-np.abs(v), kind="stable")[:k]  # of equals the first
    expected = np.zeros_like(v)
    expected[largest] = v[largest]
    assert same_bits(out, expected)


@pytest.mark.parametrize("name", ["topk", "randk"])
@pytest.mark.parametrize(
    ("ratio", "size", "k"),
    [(0.1, 30, 3), (0.01, 1000, 10), (0.5, 3, 2), (1.0, 7, 7), (1e-9, 10, 1), (0.5, 0, 0)],
)
def test_a_sparsifier_keeps_k_numbers(name: str, ratio: float, size: int, k: int) -> None:
    out = through(make_compressor(name, ratio=ratio), np.arange(1, size + 1))
    assert np.count_nonzero(out) == k


@PROPERTY
@given(vectors, st.floats(0.01, 1), SEEDS)
def test_randk_keeps_k_numbers_times_d_over_k(v: Vector, ratio: float, seed: int) -> None:
    v = np.where(v == 0, np.float32(1), v)
    out = through(make_compressor("randk", ratio=ratio), v, seed)
    k = min(v.size, math.ceil(ratio * v.size))
    kept = out != 0
    if np.abs(v).min(initial=1) > 2.0**-149:
        assert np.count_nonzero(kept) == k
    exact = v[kept].astype(np.float64) * v.size / max(k, 1)
    assert (np.abs(out[kept] - exact) <= 2 * ulps(exact)).all()


@PROPERTY
@given(vectors, st.floats(0.01, 1), SEEDS)
def test_a_quantizer_on_the_kept_values_sees_only_those(v: Vector, ratio: float, seed: int) -> None:
    kept = through(make_compressor("topk", ratio=ratio), v) != 0
    k = min(v.size, math.ceil(ratio * v.size))
    if np.count_nonzero(kept) < k:  # zeros among the largest: which is not for this test to say
        return
    expected = np.zeros_like(v)
    expected[kept] = through(QSGD8, v[kept], seed)
    assert same_bits(through(make_compressor("topk", ratio=ratio, values=QSGD8), v, seed), expected)


@every_compressor
def test_other_inputs_are_taken_as_the_float32_vector_they_hold(compressor: Compressor) -> None:
    v = np.arange(-50, 50).astype(np.float32)
    payload = compressor.encode(v, generator())
    strided = np.zeros((100, 2), np.float32)
    strided[:, 1] = v
    frozen = v.copy()
    frozen.flags.writeable = False
    for other in (v.astype(np.float64), v.astype(np.int64), v.astype(">f4"), strided[:, 1], frozen):
        assert compressor.encode(other, generator()) == payload


@every_compressor
def test_a_decoded_vector_is_memory_of_its_own(compressor: Compressor) -> None:
    payload = bytearray(compressor.encode(gaussian(100), generator()))
    expected = compressor.decode(bytes(payload), 100)
    out = compressor.decode(memoryview(payload), 100)
    payload[:] = bytes(len(payload))
    assert same_bits(out, expected)
    out += 1


@every_compressor
def test_the_same_generator_gives_the_same_bytes(compressor: Compressor) -> None:
    v = gaussian(1000)
    assert compressor.encode(v, generator(3)) == compressor.encode(v, generator(3))


@every_compressor
def test_another_generator_gives_other_bytes_only_if_chance_decides(
    compressor: Compressor,
) -> None:
    v = gaussian(1000)
    by_chance = any(name in repr(compressor) for name in ("QSGD", "stochastic", "RandK"))
    by_chance &= repr(compressor) != "RandK(ratio=1.0, values=Identity())"
    assert (compressor.encode(v, generator(3)) != compressor.encode(v, generator(4))) == by_chance


# What is sent back is right on average, and not too far off.


def quantized(compressor: Compressor, v: Vector, rng: np.random.Generator) -> Vector:
    """Return what a payload would be decoded to, faster than by making one."""
    return compressor.dequantize(*compressor.quantize(v, rng))


def worst_bias(draw: Draw, v: Vector, repeats: int) -> float:
    """Return how many standard errors the mean of many draws is off.

    Each coordinate is looked at, and the directions in which small errors would add up.
    """
    exact = v.astype(np.float64)
    directions = np.stack([np.ones(v.size), np.sign(exact), exact], axis=1)
    looks = np.hstack([np.eye(v.size), directions])
    rng = generator(11)
    seen = np.stack([draw(rng) for _ in range(repeats)]).astype(np.float64) @ looks
    error = np.abs(seen.mean(axis=0) - exact @ looks)
    deviation = seen.std(axis=0, ddof=1)
    step = 2 * deviation[: v.size].max()  # a level hardly ever reached may be missing altogether
    rounding = 1e-7 * (np.abs(exact) @ np.abs(looks))  # of what is decoded, to float32
    return float((error / (deviation / math.sqrt(repeats) + step / repeats + rounding)).max())


def sample(size: int = 60) -> Vector:
    """Return numbers of both signs, none so small that it is hardly ever rounded up."""
    rng = generator(5)
    return (rng.choice([-1, 1], size) * rng.uniform(0.2, 1, size)).astype(np.float32)


UNBIASED = [
    make_compressor("none"),
    make_compressor("qsgd", levels=1),
    make_compressor("qsgd", levels=16),
    make_compressor("qsgd", levels=5, norm="max"),
    make_compressor("qsgd", levels=3, bucket=7),
    make_compressor("qsgd", levels=32767),
    make_compressor("uniform", bits=1),
    make_compressor("uniform", bits=2),
    make_compressor("uniform", bits=8),
    make_compressor("uniform", bits=12),
    make_compressor("uniform", bits=3, tensors=(40, 0, 20)),
    make_compressor("uniform", bits=4, zero_point_noise=2),
    make_compressor("randk", ratio=0.25),
    make_compressor("randk", ratio=0.5, values=QSGD8),
    make_compressor("randk", ratio=0.5, values=UNIFORM4),
]


@pytest.mark.parametrize("compressor", UNBIASED, ids=repr)
def test_unbiased_within_the_standard_error(compressor: Compressor) -> None:
    assert compressor.unbiased
    v = sample()
    assert worst_bias(lambda rng: quantized(compressor, v, rng), v, 1500) < 5


@pytest.mark.parametrize("compressor", [QSGD8, UNIFORM4, RANDK], ids=repr)
def test_payloads_are_unbiased_within_the_standard_error(compressor: Compressor) -> None:
    v = sample()
    assert worst_bias(lambda rng: compressor.decode(compressor.encode(v, rng), v.size), v, 400) < 5


@pytest.mark.parametrize(
    "compressor",
    [
        make_compressor("float16"),
        make_compressor("uniform", bits=8, rounding="nearest"),
        make_compressor("uniform", bits=4, rounding="nearest", zero_point_noise=1),
        make_compressor("topk", ratio=0.9),
        make_compressor("topk", ratio=0.9, values=QSGD8),
        make_compressor("randk", ratio=1.0, values=make_compressor("uniform", rounding="nearest")),
    ],
    ids=repr,
)
def test_the_check_notices_a_biased_compressor(compressor: Compressor) -> None:
    assert not compressor.unbiased
    v = sample()
    assert worst_bias(lambda rng: quantized(compressor, v, rng), v, 1500) > 5


@pytest.mark.parametrize("levels", [4, 16])
def test_the_check_notices_a_bias_of_two_percent(levels: int) -> None:
    compressor, v = make_compressor("qsgd", levels=levels), sample()
    assert worst_bias(lambda rng: 0.98 * quantized(compressor, v, rng), v, 1500) > 5


def squared_errors(compressor: Compressor, v: Vector, repeats: int) -> tuple[float, float]:
    """Return the mean of |Q(v) - v|^2 and its standard error."""
    rng = generator(12)
    errors = [square(quantized(compressor, v, rng) - v.astype(np.float64)) for _ in range(repeats)]
    return float(np.mean(errors)), float(np.std(errors, ddof=1)) / math.sqrt(repeats)


def square(v: NDArray[Any]) -> float:
    return float((v.astype(np.float64) ** 2).sum())


SHAPES = {
    "gaussian": gaussian(150),
    "heavy-tailed": generator(2).standard_cauchy(150).astype(np.float32),
    "constant": np.full(150, 0.3, np.float32),
    "one non-zero": np.eye(1, 150, 17, dtype=np.float32)[0],
    "halfway between levels": np.array([1.0] + [1 / 32] * 149, np.float32),
}


@pytest.mark.parametrize("v", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(
    "compressor",
    [
        make_compressor("qsgd", levels=1),
        make_compressor("qsgd", levels=16),
        make_compressor("qsgd", levels=1, norm="max"),
        make_compressor("qsgd", levels=16, norm="max"),
        make_compressor("qsgd", levels=4, bucket=16),
        make_compressor("qsgd", levels=4, norm="max", bucket=16),
        RANDK,
        make_compressor("randk", ratio=0.3, values=QSGD8),
        make_compressor("topk", ratio=0.1),
        make_compressor("topk", ratio=0.3, values=QSGD8),
        make_compressor("float16"),
        make_compressor("none"),
    ],
    ids=repr,
)
def test_the_error_is_at_most_q_times_the_square_of_the_vector(
    compressor: Compressor, v: Vector
) -> None:
    mean, error = squared_errors(compressor, v, 200)
    assert mean - 5 * error <= compressor.variance(v.size) * square(v) * (1 + 1e-6)


@pytest.mark.parametrize("v", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("levels", [1, 4, 16])
def test_the_error_of_qsgd_is_that_of_its_definition(norm: str, levels: int, v: Vector) -> None:
    size = float(np.linalg.norm(v.astype(np.float64), 2 if norm == "l2" else np.inf))
    up = unit_levels(v, levels, size) % 1  # the probability of the upper level
    expected = (size / levels) ** 2 * (up * (1 - up)).sum()
    mean, error = squared_errors(make_compressor("qsgd", levels=levels, norm=norm), v, 400)
    assert abs(mean - expected) <= 5 * error + 1e-5 * square(v)


@pytest.mark.parametrize("v", SHAPES.values(), ids=SHAPES.keys())
def test_the_error_of_randk_is_q_times_the_square(v: Vector) -> None:
    compressor = make_compressor("randk", ratio=0.1)
    assert compressor.variance(v.size) == pytest.approx(9)
    mean, error = squared_errors(compressor, v, 3000)
    assert abs(mean - 9 * square(v)) <= 5 * error + 1e-5 * square(v)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("v", SHAPES.values(), ids=SHAPES.keys())
def test_the_error_of_uniform_is_at_most_a_quarter_step_squared(v: Vector, bits: int) -> None:
    compressor = make_compressor("uniform", bits=bits, tensors=(100, 50))
    mean, error = squared_errors(compressor, v, 200)
    bound = sum(piece.size * step_of(piece, bits) ** 2 / 4 for piece in (v[:100], v[100:]))
    assert mean - 5 * error <= bound * (1 + 1e-6) + 1e-12 * square(v)


@pytest.mark.parametrize("options", [{"bits": 2}, {"bits": 8}, {"bits": 8, "zero_point_noise": 3}])
def test_the_variance_of_uniform_holds_for_gaussian_vectors(options: dict[str, int]) -> None:
    compressor, v = make_compressor("uniform", **options), gaussian(2000)
    mean, error = squared_errors(compressor, v, 200)
    assert mean - 5 * error <= compressor.variance(v.size) * square(v)


def test_variance_of_qsgd_by_hand() -> None:
    assert make_compressor("qsgd", levels=20).variance(100) == 0.25  # d/s^2
    assert make_compressor("qsgd", levels=5).variance(100) == 2.0  # sqrt(d)/s
    assert make_compressor("qsgd", levels=5, bucket=25).variance(100) == 1.0
    assert make_compressor("qsgd", levels=5, norm="max").variance(100) == 1.0  # d/(4 s^2)


def test_nominal_bits_by_hand() -> None:
    assert make_compressor("none").nominal_bits(10) == 320
    assert make_compressor("float16").nominal_bits(10) == 160
    assert make_compressor("qsgd", levels=1).nominal_bits(10) == 10 * 2 + 32
    assert make_compressor("qsgd", levels=7).nominal_bits(10) == 10 * 4 + 32
    assert make_compressor("qsgd", levels=8, bucket=4).nominal_bits(10) == 10 * 5 + 3 * 32
    assert make_compressor("uniform", bits=8).nominal_bits(10) == 80 + 64
    assert make_compressor("uniform", bits=3, tensors=(4, 6)).nominal_bits(10) == 30 + 128
    assert make_compressor("topk", ratio=0.1).nominal_bits(1000) == 100 * (32 + 10)
    assert make_compressor("randk", ratio=0.5, values=QSGD8).nominal_bits(8) == 4 * (5 + 3) + 32


@every_compressor
def test_a_payload_is_no_longer_than_its_nominal_bits(compressor: Compressor) -> None:
    for size in (0, 1, 10, 1000, 70_000):
        payload = compressor.encode(gaussian(size), generator())
        # A frame, scales in twice the precision, two lists of integers of up to 16 bytes more.
        assert len(payload) <= compressor.nominal_bits(size) / 8 + OVERHEAD + 16 + 2 * 16


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


# What is no vector, or no compressor.


@every_compressor
@pytest.mark.filterwarnings("ignore:overflow")  # as float32, 1e39 is infinite
def test_numbers_that_are_not_finite_are_refused(compressor: Compressor) -> None:
    for position in (0, 5, CHUNK + 3):
        for wrong in (np.nan, np.inf, -np.inf, 1e39):
            v = np.zeros(position + 2)
            v[position] = wrong
            with pytest.raises(ValueError, match="finite"):
                compressor.encode(v, generator())
            with pytest.raises(ValueError, match="finite"):
                compressor.transmit(v, generator())


@every_compressor
def test_what_is_not_one_dimensional_is_refused(compressor: Compressor) -> None:
    shapes: list[tuple[int, ...]] = [(), (2, 3), (1, 5), (5, 1), (0, 3), (1, 1, 1)]
    for shape in shapes:
        with pytest.raises(ValueError, match="shape"):
            compressor.encode(np.zeros(shape, np.float32), generator())


@every_compressor
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_encoded_can_be_decoded_up_to_the_largest_float(compressor: Compressor) -> None:
    largest = float(np.finfo(np.float32).max)
    for v in ([largest, -largest / 3, 0, 1], [-largest] * 20, [largest, -largest, 1, 2, 3]):
        for seed in range(10):
            try:
                payload = compressor.encode(np.array(v, np.float32), generator(seed))
            except ValueError:
                continue
            compressor.decode(payload, len(v))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gzip", {}),
        ("", {}),
        ("QSGD", {}),
        ("none", {"levels": 1}),
        ("float16", {"bits": 16}),
        ("qsgd", {"bits": 8}),
        ("qsgd", {"levels": 0}),
        ("qsgd", {"levels": -1}),
        ("qsgd", {"levels": 32768}),
        ("qsgd", {"levels": 2.5}),
        ("qsgd", {"levels": "8"}),
        ("qsgd", {"norm": "l1"}),
        ("qsgd", {"bucket": -1}),
        ("qsgd", {"bucket": 2.5}),
        ("uniform", {"levels": 4}),
        ("uniform", {"bits": 0}),
        ("uniform", {"bits": 17}),
        ("uniform", {"bits": 7.5}),
        ("uniform", {"rounding": "up"}),
        ("uniform", {"zero_point_noise": -1}),
        ("uniform", {"tensors": (5, -2)}),
        ("uniform", {"tensors": 5}),
        ("topk", {"k": 3}),
        ("topk", {"ratio": 0}),
        ("topk", {"ratio": 2}),
        ("topk", {"ratio": -0.1}),
        ("topk", {"ratio": math.nan}),
        ("topk", {"ratio": "0.1"}),
        ("topk", {"values": "topk"}),
        ("randk", {"ratio": 0}),
        ("randk", {"ratio": 2}),
        ("randk", {"values": None}),
    ],
)
def test_wrong_options_are_a_config_error(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_compressor(name, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qsgd", {"levels": 4.0}),
        ("qsgd", {"levels": np.int64(4)}),
        ("qsgd", {"levels": True}),
        ("qsgd", {"bucket": 2.0}),
        ("qsgd", {"bucket": np.int64(2)}),
        ("uniform", {"bits": 8.0}),
        ("uniform", {"bits": np.int64(8)}),
        ("uniform", {"zero_point_noise": 1.0}),
        ("uniform", {"tensors": [1, 2]}),
        ("uniform", {"tensors": (1.0, 2.0)}),
        ("topk", {"ratio": 1}),
        ("topk", {"ratio": np.float32(0.5)}),
    ],
)
def test_options_of_another_type_are_refused_or_work(name: str, options: dict[str, Any]) -> None:
    try:
        compressor = make_compressor(name, **options)
    except ConfigError:
        return
    assert through(compressor, gaussian(3)).shape == (3,)
    assert compressor.nominal_bits(3) > 0
    assert compressor.variance(3) >= 0


# Whole numbers.

LIMITS = (1, 2, 3, 4, 5, 7, 8, 9, 33, 255, 256, 257, 1000, 65535, 2**16, 2**16 + 1)
LARGE_LIMITS = (
    2**17,
    2**17 + 1,
    2**20,
    2**30 - 1,
    2**30,
    2**31 - 1,
    2**31,
    2**31 + 1,
    2**32,
    2**40,
)
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int, int], NDArray[Any]]] = {
    "zero": lambda rng, n, limit: np.zeros(n),
    "one": lambda rng, n, limit: np.ones(n),
    "highest": lambda rng, n, limit: np.full(n, limit - 1),
    "constant": lambda rng, n, limit: np.full(n, rng.integers(limit)),
    "uniform": lambda rng, n, limit: rng.integers(0, limit, n),
    "geometric": lambda rng, n, limit: rng.geometric(0.2, n) - 1,
    "long geometric": lambda rng, n, limit: rng.geometric(min(1, 20 / limit), n) - 1,
    "sparse ones": lambda rng, n, limit: rng.random(n) < 0.05,
    "sparse": lambda rng, n, limit: rng.integers(0, limit, n) * (rng.random(n) < 0.05),
    "sparse highest": lambda rng, n, limit: (limit - 1) * (rng.random(n) < 0.1),
    "an eighth": lambda rng, n, limit: rng.integers(0, limit, n) * (np.arange(n) % 8 == 7),
    "outlier": lambda rng, n, limit: np.where(np.arange(n) == n // 2, limit - 1, 1),
    "two clusters": lambda rng, n, limit: rng.choice([0, limit - 1], n),
    "logarithmic": lambda rng, n, limit: limit ** rng.random(n) - 1,
    "ramp": lambda rng, n, limit: np.arange(n) % limit,
}


def whole(kind: str, size: int, limit: int, seed: int) -> Integers:
    drawn = np.asarray(DISTRIBUTIONS[kind](generator(seed), size, limit))
    return np.minimum(drawn.astype(np.int64), limit - 1)


def packed(values: NDArray[Any], limit: int, sparse: bool = True) -> bytes:
    """Pack numbers, and make sure that they come back and nothing is left over."""
    data = integers.pack(values, limit, sparse)
    reader = Reader(memoryview(data))
    np.testing.assert_array_equal(integers.unpack(reader, len(values), limit, sparse), values)
    reader.end()
    return data


def plain_bytes(count: int, limit: int) -> int:
    return -(-count * (limit - 1).bit_length() // 8)


@PROPERTY
@given(
    st.sampled_from([*DISTRIBUTIONS]),
    st.integers(0, 3000),
    st.sampled_from(LIMITS + LARGE_LIMITS) | st.integers(1, 2**40),
    SEEDS,
    st.booleans(),
)
def test_integers_come_back_in_no_more_than_plain_bits(
    kind: str, size: int, limit: int, seed: int, sparse: bool
) -> None:
    values = whole(kind, size, limit, seed)
    assert len(packed(values, limit, sparse)) <= plain_bytes(size, limit) + 16


@PROPERTY
@given(st.data(), st.integers(1, 300))
def test_any_list_of_integers_comes_back(data: st.DataObject, limit: int) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, limit - 1))), np.int32)
    assert len(packed(values, limit)) <= plain_bytes(values.size, limit) + 16


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_integers_of_each_kind_come_back_whatever_the_limit(kind: str) -> None:
    for limit in LIMITS + LARGE_LIMITS:
        for size in (1, 2, 9, 1000):
            packed(whole(kind, size, limit, size), limit)


@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_integers_come_back_at_the_borders_of_chunks(kind: str) -> None:
    for size in BORDERS:
        for limit in (2, 33, 65535, 2**20):
            values = whole(kind, size, limit, 0)
            assert len(packed(values.astype(np.int32), limit)) <= plain_bytes(size, limit) + 16


@pytest.mark.parametrize("width", [12, 16, 17, 20, 31, 40])
def test_integers_that_hardly_compress_take_no_more_than_plain_bits(width: int) -> None:
    """The highest number is the largest for which coding still seems to pay, or nearly so."""
    size, spread = 200_000, generator(width).random(200_000)
    low, high = 2 ** (width - 1), 2**width
    while high - low > max(1, high >> 12):
        middle = (low + high) // 2
        mode = integers.pack((spread * middle).astype(np.int64), 2**width)[0]
        low, high = (middle, high) if mode != PLAIN else (low, middle)
    for highest in (low, high):
        data = integers.pack((spread * highest).astype(np.int64), 2**width)
        assert len(data) <= plain_bytes(size, 2**width) + 16


@pytest.mark.parametrize("limit", [3, 7, 31, 63, 255, 510, 1000, 2**17 - 9])
def test_uniform_integers_take_no_more_than_plain_bits(limit: int) -> None:
    for size in (3000, 100_000):
        values = whole("uniform", size, limit, 0)
        assert len(integers.pack(values, limit)) <= plain_bytes(size, limit) + 16


ENTROPY: dict[str, Callable[[np.random.Generator, int], NDArray[Any]]] = {
    "geometric 0.5": lambda rng, n: rng.geometric(0.5, n) - 1,
    "geometric 0.9": lambda rng, n: rng.geometric(0.9, n) - 1,
    "geometric 0.05": lambda rng, n: rng.geometric(0.05, n) - 1,
    "geometric 0.001": lambda rng, n: rng.geometric(0.001, n) - 1,
    "bits 0.001": lambda rng, n: rng.random(n) < 0.001,
    "bits 0.02": lambda rng, n: rng.random(n) < 0.02,
    "bits 0.12": lambda rng, n: rng.random(n) < 0.12,
    "bits 0.13": lambda rng, n: rng.random(n) < 0.13,
    "bits 0.5": lambda rng, n: rng.random(n) < 0.5,
    "signs 0.05": lambda rng, n: rng.integers(1, 3, n) * (rng.random(n) < 0.05),
    "uniform 3": lambda rng, n: rng.integers(0, 3, n),
    "uniform 10": lambda rng, n: rng.integers(0, 10, n),
    "uniform 37": lambda rng, n: rng.integers(0, 37, n),
    "uniform 1000": lambda rng, n: rng.integers(0, 1000, n),
    "poisson": lambda rng, n: rng.poisson(3, n),
    "folded normal": lambda rng, n: np.abs(rng.normal(0, 40, n)),
    "wide folded normal": lambda rng, n: np.abs(rng.normal(0, 3000, n)),
    "zipf": lambda rng, n: np.minimum(rng.zipf(2.0, n) - 1, 5000),
}


@pytest.mark.parametrize("kind", ENTROPY)
def test_coded_integers_are_near_their_entropy(kind: str) -> None:
    size = 200_000
    values = np.asarray(ENTROPY[kind](generator(7), size)).astype(np.int32)
    counts = np.bincount(values)
    share = counts[counts > 0] / size
    entropy = -size * (share * np.log2(share)).sum() / 8
    for limit in (len(counts), 2**16):
        assert len(packed(values, limit)) <= 1.02 * entropy + 64


@pytest.mark.parametrize("levels", [1, 4, 16, 64])
def test_a_qsgd_payload_is_near_the_entropy_of_its_levels(levels: int) -> None:
    v = gaussian(200_000)
    compressor = make_compressor("qsgd", levels=levels, norm="max")
    payload, sent = compressor.transmit(v, generator())
    share = np.unique_counts(sent).counts / v.size
    entropy = -v.size * (share * np.log2(share)).sum() / 8
    assert len(payload) <= 1.02 * entropy + 64


@PROPERTY
@given(st.integers(1, 3000), st.floats(0, 1), SEEDS)
def test_positions_come_back(size: int, share: float, seed: int) -> None:
    positions = np.flatnonzero(generator(seed).random(size) < share)
    check_positions(positions, size)


@pytest.mark.parametrize("size", [1, 2, 100, *BORDERS, 10**6])
def test_positions_at_the_ends_come_back(size: int) -> None:
    few = min(size, 40)
    for positions in (
        [],
        [0],
        [size - 1],
        [*range(few)],
        [*range(size - few, size)],
        [*range(size)],
    ):
        check_positions(np.array(positions, np.int64), size)


def check_positions(positions: Integers, size: int) -> None:
    reader = Reader(memoryview(integers.pack_positions(positions, size)))
    found = integers.unpack_positions(reader, len(positions), size)
    np.testing.assert_array_equal(found, positions)
    reader.end()


@PROPERTY
@given(st.integers(0, 2**62))
def test_varints_come_back(value: int) -> None:
    reader = Reader(memoryview(varint(value)))
    assert reader.varint() == value
    reader.end()


# Damaged payloads, and payloads of others.

SIZE = 40


@every_compressor
def test_any_truncation_is_refused(compressor: Compressor) -> None:
    payload = compressor.encode(gaussian(SIZE), generator())
    for length in range(len(payload)):
        with pytest.raises(PayloadError):
            compressor.decode(payload[:length], SIZE)


@every_compressor
def test_any_flipped_bit_is_refused(compressor: Compressor) -> None:
    payload = compressor.encode(gaussian(SIZE), generator())
    for damaged in with_a_bit_flipped(payload):
        with pytest.raises(PayloadError):
            compressor.decode(damaged, SIZE)


@every_compressor
@pytest.mark.parametrize("size", [0, SIZE])
def test_any_extension_is_refused(compressor: Compressor, size: int) -> None:
    payload = compressor.encode(gaussian(size), generator())
    extensions = [bytes([byte]) for byte in range(256)] + [bytes(n) for n in range(1, 20)]
    for more in (*extensions, payload):
        for extended in (payload + more, more + payload):
            with pytest.raises(PayloadError):
                compressor.decode(extended, size)


@PROPERTY
@given(any_compressor, st.binary(max_size=300), st.integers(0, 50))
def test_random_bytes_are_refused(compressor: Compressor, data: bytes, size: int) -> None:
    with pytest.raises(PayloadError):
        compressor.decode(data, size)


@every_compressor
@pytest.mark.parametrize("size", [0, SIZE])
def test_payloads_of_other_compressors_are_refused(compressor: Compressor, size: int) -> None:
    for other in COMPRESSORS:
        if other is not compressor:
            payload = other.encode(gaussian(size), generator())
            with pytest.raises(PayloadError):
                compressor.decode(payload, size)


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("qsgd", {"levels": 8}, {"levels": 16}),
        ("qsgd", {"norm": "l2"}, {"norm": "max"}),
        ("qsgd", {"bucket": 0}, {"bucket": 1000}),
        ("uniform", {"bits": 8}, {"bits": 7}),
        ("uniform", {"rounding": "nearest"}, {"rounding": "stochastic"}),
        ("uniform", {"zero_point_noise": 0}, {"zero_point_noise": 1}),
        ("uniform", {"tensors": (10, 30)}, {"tensors": (30, 10)}),
        ("topk", {"ratio": 0.5}, {"ratio": 0.501}),
        ("topk", {"values": QSGD8}, {"values": make_compressor("qsgd", levels=9)}),
    ],
)
def test_payloads_made_with_other_options_are_refused(
    name: str, one: dict[str, Any], other: dict[str, Any]
) -> None:
    payload = make_compressor(name, **one).encode(gaussian(SIZE), generator())
    with pytest.raises(PayloadError):
        make_compressor(name, **other).decode(payload, SIZE)


@every_compressor
def test_another_size_is_refused(compressor: Compressor) -> None:
    for size in (0, 1, SIZE):
        payload = compressor.encode(gaussian(size), generator())
        for other in {-1, 0, 1, SIZE - 1, SIZE, SIZE + 1, 2**40, 2**64} - {size}:
            with pytest.raises(PayloadError):
                compressor.decode(payload, other)


# Hostile payloads: the frame and its checksum are right, the body is not.

HUGE = [varint(n) for n in (127, 128, 2**16, 2**31, 2**32, 2**62, 2**63 - 1)] + [b"\xff" * 12]


def with_a_bit_flipped(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            yield bytes(damaged)


def body_of(compressor: Compressor, v: Vector, seed: int = 0) -> bytes:
    return compressor.encode(v, generator(seed))[OVERHEAD:]


def check_hostile(compressor: Compressor, body: bytes, size: int) -> None:
    payload = seal(compressor.codec, size, body, compressor.key)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            out = compressor.decode(payload, size)
        except PayloadError:
            return
    assert out.dtype == np.float32
    assert out.shape == (size,)
    assert np.isfinite(out).all()


def check_hostile_integers(data: bytes, count: int, limit: int) -> None:
    try:
        found = integers.unpack(Reader(memoryview(data)), count, limit)
    except PayloadError:
        return
    assert found.shape == (count,)
    assert count == 0 or (found.min() >= 0 and found.max() < limit)


def test_a_body_sealed_anew_is_accepted_if_it_is_right() -> None:
    for compressor in COMPRESSORS:
        payload = compressor.encode(gaussian(SIZE), generator())
        body = payload[OVERHEAD:]
        assert seal(compressor.codec, SIZE, body, compressor.key) == payload


@every_compressor
def test_a_right_body_in_a_wrong_frame_is_refused(compressor: Compressor) -> None:
    body = body_of(compressor, gaussian(SIZE))
    for codec in set(range(10)) - {compressor.codec}:
        with pytest.raises(PayloadError):
            compressor.decode(seal(codec, SIZE, body, compressor.key), SIZE)
    for size in (0, SIZE - 1, SIZE + 1, 2**63):
        with pytest.raises(PayloadError):
            compressor.decode(seal(compressor.codec, size, body, compressor.key), SIZE)
    with pytest.raises(PayloadError):
        compressor.decode(seal(compressor.codec, SIZE, body, b"another key"), SIZE)


@every_compressor
@pytest.mark.parametrize("size", [SIZE, 600])
def test_hostile_bodies_cut_short_or_too_long(compressor: Compressor, size: int) -> None:
    body = body_of(compressor, gaussian(size))
    for length in range(0, len(body), 1 + len(body) // 300):
        check_hostile(compressor, body[:length], size)
    for more in (b"\0", b"\xff", bytes(8), body):
        check_hostile(compressor, body + more, size)
        payload = seal(compressor.codec, size, body + more, compressor.key)
        with pytest.raises(PayloadError):
            compressor.decode(payload, size)


@every_compressor
def test_hostile_bodies_with_any_bit_flipped(compressor: Compressor) -> None:
    for body in with_a_bit_flipped(body_of(compressor, gaussian(SIZE))):
        check_hostile(compressor, body, SIZE)


@every_compressor
def test_hostile_bodies_with_a_bit_flipped_near_the_front(compressor: Compressor) -> None:
    """Of a size where the numbers are entropy-coded, not plain."""
    for kind in ("gaussian", "sparse"):
        body = body_of(compressor, KINDS[kind](generator(1), 1000).astype(np.float32))
        for damaged in with_a_bit_flipped(body[:25]):
            check_hostile(compressor, damaged + body[25:], 1000)


@every_compressor
def test_hostile_bodies_with_huge_counts_at_every_place(compressor: Compressor) -> None:
    body = body_of(compressor, gaussian(SIZE))
    for huge in HUGE:
        for position in range(min(len(body), 60) + 1):
            check_hostile(compressor, body[:position] + huge + body[position:], SIZE)
            check_hostile(compressor, body[:position] + huge + body[position + 1 :], SIZE)
            check_hostile(compressor, body[:position] + huge, SIZE)


@PROPERTY
@given(any_compressor, st.binary(max_size=400), st.integers(0, 200))
def test_hostile_bodies_of_random_bytes(compressor: Compressor, body: bytes, size: int) -> None:
    check_hostile(compressor, body, size)


@PROPERTY
@given(any_compressor, vectors, st.data())
def test_hostile_bodies_with_bytes_replaced(
    compressor: Compressor, v: Vector, data: st.DataObject
) -> None:
    body = bytearray(body_of(compressor, v))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, min(len(body), 100)))
        length = data.draw(st.integers(0, 8))
        body[start : start + length] = data.draw(st.binary(max_size=8))
    check_hostile(compressor, bytes(body), v.size)


@pytest.mark.parametrize("bits", [1, 4, 16])
def test_hostile_scales(bits: int) -> None:
    compressor = make_compressor("uniform", bits=bits)
    body = body_of(compressor, gaussian(SIZE))
    extremes = [0.0, -0.0, 1.0, -1.0, 5e-324, 1e308, -1e308, 1e39, -1e39, np.inf, -np.inf, np.nan]
    for scale in extremes:
        for zero in extremes:
            for noise in extremes:
                grid = np.array([scale, zero, noise], "<f8").tobytes()
                check_hostile(compressor, grid + body[24:], SIZE)


@pytest.mark.parametrize("norm", [0.0, -0.0, 2.0**-149, 3.4e38, -1.0, np.inf, -np.inf, np.nan])
def test_hostile_norms(norm: float) -> None:
    for compressor in (QSGD8, make_compressor("qsgd", levels=32767, norm="max")):
        body = np.array(norm, "<f4").tobytes() + body_of(compressor, gaussian(SIZE))[4:]
        check_hostile(compressor, body, SIZE)
        if not 0 <= norm < np.inf:
            with pytest.raises(PayloadError):
                compressor.decode(seal(compressor.codec, SIZE, body, compressor.key), SIZE)


@pytest.mark.parametrize("exponent", [-32768, -200, -149, 0, 100, 127, 128, 32767])
def test_hostile_exponents(exponent: int) -> None:
    compressor = make_compressor("float16")
    halves = np.array([0, 1, -65504, 6e-8, np.inf, np.nan], "<f2")
    for half in halves:
        body = np.array(exponent, "<i2").tobytes() + np.full(3, half).tobytes()
        check_hostile(compressor, body, 3)


def ans(m: int, counts: list[int], words: bytes, bits: bytes) -> bytes:
    """Write integers as `pack` would, but with any frequencies, coded words and plain bits."""
    codes = [f"{count + 1:b}" for count in counts]
    table = "".join("0" * (len(code) - 1) + code for code in codes)
    packed_table = np.packbits([int(bit) for bit in table], bitorder="little").tobytes()
    head = bytes([ANS, m]) + varint(len(counts)) + varint(len(packed_table)) + packed_table
    return head + varint(len(words) // 4) + words[: len(words) // 4 * 4] + bits


@PROPERTY
@given(
    st.sampled_from([2, 3, 8, 33, 257, 65535, 2**20]),
    st.integers(1, 300),
    st.sampled_from(FINENESS),
    st.lists(st.integers(0, 200), min_size=1, max_size=40),
    st.binary(max_size=40),
    st.binary(max_size=60),
)
def test_hostile_frequencies(
    limit: int, count: int, m: int, counts: list[int], words: bytes, bits: bytes
) -> None:
    check_hostile_integers(ans(m, counts, words, bits), count, limit)
    fitting = [*counts, max(0, count - sum(counts))]  # the table is right if that is not 0
    check_hostile_integers(ans(m, fitting, words, bits), max(count, sum(counts)), limit)


def huffman(m: int, alphabet: int, stream: bytes, bits: bytes = b"") -> bytes:
    return bytes([HUFFMAN, m]) + varint(alphabet) + varint(len(stream)) + stream + bits


def deflated(data: bytes, level: int = 9) -> bytes:
    coder = zlib.compressobj(level, zlib.DEFLATED, -15)
    return coder.compress(data) + coder.flush()


@PROPERTY
@given(
    st.sampled_from([2, 3, 8, 33, 257, 65535, 2**20]),
    st.integers(1, 300),
    st.sampled_from(FINENESS),
    st.integers(0, 300),
    st.binary(max_size=310) | st.integers(0, 400).map(bytes),
    st.binary(max_size=60),
)
def test_hostile_huffman_codes(
    limit: int, count: int, m: int, alphabet: int, symbols: bytes, bits: bytes
) -> None:
    for stream in (deflated(symbols), deflated(symbols, 0), deflated(symbols) + b"more", symbols):
        check_hostile_integers(huffman(m, alphabet, stream, bits), count, limit)
        for group in (1, 2, 4):  # the right number of symbols
            check_hostile_integers(huffman(m, alphabet, stream, bits), group * len(symbols), limit)


@pytest.mark.parametrize("alphabet", [2, 4, 15, 16, 17, 256])
def test_huffman_codes_of_too_many_or_too_few_symbols_are_refused(alphabet: int) -> None:
    count, group = 1000, 4 if alphabet <= 4 else 2 if alphabet <= 16 else 1
    due = count // group
    good = deflated(bytes(due))
    found = integers.unpack(Reader(memoryview(huffman(8, alphabet, good))), count, 257)
    np.testing.assert_array_equal(found, np.zeros(count))
    streams = [deflated(bytes(n)) for n in (0, 1, due - 1, due + 1, 2 * due, 10**6)]
    streams += [good[:length] for length in range(len(good))]
    streams += [good + b"\0", good + good, b""]
    if alphabet**group < 256:
        streams.append(deflated(bytes(due - 1) + bytes([alphabet**group])))
    for stream in streams:
        with pytest.raises(PayloadError):
            integers.unpack(Reader(memoryview(huffman(8, alphabet, stream))), count, 257)


@PROPERTY
@given(st.integers(1, 300), st.sampled_from([2, 3, 33, 65535, 2**20]), st.binary(max_size=80))
def test_hostile_integers_of_each_mode(count: int, limit: int, data: bytes) -> None:
    for mode in (PLAIN, ANS, SPARSE, HUFFMAN, 4, 255):
        check_hostile_integers(bytes([mode]) + data, count, limit)


@pytest.mark.parametrize("counts", [[100], [100, 0], [0, 100], [0, 0, 100]])
def test_a_table_with_one_frequency_stands_for_a_constant(counts: list[int]) -> None:
    reader = Reader(memoryview(ans(8, counts, b"", b"")))
    found = integers.unpack(reader, 100, 33)
    reader.end()
    np.testing.assert_array_equal(found, np.full(100, np.argmax(counts)))


@pytest.mark.parametrize(
    "counts",
    [[101], [99], [0], [50, 51], [2**62, 2**62], [2**62, 2**62, 2**62, 2**62 + 100]],
)
def test_a_table_of_another_total_is_refused(counts: list[int]) -> None:
    """The last is right modulo 2^64."""
    with pytest.raises(PayloadError):
        integers.unpack(Reader(memoryview(ans(8, counts, b"", b""))), 100, 33)


@pytest.mark.parametrize("m", FINENESS)
def test_cells_beyond_the_limit_are_refused(m: int) -> None:
    for alphabet in (40, 70, 130, 200, 600, 5000):
        data = ans(m, [0] * (alphabet - 1) + [100], b"", bytes(5000))
        check_hostile_integers(data, 100, 33)


def test_words_that_nothing_needs_are_refused() -> None:
    with pytest.raises(PayloadError):
        integers.unpack(Reader(memoryview(ans(8, [100, 0], b"\1\0\0\0", b""))), 100, 33)


@pytest.mark.parametrize(
    "compressor",
    [
        make_compressor("none"),
        make_compressor("float16"),
        QSGD8,
        make_compressor("qsgd", levels=32767, norm="max"),
        make_compressor("uniform", bits=8),
        make_compressor("topk", ratio=0.1, values=QSGD8),
        make_compressor("topk", ratio=1.0, values=QSGD8),
        make_compressor("topk", ratio=1.0, values=UNIFORM4),
        make_compressor("topk", ratio=1.0, values=make_compressor("topk", ratio=1.0)),
        make_compressor("randk", ratio=1.0),
    ],
    ids=repr,
)
def test_a_hostile_payload_of_a_few_bytes_takes_little_memory(compressor: Compressor) -> None:
    size = 100_000
    lists = [bytes([mode]) + huge for mode in (PLAIN, ANS, SPARSE, HUFFMAN) for huge in HUGE]
    for count in (size, size // 10):
        zeros = ans(8, [count, 0], b"", b"")
        lists += [
            zeros,
            ans(8, [0, count], b"", b""),
            bytes([SPARSE]) + varint(count) + 2 * zeros,
        ]
    lists += [huffman(8, alphabet, deflated(bytes(10**7))) for alphabet in (2, 16, 200)]
    front = body_of(compressor, gaussian(SIZE))
    for kept in (0, 2, 4, 24):  # bytes of nothing, an exponent, a norm or a grid
        for body in (
            *(front[:kept] + one for one in lists),
            *(one + front[:kept] + other for one in lists[-9:] for other in lists[-9:]),
        ):
            assert memory_of(compressor, body, size) <= 8 * 4 * size + 10_000


def memory_of(compressor: Compressor, body: bytes, size: int) -> int:
    payload = seal(compressor.codec, size, body, compressor.key)
    tracemalloc.start()
    try:
        compressor.decode(payload, size)
    except PayloadError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak
