"""A compressor of a user's own: the signs of the largest numbers, times their mean, and broken ones."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.compression import Compressor
from fedapp.compression.compressor import Vector
from fedapp.compression.payload import Reader
from fedapp.randomness import Generator

Signs = NDArray[np.int8]


class ScaledSigns(Compressor):
    """Numbers below a share of the largest become 0, the others their sign times a common scale."""

    name: ClassVar[str] = "scaled-signs"
    codec: ClassVar[int] = 200

    share: float = Field(0.1, ge=0, lt=1, description="of the largest number")

    def quantize(self, v: Vector, rng: Generator) -> tuple[Signs, float]:
        size = np.abs(v)
        kept = (size > self.share * size.max(initial=0)) & (size > 0)
        scale = float(size[kept].mean()) if kept.any() else 0.0
        return (np.sign(v) * kept).astype(np.int8), float(np.float32(scale))

    def dequantize(self, signs: Signs, scale: float) -> Vector:
        return signs.astype(np.float32) * np.float32(scale)

    def write(self, signs: Signs, scale: float) -> bytes:
        return np.float32(scale).tobytes() + signs.tobytes()

    def parse(self, reader: Reader, size: int) -> tuple[Signs, float]:
        scale = float(reader.numbers("<f4", 1)[0])
        return reader.numbers("i1", size), scale

    def nominal_bits(self, size: int) -> int:
        return 2 * size + 32

    def variance(self, size: int) -> float:
        return 1.0


class LowCodec(ScaledSigns):
    name: ClassVar[str] = "low"
    codec: ClassVar[int] = 3


class Incomplete(Compressor):
    codec: ClassVar[int] = 201


class Taken(ScaledSigns):
    name: ClassVar[str] = "topk"
