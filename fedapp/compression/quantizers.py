"""Quantizers: fewer bits for every number.

QSGD: Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding,
NeurIPS 2017, the quantizer of FedPAQ. Uniform: the affine quantizer of FedCOM's experiments.
"""

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.compression import integers
from fedapp.compression.cells import CHUNK, chunks
from fedapp.compression.compressor import BITS_PER_NUMBER, Compressor, Vector
from fedapp.compression.payload import NotFiniteError, PayloadError, Reader
from fedapp.errors import ConfigError
from fedapp.randomness import Generator

LARGEST = np.finfo(np.float32).max
Grids = NDArray[np.float64]  # scale, zero point and noise of each piece


class QSGD(Compressor):
    """Q_j(v) = |v| sign(v_j) xi_j, where xi_j is |v_j|/|v| rounded at random to a multiple of 1/s."""

    levels: int = Field(16, ge=1, le=32767, description="s: levels of a number's size")
    norm: Literal["l2", "max"] = Field(
        "l2", description='what sizes are measured by: "l2", or "max", the largest number'
    )
    bucket: int = Field(0, ge=0, le=1 << 40, description="numbers that share a norm; 0: all")
    name: ClassVar[str] = "qsgd"
    codec: ClassVar[int] = 2
    unbiased: ClassVar[bool] = True

    def write(self, norms: Vector, symbols: NDArray[np.int32]) -> bytes:
        """Write the norms, and the levels with their signs."""
        return norms.astype("<f4").tobytes() + integers.pack(symbols, 2 * self.levels + 1)

    def parse(self, reader: Reader, size: int) -> tuple[Vector, NDArray[np.int32]]:
        """Read norms and levels."""
        norms = reader.numbers("<f4", self._buckets(size))
        if not (np.isfinite(norms) & (norms >= 0)).all():
            raise PayloadError("a norm in it is negative or not finite")
        return norms, integers.unpack(reader, size, 2 * self.levels + 1)

    def quantize(self, v: Vector, rng: Generator) -> tuple[Vector, NDArray[np.int32]]:
        """Return each bucket's norm, and the levels 0, -1, 1, -2, 2, ... as 0, 1, 2, 3, 4, ..."""
        norms = self._norms(v)
        divisors = np.where(norms > 0, norms, np.float32(1))
        exact = np.float32 if self.levels < 256 else np.float64
        symbols = np.empty(v.size, np.int32)
        for start in range(0, v.size, CHUNK):
            level: NDArray[Any] = v[start : start + CHUNK].astype(exact, copy=False)
            level = level / self._of_each(divisors, start, v.size)
            level *= exact(self.levels)
            level += rng.random(level.size, np.float32)
            np.floor(level, out=level)
            np.minimum(level, self.levels, out=level)  # where adding has rounded up
            signed = level.astype(np.int32)
            np.bitwise_xor(signed << 1, signed >> 31, out=symbols[start : start + CHUNK])
        return norms, symbols

    def dequantize(self, norms: Vector, symbols: NDArray[np.int32]) -> Vector:
        """Return |v| sign xi."""
        vector = np.empty(symbols.size, np.float32)
        for start in range(0, symbols.size, CHUNK):
            part = symbols[start : start + CHUNK]
            level = vector[start : start + CHUNK]
            level[:] = (part >> 1) ^ -(part & 1)
            level /= np.float32(self.levels)
            level *= self._of_each(norms, start, symbols.size)
        return vector

    def _buckets(self, size: int) -> int:
        return -(-size // (self.bucket or max(size, 1)))

    def _norms(self, v: Vector) -> Vector:
        whole = v.size // self.bucket * self.bucket if self.bucket else 0
        rows = [v[:whole].reshape(-1, self.bucket or 1), v[whole:].reshape(1, -1)]
        rows = [r for r in rows if r.size]
        largest = [np.maximum(r.max(axis=1), -r.min(axis=1)) for r in rows]
        norms = np.concatenate([np.zeros(0, np.float32), *largest])
        if self.norm == "l2":
            squares = [np.einsum("ij,ij->i", r, r, dtype=np.float64) for r in rows]
            with np.errstate(over="ignore"):
                l2 = np.sqrt(np.concatenate([np.zeros(0), *squares])).astype(np.float32)
            norms = np.maximum(norms, l2)  # no smaller than it, however both were rounded
        if not np.isfinite(norms).all():
            raise NotFiniteError(
                "a vector whose norm is too large for float32 cannot be compressed"
            )
        return norms

    def _of_each(self, norms: Vector, start: int, size: int) -> Vector:
        if len(norms) == 1:
            return norms
        chunk: Vector = norms.take(np.arange(start, min(start + CHUNK, size)) // self.bucket)
        return chunk

    def variants(self) -> list[Compressor]:
        """Halve the levels in two steps each."""
        return self.with_each(
            "levels", sorted({int(32767 * 2 ** (-n / 2)) for n in range(31)} - {0})[::-1]
        )

    def nominal_bits(self, size: int) -> int:
        """Return a sign, log2(s + 1) bits of level for every number, and the norms."""
        level = self.levels.bit_length()
        return size * (1 + level) + BITS_PER_NUMBER * self._buckets(size)

    def variance(self, size: int) -> float:
        """Return min(d/s^2, sqrt(d)/s); with the largest number as norm, d/(4 s^2)."""
        d, s = min(size, self.bucket or size), self.levels
        return min(d / s**2, math.sqrt(d) / s) if self.norm == "l2" else d / (4 * s**2)


class Uniform(Compressor):
    """v ~ scale (q - zero), q in 0 .. 2^bits - 1, zero a whole number, so that 0 stays 0.

    With one bit there is no level to spare for that, and q chooses the lowest or the highest number.
    `zero_point_noise` R adds a random whole number in [-R, R] to the zero point that is sent: what
    is decoded is off by that many steps, as in FedCOM's figure 9.
    """

    bits: int = Field(8, ge=1, le=16, description="bits per number, 1 to 16")
    rounding: Literal["stochastic", "nearest"] = Field(
        "stochastic", description='rounding to a level: "stochastic" (unbiased) or "nearest"'
    )
    scope: Literal["tensor", "vector"] = Field(
        "tensor",
        description='what shares a scale and a zero point: each "tensor", or the whole "vector"',
    )
    zero_point_noise: int = Field(
        0,
        ge=0,
        le=1 << 40,
        description="R: what is decoded is off by a random whole number of steps in [-R, R]",
    )
    # Sizes of the pieces with their own scale, which `for_tensors` sets; (): one piece.
    tensors: tuple[Annotated[int, Field(ge=0)], ...] = Field((), exclude=True)
    name: ClassVar[str] = "uniform"
    codec: ClassVar[int] = 3

    def for_tensors(self, sizes: tuple[int, ...]) -> "Uniform":
        """Give tensors their own scales, if the scope is the tensor."""
        return self.model_copy(update={"tensors": sizes}) if self.scope == "tensor" else self

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Rounding at random is."""
        return self.rounding == "stochastic"

    def write(self, grids: Grids, symbols: NDArray[np.int32]) -> bytes:
        """Write scales and zero points, and the symbols."""
        return grids.astype("<f8").tobytes() + integers.pack(symbols, 1 << self.bits)

    def parse(self, reader: Reader, size: int) -> tuple[Grids, NDArray[np.int32]]:
        """Read grids and symbols."""
        count = len(self._pieces(size))
        grids = reader.numbers("<f8", 3 * count).reshape(count, 3)
        if not np.isfinite(grids).all():
            raise PayloadError("a scale in it is not finite")
        return grids, integers.unpack(reader, size, 1 << self.bits)

    def quantize(self, v: Vector, rng: Generator) -> tuple[Grids, NDArray[np.int32]]:
        """Return each piece's scale, zero point and noise; and levels, by distance from zero."""
        symbols = np.empty(v.size, np.int32)
        grids = []
        for piece in self._pieces(v.size):
            scale, zero = self._grid(v[piece])
            rank = self._rank(zero)
            for part, out in zip(chunks(v[piece]), chunks(symbols[piece]), strict=True):
                level = part.astype(np.float64)
                level /= scale
                level += zero
                level += rng.random(part.size, np.float32) if self.unbiased else 0.5
                np.floor(level, out=level)
                np.clip(level, 0, self.highest, out=level)
                out[:] = rank.take(level.astype(np.int32))
            noise = 0
            if self.zero_point_noise and v[piece].min() < v[piece].max():
                R = self.zero_point_noise
                noise = int(rng.integers(-R, R, endpoint=True))
            grids.append((scale, zero, noise))
        return np.array(grids, np.float64).reshape(-1, 3), symbols

    def dequantize(self, grids: Grids, symbols: NDArray[np.int32]) -> Vector:
        """Return scale (q - zero), off by the noise."""
        vector = np.empty(symbols.size, np.float32)
        for (scale, zero, noise), piece in zip(grids, self._pieces(symbols.size), strict=True):
            level_of = np.empty(self.highest + 1)
            level_of[self._rank(zero)] = np.arange(self.highest + 1)
            with np.errstate(all="ignore"):  # what is decoded is checked
                value_of = (scale * (level_of - zero - noise)).clip(-LARGEST, LARGEST)
            value_of = value_of.astype(np.float32)
            for part, out in zip(chunks(symbols[piece]), chunks(vector[piece]), strict=True):
                out[:] = value_of.take(part)
        return vector

    @property
    def highest(self) -> int:
        """The highest level."""
        return (1 << self.bits) - 1

    def _pieces(self, size: int) -> list[slice]:
        tensors = self.tensors or (size,)
        if sum(tensors) != size:
            raise ConfigError(f"uniform has tensors of {sum(tensors)} numbers for {size}.")
        ends = np.cumsum(tensors).tolist()
        return [slice(end - n, end) for end, n in zip(ends, tensors, strict=True) if n]

    def _grid(self, v: Vector) -> tuple[float, float]:
        low, high = float(v.min()), float(v.max())
        if low == high:
            return (low, -1.0) if low else (1.0, 0.0)  # level 0 is that number
        if self.bits == 1:
            return high - low, -low / (high - low)
        scale = (high - low) / (self.highest - 1)  # one level less, to round the zero point up
        return scale, float(np.ceil(-low / scale))

    def _rank(self, zero: float) -> NDArray[np.int32]:
        """Return the levels' ranks by their distance from the zero point: small for the frequent."""
        centre = int(np.clip(np.rint(zero), 0, self.highest))
        shorter = min(centre, self.highest - centre)
        away = np.arange(self.highest + 1) - centre
        beyond = np.abs(away) + shorter
        return np.where(np.abs(away) <= shorter, 2 * np.abs(away) - (away > 0), beyond).astype(
            np.int32
        )

    def variants(self) -> list[Compressor]:
        """Leave out one bit after the other."""
        return self.with_each("bits", range(16, 0, -1))

    def nominal_bits(self, size: int) -> int:
        """Return `bits` a number, and a scale and a zero point for each piece."""
        return self.bits * size + 2 * BITS_PER_NUMBER * len(self._pieces(size))

    def variance(self, size: int) -> float:
        """Return the worst case over the pieces: two numbers, and zeros otherwise."""
        largest = max((p.stop - p.start for p in self._pieces(size)), default=0)
        return 2 * largest / max(self.highest - 1, 1) ** 2 * self._error

    def typical_variance(self, size: int) -> float:
        """Return q for Gaussian numbers, whose range is about 2 sqrt(2 ln d) standard deviations."""
        return 8 * math.log(max(size, 2)) / max(self.highest - 1, 1) ** 2 * self._error

    @property
    def _error(self) -> float:
        """Mean square error in steps."""
        return 0.25 + self.zero_point_noise * (self.zero_point_noise + 1) / 3
