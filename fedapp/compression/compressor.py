"""What every compressor shares: a vector to bytes and back, framed and checked."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.cells import chunks
from fedapp.compression.payload import NotFiniteError, Reader, seal, unseal
from fedapp.models.layout import Piece
from fedapp.randomness import Generator
from fedapp.tables import Table

Vector = NDArray[np.float32]
Parts = tuple[Any, ...]
BITS_PER_NUMBER = 32


class Compressor(Table, ABC):
    """A table of settings, which is its table of config keys, too.

    A vector is quantized into parts, and those are written. `quantize` and `parse` return the same parts; `write` and
    `dequantize` take them.
    """

    name: ClassVar[str]  # in the config
    codec: ClassVar[int] = 255  # in the payload's frame; fedapp's own are below 128
    unbiased: ClassVar[bool] = False  # E Q(v) = v

    def encode(self, vector: NDArray[Any], rng: Generator) -> bytes:
        """Compress a vector; `rng` decides how it is rounded."""
        return self._seal(vector.size, self.quantize(_checked(vector), rng))

    def transmit(self, vector: NDArray[Any], rng: Generator) -> tuple[bytes, Vector]:
        """Compress a vector; return the payload and, without decoding it, what it stands for."""
        parts = self.quantize(_checked(vector), rng)
        return self._seal(vector.size, parts), self.dequantize(*parts)

    def decode(self, data: bytes | memoryview, size: int) -> Vector:
        """Return the vector of `size` numbers that a payload stands for, or raise PayloadError."""
        reader = unseal(data, self.codec, size, self.key)
        parts = self.parse(reader, size)
        reader.end()
        vector = self.dequantize(*parts)
        if not all(np.isfinite(part).all() for part in chunks(vector)):
            raise NotFiniteError("it holds numbers that are not finite")
        return vector

    def complete(self, others: "Mapping[str, Compressor]") -> "Compressor":
        """Return it with the settings of others in the place of their names, where it uses some."""
        return self

    def for_tensors(self, sizes: tuple[int, ...]) -> "Compressor":
        """Return the same for a vector that is made of other tensors."""
        return self

    def for_pieces(self, pieces: tuple[Piece, ...]) -> "Compressor":
        """Return the same for a vector that is made of other tensors, whose rows are known, too."""
        return self.for_tensors(tuple(piece.size for piece in pieces))

    def variants(self) -> "list[Compressor]":
        """Return the same compressor from fine to coarse, at most 256 of them, for a budget of bytes."""
        return [self]

    def with_each(self, key: str, values: Iterable[float]) -> "list[Compressor]":
        """Return the same compressor with each of some values of a key."""
        return [self.model_copy(update={key: value}) for value in values]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with other settings, and hence with another key."""
        copied = super().model_copy(update=update, deep=deep)
        vars(copied).pop("key", None)
        return copied

    def _seal(self, size: int, parts: Parts) -> bytes:
        return seal(self.codec, size, self.write(*parts), self.key)

    @cached_property
    def key(self) -> bytes:
        """Return what a payload's checksum covers beside the payload: the compressor's options."""
        return repr(self).encode()

    @abstractmethod
    def quantize(self, v: Vector, rng: Generator) -> Parts:
        """Take a vector apart."""

    @abstractmethod
    def dequantize(self, *parts: Any) -> Vector:
        """Return the vector that the parts stand for."""

    @abstractmethod
    def write(self, *parts: Any) -> bytes:
        """Write the parts: a payload without its frame."""

    @abstractmethod
    def parse(self, reader: Reader, size: int) -> Parts:
        """Read what `write` wrote."""

    @abstractmethod
    def nominal_bits(self, size: int) -> int:
        """Return the bits of a vector as the papers count them, without entropy coding."""

    @abstractmethod
    def variance(self, size: int) -> float:
        """Return q, where E|Q(v) - v|^2 <= q|v|^2."""

    def typical_variance(self, size: int) -> float:
        """Return about what q comes to for Gaussian numbers."""
        return self.variance(size)


def known() -> dict[str, type[Compressor]]:
    """Return the compressors of this package by their names in the config, in the order of their codecs."""
    found: list[type[Compressor]] = []
    waiting: list[type[Compressor]] = [Compressor]  # type: ignore[type-abstract]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if isinstance(vars(kind).get("name"), str) and kind.__module__.startswith(__package__):
            found.append(kind)
    return {kind.name: kind for kind in sorted(found, key=lambda kind: kind.codec)}


def _checked(vector: NDArray[Any]) -> Vector:
    v: Vector = np.ascontiguousarray(vector, np.float32)
    if vector.ndim != 1:
        raise ValueError(f"a vector is compressed, not an array of shape {vector.shape}")
    if not all(np.isfinite(part).all() for part in chunks(v)):
        raise NotFiniteError("a vector with numbers that are not finite cannot be compressed")
    return v
