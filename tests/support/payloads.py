"""Payloads by hand: bodies without their frame, damaged bytes, and integers coded in any way."""

import zlib
from collections.abc import Iterator

import numpy as np

from fedapp.compression import Compressor
from fedapp.compression.integers import ANS, HUFFMAN
from fedapp.compression.payload import OVERHEAD, varint
from tests.support.vectors import Vector, generator

SIZE = 40  # the length of the vectors whose payloads are damaged


HUGE = [varint(n) for n in (127, 128, 2**16, 2**31, 2**32, 2**62, 2**63 - 1)] + [b"\xff" * 12]


def with_a_bit_flipped(data: bytes) -> Iterator[bytes]:
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            yield bytes(damaged)


def body_of(compressor: Compressor, v: Vector, seed: int = 0) -> bytes:
    return compressor.encode(v, generator(seed))[OVERHEAD:]


def ans(m: int, counts: list[int], words: bytes, bits: bytes) -> bytes:
    """Write integers as `pack` would, but with any frequencies, coded words and plain bits."""
    codes = [f"{count + 1:b}" for count in counts]
    table = "".join("0" * (len(code) - 1) + code for code in codes)
    packed_table = np.packbits([int(bit) for bit in table], bitorder="little").tobytes()
    head = bytes([ANS, m]) + varint(len(counts)) + varint(len(packed_table)) + packed_table
    return head + varint(len(words) // 4) + words[: len(words) // 4 * 4] + bits


def huffman(m: int, alphabet: int, stream: bytes, bits: bytes = b"") -> bytes:
    return bytes([HUFFMAN, m]) + varint(alphabet) + varint(len(stream)) + stream + bits


def deflated(data: bytes, level: int = 9) -> bytes:
    coder = zlib.compressobj(level, zlib.DEFLATED, -15)
    return coder.compress(data) + coder.flush()
