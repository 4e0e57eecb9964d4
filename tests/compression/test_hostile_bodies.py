"""Hostile payloads: the frame and its checksum are right, the body is not."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.compression import Compressor, PayloadError, make_compressor
from fedapp.compression.payload import seal
from tests.support.compressors import QSGD8, any_compressor, every_compressor
from tests.support.payloads import HUGE, SIZE, body_of, with_a_bit_flipped
from tests.support.vectors import KINDS, PROPERTY, Vector, gaussian, generator, vectors


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
