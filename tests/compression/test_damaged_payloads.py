"""Damaged payloads, and payloads of other compressors, are refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.compression import Compressor, PayloadError, make_compressor
from fedapp.compression.payload import OVERHEAD, seal
from fedapp.models.layout import Piece
from tests.support.compressors import COMPRESSORS, QSGD8, any_compressor, every_compressor
from tests.support.payloads import SIZE, body_of, with_a_bit_flipped
from tests.support.vectors import PROPERTY, gaussian, generator


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
        ("dithered", {"step": 1.0}, {"step": 1.1}),
        ("dithered", {"nmse": 0.0}, {"nmse": 0.2}),
        ("dithered", {"pieces": (Piece(40, 40),)}, {"pieces": (Piece(40, 10),)}),
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
