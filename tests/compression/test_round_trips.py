"""Compressed vectors come back: exactly as quantized, whatever their kind, and from any form of input."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedapp.compression import Compressor, make_compressor
from tests.support.compressors import QSGD8, any_compressor, every_compressor
from tests.support.vectors import (
    BORDERS,
    KINDS,
    PROPERTY,
    SEEDS,
    Vector,
    gaussian,
    generator,
    same_bits,
    through,
    ulps,
    vectors,
)


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
    largest = np.argsort(-np.abs(v), kind="stable")[:k]  # the first of equal ones
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
    by_chance = any(
        name in repr(compressor) for name in ("QSGD", "stochastic", "RandK", "Dithered", "Natural")
    )
    by_chance &= repr(compressor) != "RandK(ratio=1.0, values=Identity())"
    assert (compressor.encode(v, generator(3)) != compressor.encode(v, generator(4))) == by_chance
