"""Sparsifiers: a part of the numbers, and where they are."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedapp.compression import integers
from fedapp.compression.compressor import Compressor, Parts, Vector
from fedapp.compression.payload import NotFiniteError, Reader
from fedapp.compression.quantizers import Identity
from fedapp.errors import ConfigError
from fedapp.randomness import Generator

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class _Sparsifier(Compressor):
    """k of d numbers; `values` compresses those."""

    ratio: float = 0.1  # k/d
    values: Compressor = field(default_factory=Identity)

    def __post_init__(self) -> None:
        """Check the settings."""
        if not 0 < self.ratio <= 1:
            raise ConfigError("A sparsifier's ratio of numbers kept lies above 0 and up to 1.")
        if not isinstance(self.values, Compressor):
            raise ConfigError("What compresses a sparsifier's numbers is a compressor itself.")
        object.__setattr__(self, "ratio", float(self.ratio))  # 1 and 1.0 are the same settings

    def kept(self, size: int) -> int:
        """Return k."""
        return min(size, math.ceil(self.ratio * size - 1e-9))  # 0.07 of 100 is 7

    def choose(self, v: Vector, rng: Generator) -> Positions:
        """Return the positions that are kept, in order."""
        raise NotImplementedError

    def quantize(self, v: Vector, rng: Generator) -> Parts:
        """Return the positions, what `values` makes of the numbers there, and the size."""
        positions = self.choose(v, rng)
        return positions, self.values.quantize(v[positions], rng), v.size

    def dequantize(self, positions: Positions, kept: Parts, size: int) -> Vector:
        """Put the numbers in their places; the rest is 0."""
        vector = np.zeros(size, np.float32)
        vector[positions] = self.values.dequantize(*kept)
        return vector

    def write(self, positions: Positions, kept: Parts, size: int) -> bytes:
        """Write the positions and the numbers."""
        return integers.pack_positions(positions, size) + self.values.write(*kept)

    def parse(self, reader: Reader, size: int) -> Parts:
        """Read positions and numbers."""
        positions = integers.unpack_positions(reader, self.kept(size), size)
        return positions, self.values.parse(reader, self.kept(size)), size

    def nominal_bits(self, size: int) -> int:
        """Return the numbers' bits, and log2(d) for the position of each."""
        k = self.kept(size)
        return self.values.nominal_bits(k) + k * math.ceil(math.log2(max(size, 1)))


@dataclass(frozen=True)
class TopK(_Sparsifier):
    """The k largest; biased, so it wants error feedback."""

    codec: ClassVar[int] = 4

    def choose(self, v: Vector, rng: Generator) -> Positions:
        """Choose the largest; of equals the first."""
        k, magnitude = self.kept(v.size), np.abs(v)
        if k == v.size:
            return np.arange(k)
        least = np.partition(magnitude, v.size - k)[v.size - k]
        above = np.flatnonzero(magnitude > least)
        equal = np.flatnonzero(magnitude == least)[: k - len(above)]
        return np.sort(np.concatenate([above, equal]))

    def variance(self, size: int) -> float:
        """Return what is left out at worst, and the error of what is kept."""
        k = self.kept(size)
        return 1 - k / max(size, 1) + self.values.variance(k)


@dataclass(frozen=True)
class RandK(_Sparsifier):
    """k numbers at random, times d/k."""

    codec: ClassVar[int] = 5

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """It is if what compresses the kept numbers is."""
        return self.values.unbiased

    def choose(self, v: Vector, rng: Generator) -> Positions:
        """Choose at random."""
        return np.sort(rng.choice(v.size, self.kept(v.size), replace=False, shuffle=False))

    def quantize(self, v: Vector, rng: Generator) -> Parts:
        """Scale the numbers that are kept up for the rest."""
        positions = self.choose(v, rng)
        with np.errstate(over="ignore"):
            kept = v[positions] * np.float32(v.size / max(self.kept(v.size), 1))
        if not np.isfinite(kept).all():
            raise NotFiniteError("a vector whose numbers overflow times d/k cannot be compressed")
        return positions, self.values.quantize(kept, rng), v.size

    def variance(self, size: int) -> float:
        """Return d/k - 1, and the error of what is kept."""
        factor = size / max(self.kept(size), 1)
        return factor - 1 + factor * self.values.variance(self.kept(size))
