"""Vectors on a grid whose step is a power of two, as bytes: whole, or as the difference to another one.

Grids with such steps nest: two vectors on grids with the steps 2^e and 2^f are both whole numbers of steps of the finer
one, and so is their difference. What is sent are these whole numbers, entropy-coded, so the receiver gets the vector
bit by bit. A vector that no grid of this kind holds (numbers that are not finite, or too many steps long) is sent as
it is.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.compression import contexts, integers
from fedapp.compression.contexts import Pieces
from fedapp.compression.payload import PayloadError, Reader, seal, unseal

Numbers = NDArray[Any]
CODEC = 100  # in the payload's frame
AS_IT_IS, WHOLE, DIFFERENCE = 0, 1, 2  # what a payload holds
# Types of vectors, with the bits of their significands.
TYPES: dict[np.dtype[Any], int] = {np.dtype(np.float32): 24, np.dtype(np.float64): 53}
CONTEXTUAL = 64  # instead of a width: small numbers, coded by rows and columns
SMALL = 4.0  # mean magnitude; coding larger ones that way takes long, and saves little
WIDEST = 51  # bits of a whole number with its sign; the cells of `integers` are exact below 2^53
ZERO = 2000  # exponent of a vector of zeros: it is on every grid
EXPONENTS = range(-1074, ZERO + 1)
_HEAD = np.dtype([("how", "u1"), ("type", "u1"), ("exponent", "<i2"), ("width", "u1")])


@dataclass(frozen=True)
class OnGrid:
    """A vector whose numbers are multiples of 2^exponent; None: it is on no grid, and is sent as it is."""

    vector: Numbers
    exponent: int | None

    def steps(self, exponent: int) -> NDArray[np.int64] | None:
        """Return the numbers as multiples of 2^exponent; None if some are not, or too large."""
        return _steps(self.vector, exponent)


def exponent_of(size: float) -> int | None:
    """Return floor(log2(size)); None if size is 0, or not finite."""
    return math.frexp(size)[1] - 1 if 0 < size < math.inf else None


def rms(vector: Numbers) -> float:
    """Return the root of the mean square, however large or small the numbers are."""
    if not vector.size or not (largest := float(np.abs(vector).max())):
        return 0.0
    if not math.isfinite(largest):
        return math.inf
    scaled = vector.astype(np.float64) / largest
    return largest * math.sqrt(float(np.square(scaled).mean()))


def round_to(vector: Numbers, exponent: int) -> OnGrid:
    """Round a vector to multiples of 2^exponent."""
    if not np.isfinite(vector).all():
        return OnGrid(vector.copy(), None)
    if not vector.any():
        return OnGrid(np.zeros_like(vector), ZERO)
    exponent = max(exponent, EXPONENTS[0])
    bits = TYPES[vector.dtype]
    with np.errstate(all="ignore"):
        rounded = _scaled(np.rint(_scaled(vector, -exponent)), exponent).astype(vector.dtype)
        # A number that long is a multiple of the step already.
        rounded = np.where(np.abs(vector) >= np.ldexp(1.0, exponent + bits), vector, rounded)
    rounded += 0  # -0 becomes 0, which is all that whole numbers can say
    if not np.isfinite(rounded).all():
        return OnGrid(vector.copy(), None)
    return OnGrid(rounded, exponent if rounded.any() else ZERO)


def encode(new: OnGrid, base: OnGrid | None = None, pieces: Pieces = ()) -> bytes:
    """Return a vector as a payload; with a base, as the difference to that if it is one of whole numbers."""
    plain = new.vector.nbytes
    for other in (base, None) if base else (None,):
        body = _body(new, other, pieces)
        if body is not None and len(body) < plain:
            return seal(CODEC, new.vector.size, body, b"")
    vector = np.ascontiguousarray(new.vector, new.vector.dtype.newbyteorder("<"))
    body = _head(AS_IT_IS, new.vector.dtype, 0, 0) + vector.tobytes()
    return seal(CODEC, new.vector.size, body, b"")


def decode(
    data: bytes | memoryview, size: int, base: Numbers | None = None, pieces: Pieces = ()
) -> Numbers:
    """Return the vector of `size` numbers that a payload stands for, or raise PayloadError."""
    reader = unseal(data, CODEC, size, b"")
    (head,) = np.frombuffer(reader.bytes(_HEAD.itemsize), _HEAD)
    how, kind, exponent, width = (int(head[name]) for name in _HEAD.names or ())
    if (
        kind >= len(TYPES)
        or exponent not in EXPONENTS
        or not (width <= WIDEST or width == CONTEXTUAL)
    ):
        raise PayloadError("its head is damaged")
    dtype = list(TYPES)[kind]
    if how == AS_IT_IS:
        plain: Numbers = reader.numbers(dtype.newbyteorder("<").str, size).astype(dtype)
        reader.end()
        return plain
    if how not in (WHOLE, DIFFERENCE):
        raise PayloadError(f"there is no way {how} to send a vector")
    steps = _read_steps(reader, size, width, pieces)
    reader.end()
    if how == DIFFERENCE:
        if base is None:
            raise PayloadError("it is a difference, and there is nothing to add it to")
        start = _steps(base, exponent) if base.shape == (size,) and base.dtype == dtype else None
        if start is None:
            raise PayloadError("it is a difference to another vector than the one that is here")
        steps += start
    with np.errstate(all="ignore"):
        vector: Numbers = _scaled(steps.astype(np.float64), exponent).astype(dtype)
    if not np.isfinite(vector).all():
        raise PayloadError("it holds numbers that are not finite")
    return vector


def _scaled(numbers: Numbers, exponent: int) -> NDArray[np.float64]:
    """Return numbers times 2^exponent."""
    wide: NDArray[np.float64] = numbers.astype(np.float64, copy=False)
    if abs(exponent) < 1000:
        return wide * 2.0**exponent
    return np.ldexp(wide, exponent)


def _steps(vector: Numbers, exponent: int) -> NDArray[np.int64] | None:
    with np.errstate(all="ignore"):
        scaled = _scaled(vector, -exponent)
        if not np.abs(scaled).max(initial=0.0) < 1 << (WIDEST - 2):
            return None
    steps = scaled.astype(np.int64)
    return steps if np.array_equal(steps, scaled) else None


def _body(new: OnGrid, base: OnGrid | None, pieces: Pieces) -> bytes | None:
    """Return what a payload holds; None if whole numbers cannot say it."""
    exponents = (new.exponent, base.exponent if base else ZERO)
    if exponents[0] is None or exponents[1] is None:
        return None
    exponent = min(exponents[0], exponents[1])
    steps = new.steps(exponent)
    if base and steps is not None:
        start = base.steps(exponent) if base.vector.dtype == new.vector.dtype else None
        steps = None if start is None else steps - start
    if steps is None:
        return None
    how = DIFFERENCE if base else WHOLE
    magnitude = np.abs(steps)
    if magnitude.max(initial=0) <= contexts.LARGEST and magnitude.mean() < SMALL:
        head = _head(how, new.vector.dtype, exponent, CONTEXTUAL)
        return head + contexts.pack(steps, pieces)
    unsigned = np.bitwise_xor(steps << 1, steps >> 63)
    width = int(unsigned.max(initial=0)).bit_length()
    narrow = unsigned.astype(np.int32) if width < 31 else unsigned
    return _head(how, new.vector.dtype, exponent, width) + integers.pack(narrow, 1 << width)


def _head(how: int, dtype: np.dtype[Any], exponent: int, width: int) -> bytes:
    return np.array((how, list(TYPES).index(dtype), exponent, width), _HEAD).tobytes()


def _read_steps(reader: Reader, size: int, width: int, pieces: Pieces) -> NDArray[np.int64]:
    """Return whole numbers with signs: 0, -1, 1, -2, ... are sent as 0, 1, 2, 3, ..., unless they have contexts."""
    if width == CONTEXTUAL:
        return contexts.unpack(reader, size, pieces)[0].astype(np.int64)
    unsigned = integers.unpack(reader, size, 1 << width).astype(np.int64)
    return (unsigned >> 1) ^ -(unsigned & 1)
