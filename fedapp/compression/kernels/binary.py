"""Binary arithmetic coding with chances that adapt, and the mixing of several of them.

Everything that the receiver repeats is computed in whole numbers, so that it is the same on every machine. A chance is
that of a 1, in 2^16ths. A table of chances has entries chance * 2^8 + how often the entry was used, up to `STEADY`: a new
entry adapts quickly. Chances are mixed as in Mahoney's PAQ: logits are added with weights, which learn. Indices are cast to
unsigned numbers, so that numba does not ask whether they count from the end.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.kernels.compiling import compiled

Words = NDArray[np.uint16]
Table = NDArray[np.uint32]
Weights = NDArray[np.int64]
Int = Any  # a whole number, of numba's type

U = np.uint64
ONE = 1 << 16  # a chance of 1
EVEN = ONE // 2
STEADY = 60  # uses after which an entry adapts no slower
LEAST = 32  # chance that an entry keeps
UNUSED = EVEN << 8  # a new entry

LARGEST = 2047  # logit, in 170ths
LOGITS_PER_UNIT = 170
# The logit of a chance, by its upper twelve bits; the chance of a logit; the speed of an entry, by its uses.
LOGIT = np.rint(
    LOGITS_PER_UNIT * np.log((np.arange(4096) + 0.5) / (4096 - np.arange(4096) - 0.5))
).astype(np.int16)
CHANCE = (
    np.rint(ONE / (1 + np.exp(-np.arange(-LARGEST, LARGEST + 1) / LOGITS_PER_UNIT)))
    .clip(16, ONE - 16)
    .astype(np.uint16)
)
SPEED = np.array([2 * ONE // (2 * uses + 3) for uses in range(STEADY + 1)])
FIRST_WEIGHT = 26000  # in 2^16ths

FULL = (1 << 48) - 1  # a coder's interval at its start
NARROW = 1 << 32  # below it, 16 bits are written
LONGEST = 20  # words that one number takes at most


@compiled
def coded(decode: bool, bit: Int, chance: Int, low: Any, span: Any) -> tuple[Int, Any, Any]:
    """Code one bit, whose chance to be 1 is given; return it, and the coder.

    An encoder's interval begins at `low` and is `span` wide; a decoder's `low` is how far into its interval it is. If `span`
    is below NARROW afterwards, `widened` must follow. It is a separate call because numba counts references to an
    array that a call may return early from, which takes as long as the coding.
    """
    bound = (span >> U(16)) * U(chance)
    if decode:
        bit = 1 if low < bound else 0
        if bit:
            span = bound
        else:
            low -= bound
            span -= bound
    elif bit:
        span = bound
    else:
        low += bound
        span -= bound
    return bit, low, span


@compiled
def widened(decode: bool, low: Any, span: Any, words: Words, at: Int) -> tuple[Any, Any, Int]:
    """Read or write a word; return the coder."""
    if decode:
        low = (low << U(16)) | U(words[U(at)] if at < words.size else 0)
    else:
        low = carried(low, words, at)
        words[U(at)] = np.uint16(low >> U(32))
        low = (low & U(0xFFFFFFFF)) << U(16)
    return low, span << U(16), at + 1


@compiled
def carried(low: Any, words: Words, at: Int) -> Any:
    """Add an overflow of `low` to the words before it."""
    if low >> U(48):
        before = at - 1
        while True:
            words[before] += np.uint16(1)
            if words[before] != 0:
                break
            before -= 1
        low &= U(FULL)
    return low


@compiled
def started(decode: bool, words: Words) -> tuple[Any, Any, Int]:
    """Return the coder before the first bit."""
    low, at = U(0), 0
    if decode:
        for at in range(3):
            low = (low << U(16)) | U(words[at] if at < words.size else 0)
        at = 3
    return low, U(FULL), at


@compiled
def ended(low: Any, span: Any, words: Words, at: Int) -> Int:
    """Write the shortest end, behind which a decoder reads zeros; return how many words there are."""
    for bits in range(47, -1, -1):
        number = ((low + span - U(1)) >> U(bits)) << U(bits)
        if number >= low:
            low = number
            break
    low = carried(low, words, at)
    for bits in (32, 16, 0):
        words[at] = np.uint16((low >> U(bits)) & U(0xFFFF))
        at += 1
    while at > 0 and words[at - 1] == 0:
        at -= 1
    return at


@compiled
def adapt(table: Table, i: Int, bit: Int) -> None:
    """Move an entry towards the bit that came."""
    entry: Int = np.int64(table[U(i)])
    chance, uses = entry >> 8, entry & 255
    if bit:
        chance += ((ONE - LEAST - chance) * SPEED[U(uses)]) >> 16
    else:
        chance -= ((chance - LEAST) * SPEED[U(uses)]) >> 16
    table[U(i)] = (chance << 8) | (uses + 1 if uses < STEADY else uses)


@compiled
def logit(table: Table, i: Int) -> Int:
    """Return the logit of an entry."""
    return np.int64(LOGIT[table[U(i)] >> 12])


@compiled
def mixed(weights: Weights, j: Int, a: Int, b: Int, c: Int) -> Int:
    """Return the chance that three logits give with the weights j, j + 1, j + 2."""
    total = (weights[U(j)] * a + weights[U(j + 1)] * b + weights[U(j + 2)] * c) >> 16
    return np.int64(CHANCE[U(min(max(total, -LARGEST), LARGEST) + LARGEST)])


@compiled
def learn(weights: Weights, j: Int, a: Int, b: Int, c: Int, error: Int) -> None:
    """Move weights so that the mixed chance would have been closer to the bit; `error` is the bit less the chance."""
    weights[U(j)] += (a * error + EVEN) >> 16
    weights[U(j + 1)] += (b * error + EVEN) >> 16
    weights[U(j + 2)] += (c * error + EVEN) >> 16
