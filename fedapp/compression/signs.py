"""Signs: one bit for every number, and a length for each tensor.

Sign: Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019.
"""

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedapp.compression import integers
from fedapp.compression.compressor import BITS_PER_NUMBER, Compressor, Vector
from fedapp.compression.payload import PayloadError, Reader
from fedapp.models.layout import Piece, pieces_of
from fedapp.randomness import Generator


class Sign(Compressor):
    """sign(v) times the mean of |v|, tensor by tensor; biased, so it wants error feedback. The sign of 0 is +."""

    # Sizes of the tensors, which `for_tensors` sets; (): one.
    tensors: tuple[Annotated[int, Field(ge=0)], ...] = Field((), exclude=True)
    name: ClassVar[str] = "sign"
    codec: ClassVar[int] = 9

    def for_tensors(self, sizes: tuple[int, ...]) -> "Sign":
        """Give tensors their own means."""
        return self.model_copy(update={"tensors": sizes})

    def quantize(self, v: Vector, rng: Generator) -> tuple[Vector, NDArray[np.int32]]:
        """Return each tensor's mean size, and 1 for numbers below 0."""
        sizes = self._sizes(v.size)
        parts = np.split(np.abs(v), np.cumsum(sizes)[:-1]) if sizes else []
        means = np.array([part.mean(dtype=np.float64) for part in parts], np.float32)
        return means, (v < 0).astype(np.int32)

    def dequantize(self, means: Vector, negative: NDArray[np.int32]) -> Vector:
        """Return the means with the numbers' signs."""
        vector = np.repeat(means.astype(np.float32), self._sizes(negative.size))
        return np.asarray(np.where(negative, -vector, vector), np.float32)

    def write(self, means: Vector, negative: NDArray[np.int32]) -> bytes:
        """Write means and signs."""
        return means.astype("<f4").tobytes() + integers.pack(negative, 2)

    def parse(self, reader: Reader, size: int) -> tuple[Vector, NDArray[np.int32]]:
        """Read means and signs."""
        means = reader.numbers("<f4", len(self._sizes(size)))
        if not (np.isfinite(means) & (means >= 0)).all():
            raise PayloadError("a mean in it is negative or not finite")
        return means, integers.unpack(reader, size, 2)

    def _sizes(self, size: int) -> list[int]:
        return [
            piece.size for piece in pieces_of(size, tuple(map(Piece, self.tensors, self.tensors)))
        ]

    def nominal_bits(self, size: int) -> int:
        """Return one bit a number, and the means."""
        return size + BITS_PER_NUMBER * len(self._sizes(size))

    def variance(self, size: int) -> float:
        """Return 1 - 1/d, which one number other than 0 needs."""
        return 1 - 1 / max(self._sizes(size), default=1) + 1e-6

    def typical_variance(self, size: int) -> float:
        """Return 1 - 2/pi."""
        return 1 - 2 / np.pi
