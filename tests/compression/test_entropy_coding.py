"""Coded integers come back, near their entropy, in no more than plain bits; payloads in no more than nominal bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedapp.compression import Compressor, integers, make_compressor
from fedapp.compression.integers import PLAIN
from fedapp.compression.payload import OVERHEAD, Reader, varint
from tests.support.compressors import QSGD8, every_compressor
from tests.support.vectors import BORDERS, PROPERTY, SEEDS, gaussian, generator

Integers = NDArray[np.int64]


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
