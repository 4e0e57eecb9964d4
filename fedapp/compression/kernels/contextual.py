"""The model of the `contextual` codec: what each whole number of a quantized update is likely to be.

An update of a layer is close to a matrix of rank one, because gradients are outer products: some rows and columns move,
others do not, and the signs of a row agree with those of the columns, or are all opposite. So the chances of a number
depend on what came before it:
- how large it should be: the mean of its column so far, times how the row compares with its columns so far;
- its neighbours: two to the left, three above;
- its sign: the sign of its column's trend, and how far the row has followed the trends of its columns.
Each number is coded as: is it 0; its sign; is it larger than 1, than 2, ...

Means are whole numbers in 2^12ths. Sizes enter as levels, two an octave.
"""

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.kernels.binary import (
    EVEN,
    FIRST_WEIGHT,
    LONGEST,
    ONE,
    SPEED,
    STEADY,
    UNUSED,
    Int,
    U,
    Words,
    adapt,
    coded,
    ended,
    learn,
    logit,
    mixed,
    started,
)
from fedapp.compression.kernels.compiling import compiled

Levels = NDArray[np.int32]
Sizes = NDArray[np.int64]

SIZES = 24  # levels of size, of numbers below 4096
NEIGHBOURS = 14  # levels of the neighbours' size
UNARY = 16  # a magnitude from here on ends with plain bits
MOST_BITS = 24  # of these; a payload with more is hostile
LARGEST_LEVEL = 1 << 23  # that is sent
HOSTILE = -1  # instead of how many words were read
COUNTED = 255  # a larger magnitude counts as this in means
SURE = 600  # a 0 with a lower chance of being otherwise is coded by one chance alone, which is fast
SIGNS = SIZES * SIZES
LARGEST = float(np.finfo(np.float32).max)


def _levels() -> NDArray[np.uint8]:
    numbers = np.arange(1, 1 << 12)
    octave = np.maximum(np.log2(numbers + 0.5).astype(np.int64) - 1, 0)
    return np.concatenate([[0], 2 * octave + (numbers >> octave)]).astype(np.uint8)


LEVEL = _levels()  # 0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, ...
AROUND = np.minimum(LEVEL[:97], NEIGHBOURS - 1).astype(np.int64)
BITS = -np.log2((np.arange(1024) + 0.5) / 1024).astype(
    np.float32
)  # of a bit, by the upper ten bits of its chance


@compiled
def level(number: Int) -> Int:
    """Return the level of a number that is not negative."""
    return np.int64(LEVEL[U(number)]) if number < LEVEL.size else SIZES - 1


@compiled
def sign_of(number: Int) -> Int:
    """Return 0, 1 or 2 for a number that is 0, positive or negative."""
    return 1 if number > 0 else (2 if number < 0 else 0)


@compiled
def rounded(v: float, chance: Int, more: Int, price: float) -> Int:
    """Return the whole number to send for v: the nearest or, if that saves enough bits, a smaller one.

    `chance` is that of a number other than 0, `more` that of a magnitude above 1, and `price` what a bit may cost in
    squared error.
    """
    size = abs(v)
    if size <= 0.5:
        return 0
    k = int(min(size + 0.44, LARGEST_LEVEL))
    if k <= 1:
        bits = BITS[chance >> 6] - BITS[(ONE - chance) >> 6] + BITS[(ONE - more) >> 6] + 0.5
        k = 1 if 2 * size - 1 > price * bits else 0
    return k if v >= 0 else -k


@compiled
def code(
    decode: bool,
    v: NDArray[np.float32],  # to encode, in steps; empty to decode
    price: float,
    levels: Levels,  # the whole numbers: chosen here, or decoded
    sizes: Sizes,  # of the tensors
    columns: Sizes,  # lengths of their rows
    words: Words,
) -> tuple[Words, Int]:
    """Choose and encode whole numbers, or decode them; return the words and how many there are, or were read.

    Decoding ends at a number that no encoder writes: HOSTILE.
    """
    # Tables of chances, three for each question, and weights to mix them.
    near = np.full(NEIGHBOURS * SIZES, UNUSED, np.uint32)
    cross = np.full(SIZES * SIZES, UNUSED, np.uint32)
    trendy = np.full(SIZES * SIZES, UNUSED, np.uint32)
    weights = np.full(3 * SIZES, FIRST_WEIGHT, np.int64)
    agreeing = np.full(3 * SIGNS, UNUSED, np.uint32)
    beside = np.full(9 * SIZES, UNUSED, np.uint32)
    leaning = np.full(3 * SIZES, UNUSED, np.uint32)
    sign_weights = np.full(3, FIRST_WEIGHT, np.int64)
    more = np.full(UNARY * SIZES, UNUSED, np.uint32)
    more_near = np.full(UNARY * NEIGHBOURS, UNUSED, np.uint32)
    more_column = np.full(UNARY * SIZES, UNUSED, np.uint32)
    more_weights = np.full(3 * UNARY, FIRST_WEIGHT, np.int64)

    low, span, at = started(decode, words)
    start = 0
    for tensor in range(sizes.size):
        width = columns[tensor]
        mean = np.zeros(width, np.int64)  # magnitude, of each column
        trend = np.zeros(width, np.int64)  # signs of each column, against those of the rows
        above, row = np.zeros(width + 2, np.int64), np.zeros(width + 2, np.int64)
        tensor_sum = tensor_count = 0
        for first in range(start, start + sizes[tensor], width):
            number = (first - start) // width
            last = min(width, start + sizes[tensor] - first)
            if not decode and at + LONGEST * last + 3 > words.size:
                longer = np.empty(2 * words.size + LONGEST * last + 3, np.uint16)
                longer[:at] = words[:at]
                words = longer
            tensor_mean = ((tensor_sum << 12) + 2048) // (tensor_count + 1)
            prior = 8 * tensor_mean + 256
            speed = SPEED[min(number, STEADY)]
            share = (64 << 16) // (number + 1)  # a trend that all rows follow is 64
            row_sum = row_expected = row_level = followed = lean = left = left2 = up2 = 0
            up1 = abs(above[1])
            factor = 256
            for c in range(last):
                if c & 7 == 0:  # divisions take time
                    factor = min((((row_sum << 12) + prior) << 8) // (row_expected + prior), ONE)
                    row_level = level((((row_sum << 12) + 4 * tensor_mean) // (c + 4)) >> 4)
                column_mean = mean[c] if number else tensor_mean
                expected = level((column_mean * factor) >> 11)
                up = abs(above[c + 2])
                around = AROUND[U(min(2 * left + left2 + up2 + 2 * up1 + up, AROUND.size - 1))]
                up2, up1 = up1, up

                # Is it 0?
                i = around * SIZES + expected
                chance = np.int64(near[U(i)] >> 8)
                unsure = chance > SURE
                if unsure:
                    i2 = level(column_mean >> 4) * SIZES + row_level
                    i3 = level((abs(trend[c]) * share) >> 16) * SIZES + expected
                    a, b, d = logit(near, i), logit(cross, i2), logit(trendy, i3)
                    chance = mixed(weights, 3 * expected, a, b, d)
                k = 0
                if not decode:
                    k = rounded(v[first + c], chance, np.int64(more[expected] >> 8), price)
                    levels[first + c] = k
                bit, low, span, at = coded(decode, 1 if k else 0, chance, low, span, words, at)
                if unsure:
                    learn(weights, 3 * expected, a, b, d, (bit << 16) - chance)
                    adapt(cross, i2, bit)
                    adapt(trendy, i3, bit)
                adapt(near, i, bit)
                magnitude = 0
                if bit:
                    # Its sign.
                    steady = level(min(abs(trend[c]), 4095))
                    agrees = followed if trend[c] >= 0 else -followed
                    agrees = sign_of(agrees) if trend[c] else 0
                    i = agrees * SIGNS + level(abs(followed)) * SIZES + steady
                    i2 = (3 * sign_of(row[c]) + sign_of(above[c + 1])) * SIZES + steady
                    i3 = sign_of(lean) * SIZES + level(abs(lean))
                    a, b, d = logit(agreeing, i), logit(beside, i2), logit(leaning, i3)
                    chance = mixed(sign_weights, 0, a, b, d)
                    bit, low, span, at = coded(
                        decode, 1 if k < 0 else 0, chance, low, span, words, at
                    )
                    learn(sign_weights, 0, a, b, d, (bit << 16) - chance)
                    adapt(agreeing, i, bit)
                    adapt(beside, i2, bit)
                    adapt(leaning, i3, bit)
                    sign = -1 if bit else 1

                    # Is it larger than 1, 2, ...?
                    magnitude, column_level = 1, level(column_mean >> 4)
                    while magnitude < UNARY:
                        i = (magnitude - 1) * SIZES + expected
                        i2 = (magnitude - 1) * NEIGHBOURS + around
                        i3 = (magnitude - 1) * SIZES + column_level
                        a, b, d = logit(more, i), logit(more_near, i2), logit(more_column, i3)
                        chance = mixed(more_weights, 3 * magnitude - 3, a, b, d)
                        bit = 1 if abs(k) > magnitude else 0
                        bit, low, span, at = coded(decode, bit, chance, low, span, words, at)
                        learn(more_weights, 3 * magnitude - 3, a, b, d, (bit << 16) - chance)
                        adapt(more, i, bit)
                        adapt(more_near, i2, bit)
                        adapt(more_column, i3, bit)
                        if not bit:
                            break
                        magnitude += 1
                    if magnitude == UNARY:  # Elias' gamma code of the rest
                        rest, length = abs(k) - UNARY + 1, 0
                        if not decode:
                            while rest >> (length + 1):
                                length += 1
                        bits = 0
                        while bits < MOST_BITS:
                            bit = 1 if bits < length else 0
                            bit, low, span, at = coded(decode, bit, EVEN, low, span, words, at)
                            if not bit:
                                break
                            bits += 1
                        if bits == MOST_BITS:
                            return words, HOSTILE
                        value = 1
                        for place in range(bits - 1, -1, -1):
                            bit = (rest >> place) & 1
                            bit, low, span, at = coded(decode, bit, EVEN, low, span, words, at)
                            value = 2 * value + bit
                        magnitude = UNARY - 1 + value
                    k = sign * magnitude
                    if trend[c]:
                        followed += 1 if (k > 0) == (trend[c] > 0) else -1
                    lean += sign
                if decode:
                    levels[first + c] = k
                row[c + 1] = min(max(k, -COUNTED), COUNTED)
                magnitude = min(magnitude, COUNTED)
                left2, left = left, magnitude
                row_sum += magnitude
                row_expected += column_mean
                mean[c] = column_mean + ((((magnitude << 12) - column_mean) * speed) >> 16)
            tensor_sum += row_sum
            tensor_count += last
            direction = 1 if followed > 0 or (followed == 0 and lean >= 0) else -1
            for c in range(1, last + 1):
                if row[c]:
                    trend[c - 1] += direction if row[c] > 0 else -direction
                above[c] = row[c]
        start += sizes[tensor]
    return words, at if decode else ended(low, span, words, at)


@compiled
def fit(
    v: NDArray[np.float32], levels: Levels, sums: NDArray[np.float64], counts: NDArray[np.int64]
) -> float:
    """Add up by how much magnitudes 1, 2 and above are off, and how often they occur; return the squared error."""
    error = 0.0
    for i in range(v.size):
        k: Int = np.int64(levels[i])
        size = abs(v[i])
        if k:
            off, kind = size - abs(k), min(abs(k), 3) - 1
            sums[kind] += off
            counts[kind] += 1
            error += off * off
        else:
            error += size * size
    return error


@compiled
def place(
    levels: Levels, offsets: NDArray[np.float64], step: float, vector: NDArray[np.float32]
) -> None:
    """Write the numbers that levels stand for."""
    for i in range(levels.size):
        k: Int = np.int64(levels[i])
        if k:
            size = min((abs(k) + offsets[min(abs(k), 3) - 1]) * step, LARGEST)
            vector[i] = size if k > 0 else -size
        else:
            vector[i] = 0.0
