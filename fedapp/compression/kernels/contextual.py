"""The model of the `contextual` codec: what each whole number of a quantized update is likely to be.

An update of a layer is close to a matrix of rank one, because gradients are outer products: some rows and columns move,
others do not, and the signs of a row agree with those of the columns, or are all opposite. So the chances of a number
depend on what came before it:
- how large it should be: the mean of its column so far, times how the row compares with its columns so far;
- its neighbours: two to the left, three above;
- its sign: the sign of its column's trend, and how far the row has followed the trends of its columns.
Numbers are coded in blocks of eight of a row. Where a block is likely to be all 0, one bit says whether it is, by the
same means and neighbours. Otherwise each number is coded as: is it 0; its sign; is it larger than 1, than 2, ...

Means are whole numbers in 2^12ths. Sizes enter as levels, two an octave.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.kernels.binary import (
    EVEN,
    FIRST_WEIGHT,
    LONGEST,
    NARROW,
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
    widened,
)
from fedapp.compression.kernels.compiling import compiled

Levels = NDArray[np.int32]
Sizes = NDArray[np.int64]

SIZES = 24  # levels of size, of numbers below 4096
NEIGHBOURS = 14  # levels of the neighbours' size
UNARY = 16  # a magnitude from here on ends with plain bits
MOST_BITS = 24  # plain bits; a payload with more is hostile
LARGEST_LEVEL = 1 << 23  # that is sent
HOSTILE = -1  # instead of how many words were read
FULL = -2  # instead of how many words were written: there is not enough room
BLOCK = 8  # numbers of a row that may be said to be 0 together
LIKELY = 7 << 13  # chance of another number than 0 in a block from which on that is not asked
# About the bits that a number other than 0 takes in a block, and how its chance makes them fewer.
PLACING, DENSE = 5.5, 3.0 / ONE
FIRST_MEAN = 1 << 11  # a column of which nothing is known: 1/2
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
# A bit's length, by the upper ten bits of its chance.
BITS = -np.log2((np.arange(1024) + 0.5) / 1024).astype(np.float32)


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
def saving(v: NDArray[np.float32], first: Int, last: Int, price: float, chance: Int) -> float:
    """Return by how much numbers lower the squared error if they are not all sent as 0, less what they cost in bits."""
    each = 1 + (PLACING - DENSE * chance) * price
    total = -price * BITS[U(chance >> 6)]
    for i in range(first, last):
        total += max(2 * abs(v[U(i)]) - each, 0.0)
    return float(total)


def _coder(decode: bool) -> Callable[..., int]:
    """Return the encoder or the decoder: the same model, compiled for each."""

    @compiled
    def code(
        v: NDArray[np.float32],  # to encode, in steps; empty to decode
        price: float,
        levels: Levels,  # zeros, which the whole numbers replace
        sizes: Sizes,  # the tensors' sizes
        columns: Sizes,  # lengths of their rows
        words: Words,
    ) -> Int:
        """Choose and encode whole numbers, or decode them; return how many words were written, or read.

        Encoding ends with FULL where more words are needed. Decoding ends at a number that no encoder writes: HOSTILE.
        """
        # Tables of chances, three for each question about a number, and weights to mix them.
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
        moving = np.full(NEIGHBOURS * SIZES, UNUSED, np.uint32)  # blocks that are not all 0

        low, span, at = started(decode, words)
        start = 0
        for tensor in range(sizes.size):
            width = columns[tensor]
            padded = width + 2 * BLOCK  # the last block may reach behind the row
            mean = np.zeros(padded, np.int32)  # magnitude, of each column
            mean[:width] = FIRST_MEAN
            trend = np.zeros(padded, np.int32)  # signs of each column, against those of the rows
            nearby = np.zeros(padded, np.int32)  # magnitudes above each number
            above, row = np.zeros(padded, np.int32), np.zeros(padded, np.int32)  # from 1 on
            tensor_sum = tensor_count = 0
            for first in range(start, start + sizes[tensor], width):
                number = (first - start) // width
                last = min(width, start + sizes[tensor] - first)
                tensor_mean = ((tensor_sum << 12) + 2048) // (tensor_count + 1)
                prior = 8 * tensor_mean + 256
                speed = SPEED[min(number, STEADY)] >> 5  # in 2^11ths
                share = (64 << 16) // (number + 1)  # a trend that all rows follow is 64
                row_sum = row_expected = followed = lean = left = left2 = 0
                for block in range(0, last, BLOCK):
                    stop = min(block + BLOCK, last)
                    if not decode and at + LONGEST * BLOCK + 3 > words.size:
                        return FULL
                    factor = min((((row_sum << 12) + prior) << 8) // (row_expected + prior), ONE)
                    total: Int = 0
                    busy: Int = 2 * left + left2
                    for c in range(block, block + BLOCK):
                        total += mean[U(c)]
                        busy += nearby[U(c)]
                    row_expected += total

                    # Is all of it 0?
                    here = AROUND[U(min(busy, AROUND.size - 1))] * SIZES
                    here += level((total * factor) >> 11)
                    chance = np.int64(moving[U(here)] >> 8)
                    if chance < LIKELY:
                        bit = 0
                        if not decode:
                            saved = saving(v, first + block, first + stop, price, chance)
                            bit = 1 if saved > 0 else 0
                        bit, low, span = coded(decode, bit, chance, low, span)
                        if span < U(NARROW):
                            low, span, at = widened(decode, low, span, words, at)
                        if not bit:
                            adapt(moving, here, 0)
                            for c in range(block, block + BLOCK):
                                mean[U(c)] += (-mean[U(c)] * speed) >> 11
                                row[U(c + 1)] = 0
                            left = left2 = 0
                            continue

                    row_level = level((((row_sum << 12) + 4 * tensor_mean) // (block + 4)) >> 4)
                    sum_before = row_sum
                    for c in range(block, stop):
                        column_mean, tendency = np.int64(mean[U(c)]), np.int64(trend[U(c)])
                        expected = level((column_mean * factor) >> 11)
                        beside_it: Int = 2 * left + left2 + nearby[U(c)]
                        around = AROUND[U(min(beside_it, AROUND.size - 1))]

                        # Is it 0?
                        i = around * SIZES + expected
                        column_level = level(column_mean >> 4)
                        chance = np.int64(near[U(i)] >> 8)
                        unsure = chance > SURE
                        if unsure:
                            i2 = column_level * SIZES + row_level
                            i3 = level((abs(tendency) * share) >> 16) * SIZES + expected
                            a, b, d = logit(near, i), logit(cross, i2), logit(trendy, i3)
                            chance = mixed(weights, 3 * expected, a, b, d)
                        k = 0
                        if not decode:
                            larger = np.int64(more[U(expected)] >> 8)
                            k = rounded(v[U(first + c)], chance, larger, price)
                        bit, low, span = coded(decode, 1 if k else 0, chance, low, span)
                        if span < U(NARROW):
                            low, span, at = widened(decode, low, span, words, at)
                        magnitude = 0
                        if not bit:
                            adapt(near, i, 0)
                            if unsure:
                                adapt(cross, i2, 0)
                                adapt(trendy, i3, 0)
                                learn(weights, 3 * expected, a, b, d, -chance)
                        else:
                            adapt(near, i, 1)
                            if unsure:
                                adapt(cross, i2, 1)
                                adapt(trendy, i3, 1)
                                learn(weights, 3 * expected, a, b, d, ONE - chance)

                            # Its sign.
                            steady = level(min(abs(tendency), 4095))
                            agrees = followed if tendency >= 0 else -followed
                            agrees = sign_of(agrees) if tendency else 0
                            i = agrees * SIGNS + level(abs(followed)) * SIZES + steady
                            i2 = 3 * sign_of(row[U(c)]) + sign_of(above[U(c + 1)])
                            i2 = i2 * SIZES + steady
                            i3 = sign_of(lean) * SIZES + level(abs(lean))
                            a, b, d = logit(agreeing, i), logit(beside, i2), logit(leaning, i3)
                            chance = mixed(sign_weights, 0, a, b, d)
                            bit, low, span = coded(decode, 1 if k < 0 else 0, chance, low, span)
                            if span < U(NARROW):
                                low, span, at = widened(decode, low, span, words, at)
                            learn(sign_weights, 0, a, b, d, (bit << 16) - chance)
                            adapt(agreeing, i, bit)
                            adapt(beside, i2, bit)
                            adapt(leaning, i3, bit)
                            sign = -1 if bit else 1

                            # Is it larger than 1, 2, ...?
                            magnitude = 1
                            while magnitude < UNARY:
                                i = (magnitude - 1) * SIZES + expected
                                i2 = (magnitude - 1) * NEIGHBOURS + around
                                i3 = (magnitude - 1) * SIZES + column_level
                                a, b, d = (
                                    logit(more, i),
                                    logit(more_near, i2),
                                    logit(more_column, i3),
                                )
                                chance = mixed(more_weights, 3 * magnitude - 3, a, b, d)
                                bit = 1 if abs(k) > magnitude else 0
                                bit, low, span = coded(decode, bit, chance, low, span)
                                if span < U(NARROW):
                                    low, span, at = widened(decode, low, span, words, at)
                                if not bit:
                                    adapt(more, i, 0)
                                    adapt(more_near, i2, 0)
                                    adapt(more_column, i3, 0)
                                    learn(more_weights, 3 * magnitude - 3, a, b, d, -chance)
                                    break
                                adapt(more, i, 1)
                                adapt(more_near, i2, 1)
                                adapt(more_column, i3, 1)
                                learn(more_weights, 3 * magnitude - 3, a, b, d, ONE - chance)
                                magnitude += 1
                            if magnitude == UNARY:  # Elias' gamma code of the rest
                                rest, length = abs(k) - UNARY + 1, 0
                                if not decode:
                                    while rest >> (length + 1):
                                        length += 1
                                bits = 0
                                while bits < MOST_BITS:
                                    bit = 1 if bits < length else 0
                                    bit, low, span = coded(decode, bit, EVEN, low, span)
                                    if span < U(NARROW):
                                        low, span, at = widened(decode, low, span, words, at)
                                    if not bit:
                                        break
                                    bits += 1
                                if bits == MOST_BITS:
                                    return HOSTILE
                                value = 1
                                for place in range(bits - 1, -1, -1):
                                    bit = (rest >> place) & 1
                                    bit, low, span = coded(decode, bit, EVEN, low, span)
                                    if span < U(NARROW):
                                        low, span, at = widened(decode, low, span, words, at)
                                    value = 2 * value + bit
                                magnitude = UNARY - 1 + value
                            k = sign * magnitude
                            if tendency:
                                followed += 1 if (k > 0) == (tendency > 0) else -1
                            lean += sign
                            levels[U(first + c)] = k
                            magnitude = min(magnitude, COUNTED)
                        row[U(c + 1)] = min(max(k, -COUNTED), COUNTED)
                        left2, left = left, magnitude
                        row_sum += magnitude
                        column_mean += (((magnitude << 12) - column_mean) * speed) >> 11
                        mean[U(c)] = column_mean
                    adapt(moving, here, 1 if row_sum > sum_before else 0)
                tensor_sum += row_sum
                tensor_count += last
                direction = 1 if followed > 0 or (followed == 0 and lean >= 0) else -1
                for c in range(last):
                    if row[U(c + 1)]:
                        trend[U(c)] += direction if row[U(c + 1)] > 0 else -direction
                row, above = above, row
                for c in range(width):
                    nearby[U(c)] = abs(above[U(c)]) + 2 * abs(above[U(c + 1)])
                    nearby[U(c)] += abs(above[U(c + 2)])
            start += sizes[tensor]
        return at if decode else ended(low, span, words, at)

    return code


encode, decode = _coder(False), _coder(True)


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
