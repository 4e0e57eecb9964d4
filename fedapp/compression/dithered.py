"""Subtractive dither: unbiased, with half the error that random rounding has at the same rate.

Ziv, On universal quantization, IEEE Transactions on Information Theory 1985; Zamir and Feder, On universal quantization by
randomized uniform/lattice quantizers, ibid. 1992.

Both sides draw u, uniform in [-1/2, 1/2), from a seed that the payload carries: k = round(v/Delta - u), decoded as
(k + u) Delta. The error is uniform and independent of v. k is coded given u and given the scales of its row and column
(`scales.py`), with a distribution of a family of two parameters (`dither_model.py`).

Where numbers are small beside the step, most of the error would be theirs, and for nothing: they take hardly any
bits. So the step depends on the scale sigma: D = Delta^2/12 is where the slope of an unbiased code's rate,
log2(1 + sigma^2/D)/2, is the same for all. It is lambda where sigma is large, and sqrt(lambda) sigma where it is small.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from fedapp.compression import dither_model
from fedapp.compression.compressor import BITS_PER_NUMBER, Compressor, Vector
from fedapp.compression.payload import PayloadError, Reader
from fedapp.compression.scales import NOTHING, Scales, find_scales
from fedapp.models.layout import Piece, pieces_of
from fedapp.randomness import Generator

LARGEST = np.finfo(np.float32).max
SIGMA = 1.3  # a standard deviation over the mean size: 1.25 of Gaussian numbers, 1.41 of Laplace's
SHAPING = 0.3  # bits: uniform errors cost log2(2 pi e/12)/2 more than Gaussian ones, and models are not exact
SMALLEST_STEP, LARGEST_STEP = 1e-70, 1e70
SMALLEST_NMSE = 1e-12  # float32 has no smaller error
Ints = NDArray[np.int64]


def _square_error(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return D/lambda where sigma^2/lambda is t."""
    with np.errstate(divide="ignore"):
        return 2 / (1 + np.sqrt(1 + 4 / t))


@dataclass(frozen=True)
class Dither:
    """What both sides know of a vector before its numbers are coded."""

    seed: int
    step: float  # the largest: sqrt(12 lambda)
    scales: Scales

    @cached_property
    def u(self) -> NDArray[np.float32]:
        """Draw the dither: 24 bits each of PCG64's own stream, which no version of NumPy changes."""
        count = self.scales.classes.size
        raw = np.random.PCG64(self.seed).random_raw(-(-count // 2)).astype("<u8", copy=False)
        u = (raw.view("<u4")[:count] >> 8).astype(np.float32)
        u += np.float32(0.5 - (1 << 23))  # in the middle of its interval: as often above 0 as below
        u *= np.float32(2.0**-24)
        return u

    @cached_property
    def present(self) -> NDArray[np.int64]:
        """The classes of numbers that are not zero."""
        counts = np.bincount(self.scales.classes.astype(np.int64) - NOTHING, minlength=1)
        return np.flatnonzero(counts[1:])

    @cached_property
    def sigma(self) -> NDArray[np.float64]:
        """The standard deviation of each class that is present, about."""
        return _sigma(self.scales.exponents(self.present))

    @cached_property
    def steps(self) -> NDArray[np.float64]:
        """Delta of each class that is present."""
        t = 12 * (self.sigma / self.step) ** 2
        return self.step * np.sqrt(_square_error(t))

    @cached_property
    def step_of(self) -> NDArray[np.float64]:
        """Delta of every class, 0 of those of zeros, which come last."""
        table = np.zeros(int(self.present.max(initial=0)) + 2)
        table[self.present] = self.steps
        return table


def _sigma(exponents: NDArray[np.float64] | Ints) -> NDArray[np.float64]:
    whole = np.asarray(exponents, np.int64)
    return np.asarray(SIGMA * np.ldexp(np.where(whole & 1, math.sqrt(2), 1.0), whole >> 1))


class Dithered(Compressor):
    """k = round(v/Delta - u), decoded (k + u) Delta, where both sides know u."""

    step: float = Field(
        1.5,
        ge=1e-3,
        le=1e3,
        description="Delta over the root mean square of the vector, of its largest numbers; smaller ones have less",
    )
    nmse: float = Field(
        0.0,
        ge=0,
        le=1e4,
        description="if > 0, the mean square error over that of the vector, and Delta follows from it",
    )
    # The tensors with their rows, which `for_pieces` sets; (): one row.
    pieces: tuple[Piece, ...] = Field((), exclude=True)
    name: ClassVar[str] = "dithered"
    codec: ClassVar[int] = 6
    unbiased: ClassVar[bool] = True

    @field_validator("nmse")
    @classmethod
    def _not_too_small(cls, nmse: float) -> float:
        if 0 < nmse < SMALLEST_NMSE:
            raise ValueError(f"should be 0 or at least {SMALLEST_NMSE:g}")
        return nmse

    def for_pieces(self, pieces: tuple[Piece, ...]) -> "Dithered":
        """Give rows and columns of tensors their own scales."""
        return self.model_copy(update={"pieces": pieces})

    def quantize(self, v: Vector, rng: Generator) -> tuple[Dither, Ints]:
        """Return what both sides know, and k."""
        seed = int(rng.integers(1 << 63))
        squares = float(np.einsum("i,i->", v, v, dtype=np.float64))
        rms = math.sqrt(squares / max(v.size, 1))
        step = (math.sqrt(12 * self.nmse) if self.nmse else self.step) * rms
        step = min(max(step, SMALLEST_STEP), LARGEST_STEP)
        pieces = pieces_of(v.size, self.pieces)
        scales = find_scales(v, pieces, lambda exponents: _cost(exponents, step))
        if self.nmse and squares:
            step = _step_for(self.nmse * squares, scales)
        dither = Dither(seed, step, scales)
        steps = dither.step_of.take(scales.classes)  # the last, of the class -1, is 0
        with np.errstate(divide="ignore", invalid="ignore"):
            k = np.rint(np.divide(v, steps, out=np.zeros(v.size), where=steps > 0) - dither.u)
        return dither, np.where(steps > 0, k, 0).astype(np.int64)

    def dequantize(self, dither: Dither, k: Ints) -> Vector:
        """Return (k + u) Delta."""
        vector = (k + dither.u.astype(np.float64)) * dither.step_of.take(dither.scales.classes)
        return np.asarray(vector.clip(-LARGEST, LARGEST), np.float32)

    def write(self, dither: Dither, k: Ints) -> bytes:
        """Write seed, step, scales and the coded k."""
        if not k.size:
            return b""
        head = np.array(dither.seed, "<u8").tobytes() + np.array(dither.step, "<f8").tobytes()
        return head + dither.scales.write() + dither_model.pack(k, *_coded(dither))

    def parse(self, reader: Reader, size: int) -> tuple[Dither, Ints]:
        """Read what `write` wrote."""
        pieces = pieces_of(size, self.pieces)
        if not size:
            nothing = np.zeros(0, np.int64)
            return Dither(0, 1.0, Scales(pieces, nothing, 0, nothing, nothing)), nothing
        seed, step = reader.number("<u8"), float(reader.numbers("<f8", 1)[0])
        if not SMALLEST_STEP <= step <= LARGEST_STEP:
            raise PayloadError("its step is out of range")
        dither = Dither(seed, step, Scales.read(reader, pieces))
        return dither, dither_model.unpack(reader, *_coded(dither))

    def variants(self) -> list[Compressor]:
        """Widen the step, by a twelfth of a doubling each."""
        plain = self.model_copy(update={"nmse": 0.0})
        return plain.with_each("step", [min(0.001 * 2 ** (n / 12), 1000.0) for n in range(241)])

    def nominal_bits(self, size: int) -> int:
        """Return the bits of Gaussian numbers, half of log2(1 + 1/NMSE), and of seed and step."""
        bits = math.log2(1 + 1 / self.typical_variance(size)) / 2 + SHAPING
        return math.ceil(size * bits) + 4 * BITS_PER_NUMBER

    def variance(self, size: int) -> float:
        """Return Delta^2/12 over the mean square."""
        return self.nmse or self.step**2 / 12

    def typical_variance(self, size: int) -> float:
        """Return the same where all numbers have one scale."""
        t = np.array(12 / self.step**2)
        return self.nmse or float(_square_error(t)) * self.step**2 / 12


def _coded(
    dither: Dither,
) -> tuple[NDArray[np.int16], NDArray[np.float32], Ints, NDArray[np.float64]]:
    return dither.scales.classes, dither.u, dither.present, dither.sigma / dither.steps


def _cost(exponents: NDArray[np.float64], step: float) -> NDArray[np.float64]:
    """Return rate and weighted error of numbers by the exponents of their scale, in bits."""
    t = 12 * (_sigma(exponents) / step) ** 2
    D = _square_error(t)
    return np.log2(1 + t / D) / 2 + D / (2 * math.log(2))


def _step_for(error: float, scales: Scales) -> float:
    """Return the step with which the square error of a vector is `error`."""
    dither = Dither(0, 1.0, scales)
    counts = np.bincount(scales.classes.astype(np.int64) - NOTHING)[1:][dither.present]
    low, high = SMALLEST_STEP, LARGEST_STEP
    for _ in range(64):
        step = math.sqrt(low) * math.sqrt(high)
        steps = Dither(0, step, scales).step_of[dither.present]
        low, high = (step, high) if float((counts * steps**2).sum()) / 12 < error else (low, step)
    return low
