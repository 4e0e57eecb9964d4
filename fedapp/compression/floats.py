"""Floating-point numbers as they are: all 32 bits (Identity), or rounded to half precision (Float16)."""

import math
import struct
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedapp.compression import integers
from fedapp.compression.cells import chunks
from fedapp.compression.compressor import BITS_PER_NUMBER, Compressor, Vector
from fedapp.compression.payload import Reader
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
        """Write signs and exponents, zero as one of its own, and the mantissas of the others."""
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
