"""Clipping and noise: exact, bounded by what one client can change, and drawn from the right distribution."""

import math
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from fedapp.privacy.noise import clipped, clipped_mean, system_normals
from fedapp.wire import Update
from tests.support.private import CLIP, S, Z, strategy_of


def sent(*vectors: NDArray[Any]) -> list[Update]:
    return [Update(c, {"u": vector}, 1, 1, 0.0) for c, vector in enumerate(vectors)]


def test_clipping_is_exact() -> None:
    rng = np.random.default_rng(0)
    vector = rng.normal(size=1000).astype(np.float32)
    long = clipped(vector, 0.25)
    assert np.linalg.norm(long) == pytest.approx(0.25, rel=1e-14)
    np.testing.assert_allclose(long / 0.25, vector / np.linalg.norm(vector.astype(float)))
    np.testing.assert_array_equal(clipped(vector, 1e3), vector)
    np.testing.assert_array_equal(clipped(np.zeros(3, np.float32), 1.0), np.zeros(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_has_no_length_counts_as_nothing(bad: float) -> None:
    np.testing.assert_array_equal(clipped(np.array([1.0, bad]), 1.0), [0, 0])


Coordinates = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3)


@settings(max_examples=200)
@given(st.lists(Coordinates, min_size=2, max_size=5), st.one_of(st.none(), Coordinates))
def test_one_client_moves_the_mean_by_at_most_twice_clip_over_s(
    rows: list[list[float]], other: list[float] | None
) -> None:
    vectors = [np.array(row, np.float32) for row in rows]
    replaced = vectors[1:] + ([] if other is None else [np.array(other, np.float32)])
    moved = clipped_mean(vectors, CLIP, 5) - clipped_mean(replaced, CLIP, 5)
    assert np.linalg.norm(moved) <= 2 * CLIP / 5 * (1 + 1e-9)


def test_that_bound_is_reached_and_absent_clients_count_as_zero() -> None:
    far = np.array([1e6, 0.0])
    moved = clipped_mean([far, far], CLIP, S) - clipped_mean([far, -far], CLIP, S)
    np.testing.assert_allclose(moved, [2 * CLIP / S, 0])
    np.testing.assert_allclose(clipped_mean([far], CLIP, S), [CLIP / S, 0])


def test_system_noise_is_standard_normal_and_new_each_time() -> None:
    draws = system_normals(400_000)
    assert abs(draws.mean()) < 6 / math.sqrt(draws.size)
    assert abs(draws.var() - 1) < 6 * math.sqrt(2 / draws.size)
    shares = [(np.abs(draws) < edge).mean() for edge in (0.5, 1, 2, 3)]
    np.testing.assert_allclose(shares, [2 * norm.cdf(e) - 1 for e in (0.5, 1, 2, 3)], atol=0.006)
    assert not np.isin(draws[:1000], system_normals(1000)).any()


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x7F, 0x80, 0x01, 0xFE])
def test_no_bits_make_noise_infinite(byte: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in range(8):
        for rest in (0x00, 0xFF):
            bits = bytearray([rest] * 8)
            bits[place] = byte
            monkeypatch.setattr(os, "urandom", lambda size, bits=bits: bytes(bits) * (size // 8))
            (draw,) = system_normals(1)
            assert math.isfinite(draw)
            assert 0 < abs(draw) < 9


def test_noise_is_symmetric(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).integers(2**63, size=1000, dtype=np.uint64)
    draws = []
    for sign in (0, 1):
        bits = (numbers | np.uint64(1)) - np.uint64(sign)
        monkeypatch.setattr(os, "urandom", lambda size, bits=bits: bits.tobytes())
        draws.append(system_normals(1000))
    np.testing.assert_array_equal(draws[0], -draws[1])


@pytest.mark.parametrize("count", [S, 1])
def test_the_means_noise_is_what_is_promised(count: int) -> None:
    strategy = strategy_of(dataset="digits", model="mlp-200")
    size = strategy.x.size
    update = np.full(size, 0.5 * CLIP / math.sqrt(size), np.float32)  # half as long as allowed
    noises = []
    for tag in (1, 2):
        strategy.ledger.begin(tag, 0)
        mean = strategy.mean(sent(*[update] * count))
        assert mean.dtype == strategy.x.dtype
        noises.append(mean - count * update / S)
    for noise in noises:
        assert noise.std() == pytest.approx(Z * CLIP / S, rel=0.02)
        assert abs(noise.mean()) < 5 * Z * CLIP / S / math.sqrt(noise.size)
    assert abs(np.corrcoef(noises)[0, 1]) < 0.04
