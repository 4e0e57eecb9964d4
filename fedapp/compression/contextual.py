"""`contextual`: few bytes for real updates, by chances that depend on rows, columns and neighbours.

One step for the whole vector, because squared error counts alike everywhere; numbers are rounded so that a bit is spent
only where it lowers the error enough; decoded at the mean of what was rounded to them; coded as `kernels/contextual.py`
says. It is biased: use it with error feedback.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedapp.compression import contexts
from fedapp.compression.compressor import BITS_PER_NUMBER, Compressor, Vector
from fedapp.compression.payload import OVERHEAD, NotFiniteError, PayloadError, Reader
from fedapp.models.layout import Piece
from fedapp.randomness import Generator

PRICE = 0.08  # squared error, in steps, that a bit may save: about the slope of error against bits
HEAD = 8 + 3  # bytes of step and offsets
FINEST, COARSEST = 0.01, 1000.0  # steps, in root mean squares
FINENESS = 64.0  # offsets are in 64ths of a step
TRIES = 16
NOTHING = -20.0  # logarithm of a figure that says nothing of how far it is
CLOSE = 0.02  # a search ends when it is that close to its target

Levels = NDArray[np.int32]
Offsets = NDArray[np.int8]
Words = NDArray[np.uint16]
Parts = tuple[float, Offsets, Levels, Words]


class Quantized(NamedTuple):
    """A vector with some step: its parts, and what they cost."""

    parts: Parts
    nmse: float
    size: int  # bytes of the words


class Contextual(Compressor):
    """Whole multiples of one step, the rarer the more bits."""

    step: float = Field(
        2.0,
        ge=FINEST,
        le=COARSEST,
        description="distance of neighbouring values, in root mean squares of the vector",
    )
    nmse: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="if > 0, the step is chosen so that |Q(v) - v|^2 / |v|^2 is about this, from 0.00001",
    )
    max_bytes: int = Field(
        0, ge=0, description="if > 0, the step is chosen so that a payload is at most this long"
    )
    # What the vector is made of, which `for_pieces` sets; (): one row.
    pieces: tuple[Piece, ...] = Field((), exclude=True)
    name: ClassVar[str] = "contextual"
    codec: ClassVar[int] = 20

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if self.nmse and self.max_bytes:
            raise ValueError(
                "contextual.nmse and contextual.max-bytes both choose the step: set one of them to 0"
            )
        if 0 < self.nmse < 1e-5:
            raise ValueError("contextual.nmse should be 0 or at least 0.00001")
        if 0 < self.max_bytes < OVERHEAD + HEAD:
            raise ValueError(f"contextual.max-bytes should be 0 or at least {OVERHEAD + HEAD}")
        return self

    def for_pieces(self, pieces: tuple[Piece, ...]) -> "Contextual":
        """Return the same for a vector that is made of other tensors."""
        return self.model_copy(update={"pieces": pieces})

    def quantize(self, v: Vector, rng: Generator) -> Parts:
        """Return the step, by how much magnitudes 1, 2 and more are off, whole numbers, and these as coded."""
        rms = math.sqrt(np.einsum("i,i", v, v, dtype=np.float64) / max(v.size, 1))
        if rms == 0:
            return _zeros(v.size)
        if self.nmse:
            first = math.sqrt(8 * self.nmse) * rms
            return self._searched(v, first, rms, lambda found: found.nmse / self.nmse, 1).parts
        if self.max_bytes:
            # Half a byte more: sizes are divided by it, and it may be 0.
            limit = self.max_bytes - OVERHEAD - HEAD + 0.5
            return self._searched(v, 2 * rms, rms, lambda found: found.size / limit, -1).parts
        return self._with_step(v, self.step * rms, rms).parts

    def _with_step(self, v: Vector, step: float, rms: float) -> Quantized:
        from fedapp.compression.kernels import contextual as kernel

        inverse = 1 / step
        if 1e-30 < inverse < 1e30:
            scaled = v * np.float32(inverse)
        else:  # not to be written as a float32
            scaled = (v / np.float64(step)).astype(np.float32)
        levels, words = contexts.coded(scaled, PRICE, self.pieces)
        sums, counts = np.zeros(3), np.zeros(3, np.int64)
        error = kernel.fit(scaled, levels, sums, counts)
        if not counts.any():
            return Quantized(_zeros(v.size), 1.0, 0)
        offsets = np.rint(FINENESS * sums / np.maximum(counts, 1)).clip(-127, 127)
        shift = offsets / FINENESS
        error += float((counts * shift**2 - 2 * shift * sums).sum())
        nmse = error * (step / rms) ** 2 / v.size
        return Quantized((step, offsets.astype(np.int8), levels, words), nmse, 2 * len(words))

    def _searched(
        self, v: Vector, step: float, rms: float, of: Callable[[Quantized], float], sign: int
    ) -> Quantized:
        """Return what some step gives for which a figure is at most 1, and close to it where that is possible.

        The figure grows with the step if `sign` is 1, and shrinks if it is -1.
        """
        # Whether it fits -> the last logarithms of step and figure.
        tried: dict[bool, tuple[float, float]] = {}
        best: Quantized | None = None
        for _ in range(TRIES):
            found = self._with_step(v, step, rms)
            figure = max(of(found), 1e-9)  # 0 bytes have a logarithm, too
            if figure <= 1 and (best is None or figure > of(best)):
                best = found
            if 1 - CLOSE <= figure <= 1:
                break
            tried[figure <= 1] = math.log(step), math.log(figure)
            before = step
            step = min(max(math.exp(_next(tried, sign)), FINEST * rms), COARSEST * rms)
            if step == before:
                break
        return best or found

    def dequantize(self, step: float, offsets: Offsets, levels: Levels, words: Words) -> Vector:
        """Return whole numbers times the step, off by the means."""
        from fedapp.compression.kernels import contextual as kernel

        vector: Vector = np.empty(levels.size, np.float32)
        kernel.place(levels, offsets / FINENESS, step, vector)
        return vector

    def write(self, step: float, offsets: Offsets, levels: Levels, words: Words) -> bytes:
        """Write step, offsets and words."""
        head = np.array([step], "<f8").tobytes() + offsets.tobytes()
        return head + contexts.written(words)

    def parse(self, reader: Reader, size: int) -> Parts:
        """Read what was written; the numbers are decoded."""
        step = float(reader.numbers("<f8", 1)[0])
        offsets = reader.numbers("i1", 3)
        if step == 0:
            if len(reader) or offsets.any():
                raise PayloadError("it holds numbers without a step")
            return _zeros(size)
        if not 0 < step < math.inf:
            raise NotFiniteError("its step is not a finite number above 0")
        levels, words = contexts.unpack(reader, size, self.pieces)
        return step, offsets, levels, words

    def variants(self) -> list[Compressor]:
        """Widen the step, by a twelfth of a doubling each."""
        plain = self.model_copy(update={"nmse": 0.0, "max_bytes": 0})
        return plain.with_each("step", [min(FINEST * 2 ** (n / 12), COARSEST) for n in range(201)])

    def nominal_bits(self, size: int) -> int:
        """Return the bits of a code of fixed length for Gaussian numbers, or what the limit allows."""
        if self.max_bytes:
            return min(8 * self.max_bytes, BITS_PER_NUMBER * size)
        step = math.sqrt(4 * self.nmse) if self.nmse else self.step
        values = 2 * math.ceil(6 / step) + 1
        return math.ceil(size * math.log2(values)) + 8 * HEAD

    def variance(self, size: int) -> float:
        """Return 1: where all numbers round to 0, all is lost."""
        return 1.0

    def typical_variance(self, size: int) -> float:
        """Return the error for Gaussian numbers, or the one that is aimed at."""
        return self.nmse or (1.0 if self.max_bytes else _gaussian_error(self.step))


def _zeros(size: int) -> Parts:
    """Return the parts of a vector of zeros, which has no step."""
    return 0.0, np.zeros(3, np.int8), np.zeros(size, np.int32), np.zeros(0, np.uint16)


def _next(tried: dict[bool, tuple[float, float]], sign: int) -> float:
    """Return the logarithm of a step that may give a figure just below 1."""
    aim = -CLOSE / 2
    if len(tried) == 2:
        (x, y), (other, value) = tried[True], tried[False]
        share = (aim - y) / (value - y) if y > NOTHING else 0.5
        return x + min(max(share, 0.05), 0.95) * (other - x)
    ((x, y),) = tried.values()
    return x + sign * min(max((aim - y) / 1.4, -3.0), 3.0)


@lru_cache
def _gaussian_error(step: float) -> float:
    """Return the squared error of standard Gaussian numbers that are rounded down below 0.6 steps."""
    x = np.linspace(0, 8, 8001)
    density = np.exp(-(x**2) / 2)
    cells = np.where(x < 0.6 * step, 0, np.floor(x / step + 0.44)).astype(np.int64)
    mass = np.bincount(cells, density)
    centres = np.bincount(cells, density * x) / np.maximum(mass, 1e-300)
    centres[0] = 0.0
    return float((density * (x - centres[cells]) ** 2).sum() / (density * x**2).sum())
