"""Sparsifiers: a part of the numbers, and where they are.

Ternary: Sattler et al., Robust and Communication-Efficient Federated Learning from Non-IID Data, IEEE Transactions on Neural
Networks and Learning Systems 2020 (sparse ternary compression).
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer

from fedapp.compression import integers
from fedapp.compression.compressor import Compressor, Parts, Vector, known
from fedapp.compression.floats import Identity
from fedapp.compression.payload import NotFiniteError, Reader
from fedapp.compression.signs import Sign
from fedapp.randomness import Generator

Positions = NDArray[np.int64]


def _by_name(values: Any) -> Any:
    """Return the compressor of a name, with its default settings until `complete` sets those of the config."""
    if not isinstance(values, str):
        return values
    dense = {name: c for name, c in known().items() if not issubclass(c, Sparsifier)}
    dense |= {"ternary": Sign}  # signs of what is kept, and 0
    if values not in dense:
        *first, last = map(repr, dense)
        raise ValueError(f"should be {', '.join(first)} or {last}")
    return dense[values]()


class Sparsifier(Compressor):
    """k of d numbers; `values` compresses those."""

    ratio: float = Field(0.1, gt=0, le=1, description="part of the numbers that is sent")
    values: Annotated[
        Compressor, BeforeValidator(_by_name), PlainSerializer(lambda values: values.name)
    ] = Field(
        Identity(),
        description='what compresses these: "none", "dithered", "float16", "ternary", ...: any that is not a sparsifier',
    )

    def complete(self, others: Mapping[str, Compressor]) -> Compressor:
        """Use the settings of the config for what compresses the numbers."""
        return self.model_copy(update={"values": others.get(self.values.name, self.values)})

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

    def variants(self) -> list[Compressor]:
        """Keep fewer and fewer numbers, down to a millionth."""
        return self.with_each("ratio", [2 ** (-n / 8) for n in range(160)])

    def nominal_bits(self, size: int) -> int:
        """Return the numbers' bits, and log2(d) for the position of each."""
        k = self.kept(size)
        return self.values.nominal_bits(k) + k * math.ceil(math.log2(max(size, 1)))


class TopK(Sparsifier):
    """The k largest; biased, so it wants error feedback."""

    ratio: float = Field(
        0.1, gt=0, le=1, description="part of the numbers that is sent: the largest"
    )

    name: ClassVar[str] = "topk"
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


class Ternary(TopK):
    """The k largest as their signs times the mean of their sizes: -m, 0 or m; biased, so it wants error feedback."""

    values: Annotated[
        Compressor, BeforeValidator(_by_name), PlainSerializer(lambda values: values.name)
    ] = Field(Sign(), exclude=True)
    name: ClassVar[str] = "ternary"
    codec: ClassVar[int] = 10

    def variants(self) -> list[Compressor]:
        """Begin with half of the numbers: signs of more have a larger error, of Gaussian numbers at least."""
        return super().variants()[8:]

    def variance(self, size: int) -> float:
        """Return what top-1 leaves at worst: |v|_1^2/k of the kept numbers is what the signs catch."""
        return 1 - 1 / max(size, 1) + 1e-6


class RandK(Sparsifier):
    """k numbers at random, times d/k."""

    ratio: float = Field(
        0.1,
        gt=0,
        le=1,
        description="part of the numbers that is sent: chosen at random, and scaled up",
    )

    name: ClassVar[str] = "randk"
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
