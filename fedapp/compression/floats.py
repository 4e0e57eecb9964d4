"""Floating-point numbers with fewer bits each: all 32 (Identity), half precision (Float16), bfloat16, powers of two.

Natural: Horvath et al., Natural Compression for Distributed Deep Learning, MSML 2022.
"""

import math
import struct
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedapp.compression import integers
from fedapp.compression.cells import chunks
from fedapp.compression.compressor import BITS_PER_NUMBER, Compressor, Vector
from fedapp.compression.payload import NotFiniteError, PayloadError, Reader
from fedapp.randomness import Generator

MANTISSA = 23  # bits of a float32 that follow its sign and exponent
ZERO = 1 << 9  # stands for the number 0 among signs and exponents


class Identity(Compressor):
    """Exactly the numbers: their signs and exponents are coded, the other bits are plain."""

    name: ClassVar[str] = "none"
    codec: ClassVar[int] = 0
    unbiased: ClassVar[bool] = True

    def quantize(self, v: Vector, rng: Generator) -> tuple[Vector]:
        """Return the vector."""
        return (v,)

    def dequantize(self, v: Vector) -> Vector:
        """Return the vector."""
        return v

    def write(self, v: Vector) -> bytes:
        """Write signs and exponents, zero as a separate symbol, and the mantissas of the others."""
        bits = v.view(np.uint32)
        leading = np.where(bits == 0, ZERO, bits >> MANTISSA).astype(np.int32)
        mantissas = bits[bits != 0].astype(np.int32)
        return integers.pack(leading, ZERO + 1) + integers.pack_bits(mantissas, MANTISSA)

    def parse(self, reader: Reader, size: int) -> tuple[Vector]:
        """Read the numbers."""
        leading = integers.unpack(reader, size, ZERO + 1)
        others = leading != ZERO
        mantissas = integers.unpack_bits(reader, int(others.sum()), MANTISSA)
        bits = leading.astype(np.uint32)
        bits <<= MANTISSA
        bits[others] |= mantissas.view(np.uint32)
        bits[~others] = 0
        return (bits.view(np.float32),)

    def nominal_bits(self, size: int) -> int:
        """Return 32 bits a number."""
        return BITS_PER_NUMBER * size

    def variance(self, size: int) -> float:
        """Return 0: lossless."""
        return 0.0


class Float16(Compressor):
    """Half precision, of the vector scaled by a power of two so that it neither over- nor underflows."""

    name: ClassVar[str] = "float16"
    codec: ClassVar[int] = 1

    def quantize(self, v: Vector, rng: Generator) -> tuple[int, NDArray[np.float16]]:
        """Return the exponent, and the scaled numbers."""
        highest = max((float(np.abs(part).max()) for part in chunks(v)), default=0.0)
        exponent = math.frexp(highest)[1] - 15  # the largest lies in [2^14, 2^15)
        halves = np.empty(v.size, np.float16)
        for part, half in zip(chunks(v), chunks(halves), strict=True):
            half[:] = np.ldexp(part, -exponent).clip(-32752, 32752)  # below 2^15, also rounded
        return exponent, halves

    def dequantize(self, exponent: int, halves: NDArray[np.float16]) -> Vector:
        """Scale back."""
        vector = np.empty(halves.size, np.float32)
        with np.errstate(all="ignore"):  # what is decoded is checked
            for part, half in zip(chunks(vector), chunks(halves), strict=True):
                part[:] = np.ldexp(half.astype(np.float32), exponent)
        return vector

    def write(self, exponent: int, halves: NDArray[np.float16]) -> bytes:
        """Write exponent and numbers."""
        return struct.pack("<h", exponent) + halves.astype("<f2").tobytes()

    def parse(self, reader: Reader, size: int) -> tuple[int, NDArray[np.float16]]:
        """Read exponent and numbers."""
        return reader.number("<i2"), reader.numbers("<f2", size)

    def nominal_bits(self, size: int) -> int:
        """Return 16 bits a number."""
        return 16 * size

    def variance(self, size: int) -> float:
        """Return the square of the relative rounding error (plus what falls below 2^-29 of the largest)."""
        return 2.0**-22 + size * 2.0**-78


class BFloat16(Compressor):
    """The first 16 bits of float32 numbers, rounded to nearest, ties to even; signs and exponents are coded."""

    name: ClassVar[str] = "bfloat16"
    codec: ClassVar[int] = 7

    def quantize(self, v: Vector, rng: Generator) -> tuple[NDArray[np.uint16]]:
        """Return the upper halves; what would be rounded to infinity becomes the largest number."""
        bits = v.view(np.uint32)
        rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
        rounded -= (rounded & 0x7FFF) == 0x7F80  # infinity, and the number before it
        return (rounded.astype(np.uint16),)

    def dequantize(self, halves: NDArray[np.uint16]) -> Vector:
        """Return the numbers, whose other bits are 0."""
        return (halves.astype(np.uint32) << 16).view(np.float32)

    def write(self, halves: NDArray[np.uint16]) -> bytes:
        """Write signs and exponents, zero as a separate symbol, and the other 7 bits of the others."""
        leading = np.where(halves == 0, ZERO, halves >> 7).astype(np.int32)
        others = halves[halves != 0].astype(np.int32)
        return integers.pack(leading, ZERO + 1) + integers.pack_bits(others, 7)

    def parse(self, reader: Reader, size: int) -> tuple[NDArray[np.uint16]]:
        """Read the numbers."""
        leading = integers.unpack(reader, size, ZERO + 1)
        others = leading != ZERO
        halves = np.where(others, leading << 7, 0).astype(np.uint16)
        halves[others] |= integers.unpack_bits(reader, int(others.sum()), 7).astype(np.uint16)
        return (halves,)

    def nominal_bits(self, size: int) -> int:
        """Return 16 bits a number."""
        return 16 * size

    def variance(self, size: int) -> float:
        """Return the square of the relative rounding error."""
        return 2.0**-16


EXPONENTS = 280  # float32 numbers have 2^-149 to 2^127


class Natural(Compressor):
    """Powers of two, rounded at random: |v| = 2^e (1 + p) becomes 2^(e + 1) with probability p, 2^e otherwise."""

    name: ClassVar[str] = "natural"
    codec: ClassVar[int] = 8
    unbiased: ClassVar[bool] = True

    def quantize(self, v: Vector, rng: Generator) -> tuple[int, NDArray[np.int32]]:
        """Return the largest exponent; and for each number 0, or by how much smaller its exponent is, and its sign."""
        exponents = np.empty(v.size, np.int32)
        for part, out in zip(chunks(v), chunks(exponents), strict=True):
            mantissa, out[:] = np.frexp(np.abs(part))
            out -= rng.random(part.size, np.float32) >= 2 * mantissa - 1
        some = v != 0
        highest = int(exponents[some].max(initial=-149))
        if highest > 127:
            raise NotFiniteError(
                "a vector with numbers of 2^127 and more cannot be rounded to powers of two"
            )
        symbols = 2 * (highest - exponents) + 1 + (v < 0)
        return highest, np.where(some, symbols, 0)

    def dequantize(self, highest: int, symbols: NDArray[np.int32]) -> Vector:
        """Return the powers of two with their signs."""
        away = (symbols - 1) >> 1
        power = np.ldexp(np.float32(1), highest - away)
        power[symbols == 0] = 0
        return np.asarray(np.where(symbols & 1, power, -power) + np.float32(0), np.float32)

    def write(self, highest: int, symbols: NDArray[np.int32]) -> bytes:
        """Write the largest exponent and the others."""
        return struct.pack("<h", highest) + integers.pack(symbols, 2 * EXPONENTS + 1)

    def parse(self, reader: Reader, size: int) -> tuple[int, NDArray[np.int32]]:
        """Read what `write` wrote."""
        highest = reader.number("<i2")
        if not -149 <= highest <= 127:
            raise PayloadError("its largest number is out of range")
        return highest, integers.unpack(reader, size, 2 * EXPONENTS + 1)

    def nominal_bits(self, size: int) -> int:
        """Return a sign and an exponent for every number."""
        return 9 * size + 16

    def variance(self, size: int) -> float:
        """Return 1/8: the error of p(1 - p) over (1 + p)^2 at its largest."""
        return 0.125
