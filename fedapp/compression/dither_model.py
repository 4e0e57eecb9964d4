"""The distribution of k = round(x - u) given u and the scale of x, and k coded with it.

Given u, k has the probability of x in [k + u - 1/2, k + u + 1/2). x has a generalised Gaussian density, exp(-|x/a|^beta);
the sender chooses deviation and beta for each class of scales from a grid, a byte for each. k and u may be replaced by -k and -u, so
only |u| counts: it falls into one of some bins, narrow towards 1/2, where small numbers are rounded away from 0.

The tables are made of additions, multiplications, divisions and roots only, which have the same bits everywhere.
"""

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any

import constriction
import numpy as np
from numpy.typing import NDArray

from fedapp.compression import integers
from fedapp.compression.payload import PayloadError, Reader, varint

Ints = NDArray[np.int64]
# The bins that 1/2 - |u| is sorted into.
EDGES = np.array([1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128]) / 256
BINS = len(EDGES)
BIN_OF = np.searchsorted(EDGES * 256, np.arange(129), side="right").clip(max=BINS - 1)
BETAS = 5  # 1/2, 3/4, 1, 3/2, 2
DEVIATIONS = 48  # 2^-8 .. 2^3.75 in quarters of a doubling
WIDEST = 8.0  # deviations above are coded without their lowest bits
OUTSIDE = 2.0**-14  # least probability that k is beyond the table
LEAST = 2.0**-18  # least probability of a k within
LIMIT = 1 << 34  # bounds numbers beyond the table, their signs included
MOST_BITS = 28  # lowest bits that are sent plain
ROOTS = np.sqrt(np.sqrt(2.0 ** np.arange(4)))  # 2^(n/4)


def _exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e^x of x <= 0, with operations whose bits are the same everywhere."""
    small = np.maximum(x, -700.0) / 1024
    total, term = np.ones_like(small), np.ones_like(small)
    for n in range(1, 8):
        term = term * small / n
        total = total + term
    for _ in range(10):
        total = total * total
    return total


GRID = 1.0 / 64  # step of x over the deviation, in the tables of the distribution function
REACH = 40.0


@lru_cache(maxsize=BETAS)
def _distribution(beta: int) -> NDArray[np.float64]:
    """Return P(0 <= x < t) for deviation 1 at t = 0, GRID, 2 GRID, ..."""
    fine = 8
    t = (np.arange(round(REACH / GRID) * fine) + 0.5) * (GRID / fine)

    def power(t: NDArray[np.float64]) -> NDArray[np.float64]:
        root = np.sqrt(t)
        return (root, np.sqrt(t * root), t, t * root, t * t)[beta]

    def moments(a: float) -> tuple[float, float, NDArray[np.float64]]:
        mass = _exp(-power(np.asarray(t / a, np.float64))).cumsum()
        density = np.diff(mass, prepend=0.0)
        return mass[-1], (density * t * t).cumsum()[-1], mass

    a = 1.0
    for _ in range(40):  # until the deviation is 1
        total, square, mass = moments(a)
        a = a / math.sqrt(square / total)
    total, _, mass = moments(a)
    return np.concatenate([[0.0], mass[fine - 1 :: fine] / (2 * total)])


def _cumulative(x: NDArray[np.float64], beta: int, deviation: float) -> NDArray[np.float64]:
    """Return P(X < x)."""
    table = _distribution(beta)
    place = np.minimum(np.abs(x) / (deviation * GRID), len(table) - 1.001)
    low = place.astype(np.int64)
    half = table[low] + (table[low + 1] - table[low]) * (place - low)
    return 0.5 + np.where(x < 0, -half, half)


def _deviation(index: int) -> float:
    return float(np.ldexp(ROOTS[index % 4], index // 4 - 8))


def _reach(index: int) -> int:
    """Return the largest |k| in the table of a deviation."""
    return 2 + int(np.ceil(6 * _deviation(index)))


MOST = _reach(DEVIATIONS - 1)


@lru_cache(maxsize=BETAS * DEVIATIONS)
def _table(parameter: int) -> NDArray[np.float64]:
    """Return the probabilities of -reach .. reach, and of what is beyond, for each bin."""
    beta, index = divmod(parameter, DEVIATIONS)
    deviation, reach = _deviation(index), _reach(index)
    k = np.arange(-reach, reach + 1)
    starts = np.concatenate([[0.0], EDGES[:-1]])
    inside = np.zeros((BINS, len(k)))
    parts = 4
    for part in range(parts):
        u = 0.5 - (starts + (part + 0.5) / parts * (EDGES - starts))
        borders = np.concatenate([k - 0.5, [reach + 0.5]])
        cumulative = _cumulative(u[:, None] + borders[None, :], beta, deviation)
        inside += (cumulative[:, 1:] - cumulative[:, :-1]) / parts
    inside += LEAST
    beyond = np.maximum(1 - inside.cumsum(axis=1)[:, -1:], 0) + OUTSIDE
    table = np.concatenate([inside, beyond], axis=1)
    return np.asarray(table / table.cumsum(axis=1)[:, -1:])


@lru_cache(maxsize=BETAS * DEVIATIONS)
def _models(parameter: int) -> list[Any]:
    table = _table(parameter)
    return [constriction.stream.model.Categorical(row, perfect=False) for row in table]


@lru_cache(maxsize=1)
def _bits() -> NDArray[np.float64]:
    """Return what each k costs by bin, and by parameter; beyond a table, some plain bits more."""
    bits = np.empty((BETAS * DEVIATIONS, BINS, 2 * MOST + 3))
    for parameter in range(len(bits)):
        table = -np.log2(_table(parameter))
        reach = (table.shape[1] - 2) // 2
        bits[parameter] = table[:, -1:] + 12
        bits[parameter, :, MOST + 1 - reach : MOST + 2 + reach] = table[:, :-1]
    return np.ascontiguousarray(bits.reshape(len(bits), -1).T)


class _Context:
    """Which numbers are coded with which model: those of each class, by their bins of u."""

    def __init__(
        self,
        classes: NDArray[np.int16],
        u: NDArray[np.float32],
        present: Ints,
        ratios: NDArray[np.float64],  # the deviation over the step, of each class that is present
    ) -> None:
        wide = np.maximum(np.frexp(ratios / WIDEST)[1], 0)
        if wide.max(initial=0) > MOST_BITS:
            raise PayloadError("its step is too small for its scales")
        self.shift = wide.tolist()
        index_of = np.full(int(present.max(initial=0)) + 2, -1, np.int64)
        index_of[present] = np.arange(len(present))
        index = index_of.take(classes)
        distance = (np.float32(128) - np.float32(256) * np.abs(u)).astype(np.int16)
        bins = BIN_OF.take(distance)
        context = np.where(index < 0, len(present) * BINS, index * BINS + bins).astype(np.int16)
        if any(self.shift):
            shifted = np.append(wide > 0, False).take(index)
            context[shifted] = index[shifted] * BINS + BINS - 1
        self.order = np.argsort(context, kind="stable")
        self.counts = np.bincount(context, minlength=len(present) * BINS + 1)
        self.ends = np.cumsum(self.counts)[:-1]
        self.order = self.order[: self.ends[-1] if len(self.ends) else 0]
        self.negative = u.take(self.order) < 0

    def parts(self) -> list[tuple[int, slice]]:
        """Return each model's number, and where its numbers lie in the order."""
        return [
            (number, slice(end - count, end))
            for number, (end, count) in enumerate(
                zip(self.ends.tolist(), self.counts[:-1].tolist(), strict=True)
            )
            if count
        ]

    def class_parts(self) -> list[slice]:
        """Return where the numbers of each class lie in the order."""
        ends = self.ends[BINS - 1 :: BINS].tolist()
        return [slice(start, end) for start, end in pairwise([0, *ends])]


def pack(
    k: Ints,
    classes: NDArray[np.int16],
    u: NDArray[np.float32],
    present: Ints,
    ratios: NDArray[np.float64],
) -> bytes:
    """Code k; the reader must know everything else."""
    context = _Context(classes, u, present, ratios)
    values = k.take(context.order)
    np.negative(values, out=values, where=context.negative)
    plain = []
    for part, shift in zip(context.class_parts(), context.shift, strict=True):
        if shift:
            centred = values[part] + (1 << (shift - 1))
            plain.append(integers.pack_bits(centred & ((1 << shift) - 1), shift))
            values[part] = centred >> shift
    parameters = _fit(values, context, len(present))
    coder = constriction.stream.stack.AnsCoder()
    beyond = []
    for number, part in reversed(context.parts()):
        parameter = parameters[number // BINS]
        reach = _reach(parameter % DEVIATIONS)
        symbols = values[part] + reach
        outside = (symbols < 0) | (symbols > 2 * reach)
        if outside.any():
            beyond.append(values[part][outside])
            symbols = np.where(outside, 2 * reach + 1, symbols)
        coder.encode_reverse(symbols.astype(np.int32), _models(parameter)[number % BINS])
    words = coder.get_compressed().astype("<u4")
    far = np.concatenate([np.zeros(0, np.int64), *reversed(beyond)])
    head = bytes(parameters) + varint(len(words))
    signed = np.where(far < 0, -2 * far - 1, 2 * far)
    return b"".join((head, words.tobytes(), integers.pack(signed, LIMIT), *plain))


def unpack(
    reader: Reader,
    classes: NDArray[np.int16],
    u: NDArray[np.float32],
    present: Ints,
    ratios: NDArray[np.float64],
) -> Ints:
    """Read what `pack` wrote."""
    context = _Context(classes, u, present, ratios)
    parameters = reader.numbers("u1", len(present)).tolist()
    if max(parameters, default=0) >= BETAS * DEVIATIONS:
        raise PayloadError("it names a distribution that there is not")
    words = reader.numbers("<u4", reader.varint()).astype(np.uint32)
    try:
        coder = constriction.stream.stack.AnsCoder(words)
    except ValueError:
        raise PayloadError("its coded numbers are damaged") from None
    values = np.empty(len(context.order), np.int64)
    outside = []
    for number, part in context.parts():
        parameter = parameters[number // BINS]
        reach = _reach(parameter % DEVIATIONS)
        symbols = coder.decode(_models(parameter)[number % BINS], part.stop - part.start)
        values[part] = symbols
        values[part] -= reach
        outside.append(part.start + np.flatnonzero(symbols == 2 * reach + 1))
    if not coder.is_empty():
        raise PayloadError("its coded numbers are damaged")
    where = np.concatenate([np.zeros(0, np.int64), *outside])
    far = integers.unpack(reader, len(where), LIMIT).astype(np.int64)
    values[where] = (far >> 1) ^ -(far & 1)
    for part, shift in zip(context.class_parts(), context.shift, strict=True):
        if shift:
            low = integers.unpack_bits(reader, part.stop - part.start, shift)
            values[part] = (values[part] << shift) + low - (1 << (shift - 1))
    np.negative(values, out=values, where=context.negative)
    k = np.zeros(classes.size, np.int64)
    k[context.order] = values
    return k


def _fit(values: Ints, context: _Context, count: int) -> list[int]:
    """Return the parameters with which each class takes the fewest bits."""
    width = 2 * MOST + 3
    clipped = values.clip(-MOST - 1, MOST + 1) + MOST + 1
    number = np.repeat(np.arange(count * BINS), context.counts[:-1])
    counts = np.bincount(number * width + clipped, minlength=count * BINS * width)
    counts = counts.reshape(count, BINS * width)
    used = np.flatnonzero(counts.any(axis=0))
    costs = counts[:, used].astype(np.float64) @ _bits()[used]
    return [int(parameter) for parameter in costs.argmin(axis=1)]
