"""What every compressor shares: a vector to bytes and back, framed and checked."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.integers import CHUNK
from fedapp.compression.payload import PayloadError, Reader, seal, unseal
from fedapp.randomness import Generator

Vector = NDArray[np.float32]
BITS_PER_NUMBER = 32


class Compressor(ABC):
    """Subclasses are frozen dataclasses of their settings, and code the body of a payload."""

    codec: ClassVar[int]  # in the payload's frame
    unbiased: ClassVar[bool] = False  # E Q(v) = v

    def encode(self, vector: NDArray[Any], rng: Generator) -> bytes:
        """Compress a vector; `rng` decides how it is rounded."""
        v = np.ascontiguousarray(vector, np.float32)
        if v.ndim != 1:
            raise ValueError(f"a vector is compressed, not an array of shape {v.shape}")
        if not all(np.isfinite(part).all() for part in chunks(v)):
            raise ValueError("a vector with numbers that are not finite cannot be compressed")
        return seal(self.codec, v.size, self.body(v, rng), self._key)

    def decode(self, data: bytes | memoryview, size: int) -> Vector:
        """Return the vector of `size` numbers that a payload stands for, or raise PayloadError."""
        reader = unseal(data, self.codec, size, self._key)
        vector = self.read(reader, size)
        reader.end()
        if not all(np.isfinite(part).all() for part in chunks(vector)):
            raise PayloadError("it holds numbers that are not finite")
        return vector

    @cached_property
    def _key(self) -> bytes:
        return repr(self).encode()

    @abstractmethod
    def body(self, v: Vector, rng: Generator) -> bytes:
        """Write the payload without its frame."""

    @abstractmethod
    def read(self, reader: Reader, size: int) -> Vector:
        """Read what `body` wrote."""

    @abstractmethod
    def nominal_bits(self, size: int) -> int:
        """Return the bits of a vector as the papers count them, without entropy coding."""

    @abstractmethod
    def variance(self, size: int) -> float:
        """Return q, where E|Q(v) - v|^2 <= q|v|^2."""


def chunks(v: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Cut a vector into pieces that fit the processor's cache."""
    for start in range(0, v.size, CHUNK):
        yield v[start : start + CHUNK]
