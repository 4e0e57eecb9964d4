"""The arithmetic of `benchmarks/codecs.py`, and one small measurement of each codec."""

import numpy as np
import pytest

from benchmarks.codecs import CODECS, elias_bits, entropy, measure
from fedapp.compression import make_compressor
from fedapp.randomness import generator


def test_entropy_of_counts() -> None:
    # Two symbols of probability 1/4 take 2 bits each, the two of probability 1/2 one bit each.
    assert entropy(np.array([1, 0, 1, 2])) == 6


def test_elias_bound() -> None:
    """s = 2, d = 4: s (s + sqrt d) = 8, 2 (s^2 + d) / 8 = 2, so 3 + 3/2 bits for each of 8."""
    assert elias_bits(make_compressor("qsgd", levels=2), 4) == pytest.approx(32 + 8 * 4.5)
    assert elias_bits(make_compressor("qsgd", levels=2, norm="max"), 4) is None


@pytest.mark.parametrize("name", CODECS)
def test_payloads_are_near_what_they_say(name: str) -> None:
    codec, v = CODECS[name], np.random.default_rng(1).standard_normal(20_000).astype(np.float32)
    row = measure(codec, v, repeats=1)
    few = name in ("uniform 16 bits", "float16")
    assert row["few"] == few
    assert row["close"] or few
    assert row["entropy"] <= row["bits"] <= row["plain"] + 8 * 30 / v.size
    assert row["bits"] == 8 * len(codec.encode(v, generator(0, "codecs"))) / v.size
