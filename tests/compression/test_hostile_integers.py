"""Hostile lists of integers: wrong tables, codes and counts, and the memory that they take."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.compression import Compressor, PayloadError, integers, make_compressor
from fedapp.compression.cells import FINENESS
from fedapp.compression.integers import ANS, HUFFMAN, PLAIN, SPARSE
from fedapp.compression.payload import Reader, seal, varint
from tests.support.compressors import QSGD8, UNIFORM4
from tests.support.payloads import HUGE, SIZE, ans, body_of, deflated, huffman
from tests.support.vectors import PROPERTY, gaussian


def check_hostile_integers(data: bytes, count: int, limit: int) -> None:
    try:
        found = integers.unpack(Reader(memoryview(data)), count, limit)
    except PayloadError:
        return
    assert found.shape == (count,)
    assert count == 0 or (found.min() >= 0 and found.max() < limit)


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
