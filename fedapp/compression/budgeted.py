"""A budget of bytes: of the settings of a compressor, the finest whose payload fits.

The settings are tried on the vector itself, each with a copy of the generator, so that what is sent does not depend on
how many were tried. The payload says which was chosen. Which one fits depends a little on how numbers were
rounded, so an unbiased compressor stays unbiased only up to the difference between neighbouring settings.
"""

import copy
from functools import cached_property
from typing import ClassVar

import numpy as np
from pydantic import Field

from fedapp.compression.compressor import Compressor, Parts, Vector
from fedapp.compression.payload import OVERHEAD, PayloadError, Reader
from fedapp.errors import ConfigError
from fedapp.models.layout import Piece
from fedapp.randomness import Generator

MOST_VARIANTS = 256  # their numbers are bytes


class Budgeted(Compressor):
    """Any compressor, at the finest of its `variants` whose payload fits a number of bytes."""

    inner: Compressor
    most_bytes: float = Field(0.0, ge=0)  # for one vector; 0: by its size
    bits: float = Field(0.0, ge=0)  # for one number
    codec: ClassVar[int] = 12

    @property
    def name(self) -> str:  # type: ignore[override]
        """The compressor's."""
        return self.inner.name

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """It is if the compressor is."""
        return self.inner.unbiased

    def for_pieces(self, pieces: tuple[Piece, ...]) -> "Budgeted":
        """Return the same for a vector that is made of other tensors."""
        inner = self.inner.for_pieces(pieces)
        return Budgeted(inner=inner, most_bytes=self.most_bytes, bits=self.bits)

    @cached_property
    def settings(self) -> list[Compressor]:
        """The compressor's variants, from fine to coarse."""
        return self.inner.variants()[:MOST_VARIANTS]

    def limit(self, size: int) -> int:
        """Return the most bytes that a vector may take."""
        return int(self.most_bytes or self.bits * size / 8)

    def quantize(self, v: Vector, rng: Generator) -> tuple[int, Parts, bytes]:
        """Return the number of the finest variant that fits, its parts, and its body; bisect for it."""
        coarse, fine = len(self.settings) - 1, 0
        best = self._tried(coarse, v, rng)
        self._demand(best, v.size)
        while fine < coarse:
            middle = (fine + coarse) // 2
            tried = self._tried(middle, v, rng)
            if self._bytes(tried) <= self.limit(v.size):
                coarse, best = middle, tried
            else:
                fine = middle + 1
        return best

    def rehearse(self, size: int) -> None:
        """Raise ConfigError if not even the coarsest variant fits, as far as Gaussian numbers tell."""
        rng = np.random.default_rng(0)
        v = rng.normal(size=size).astype(np.float32)
        self._demand(self._tried(len(self.settings) - 1, v, rng), size)

    def _demand(self, coarsest: tuple[int, Parts, bytes], size: int) -> None:
        if self._bytes(coarsest) > self.limit(size):
            raise ConfigError(
                f"The uplink-budget is {self.limit(size):,} bytes for a vector of {size:,} numbers, and {self.name} takes "
                f"{self._bytes(coarsest):,} at least: raise uplink-budget, or choose another compressor."
            )

    def _tried(self, number: int, v: Vector, rng: Generator) -> tuple[int, Parts, bytes]:
        variant = self.settings[number]
        parts = variant.quantize(v, copy.deepcopy(rng))
        return number, parts, variant.write(*parts)

    def _bytes(self, tried: tuple[int, Parts, bytes]) -> int:
        return OVERHEAD + 1 + len(tried[2])

    def dequantize(self, number: int, parts: Parts, body: bytes) -> Vector:
        """Return what the variant makes of its parts."""
        return self.settings[number].dequantize(*parts)

    def write(self, number: int, parts: Parts, body: bytes) -> bytes:
        """Write the variant's number and its body."""
        return bytes([number]) + body

    def parse(self, reader: Reader, size: int) -> tuple[int, Parts, bytes]:
        """Read which variant it is, and what it wrote."""
        number = reader.number("u1")
        if number >= len(self.settings):
            raise PayloadError(f"there is no setting {number} of its compressor")
        return number, self.settings[number].parse(reader, size), b""

    def nominal_bits(self, size: int) -> int:
        """Return the bits of the budget."""
        return 8 * self.limit(size)

    def variance(self, size: int) -> float:
        """Return q of the finest variant whose nominal bits are within the budget."""
        return self._expected(size).variance(size)

    def typical_variance(self, size: int) -> float:
        """Return the same for Gaussian numbers."""
        return self._expected(size).typical_variance(size)

    def _expected(self, size: int) -> Compressor:
        limit = 8 * self.limit(size)
        fitting = (c for c in self.settings if c.nominal_bits(size) <= limit)
        return next(fitting, self.settings[-1])


def with_budget(compressor: Compressor, budget: tuple[float, str], vectors: int) -> Budgeted:
    """Return a compressor for a client that sends some vectors: an even share of the bytes, or bits a number."""
    amount, unit = budget
    if unit == "bits":
        return Budgeted(inner=compressor, bits=amount)
    return Budgeted(inner=compressor, most_bytes=amount / vectors)
