"""Vectors of every kind, and what becomes of them when they are compressed."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from fedapp.compression import Compressor
from fedapp.compression.cells import CHUNK

Vector = NDArray[np.float32]

PROPERTY = settings(max_examples=60)
SEEDS = st.integers(0, 2**32 - 1)
BORDERS = (CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5)  # sizes around the pieces that are coded


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def through(compressor: Compressor, v: NDArray[Any], seed: int = 0) -> Vector:
    return compressor.decode(compressor.encode(v, generator(seed)), v.size)


def same_bits(a: Vector, b: Vector) -> bool:
    return a.dtype == b.dtype == np.float32 and a.tobytes() == b.tobytes()


# Vectors of every kind: how a vector of some size is drawn, before it is scaled.

KINDS: dict[str, Callable[[np.random.Generator, int], NDArray[Any]]] = {
    "gaussian": lambda rng, n: rng.normal(size=n),
    "heavy-tailed": lambda rng, n: np.clip(rng.standard_cauchy(n), -1e6, 1e6) / 1e6,
    "zero": lambda rng, n: np.zeros(n),
    "negative zero": lambda rng, n: -np.zeros(n),
    "one non-zero": lambda rng, n: np.where(np.arange(n) == n // 2, rng.choice([-1, 1]), 0),
    "constant": lambda rng, n: np.full(n, rng.normal()),
    "two-valued": lambda rng, n: rng.choice(rng.normal(size=2), n),
    "far from zero": lambda rng, n: 1 + 1e-6 * rng.random(n),
    "sparse": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.03),
}
NOT_SCALED: dict[str, Callable[[np.random.Generator, int], NDArray[Any]]] = {
    "denormal": lambda rng, n: rng.integers(-50, 50, n) * 2.0**-149,
    "mixed magnitudes": lambda rng, n: rng.choice([-1, 1], n) * 10 ** rng.uniform(-45, 30, n),
}


@st.composite
def drawn_vectors(draw: st.DrawFn) -> Vector:
    kind = draw(st.sampled_from([*KINDS, *NOT_SCALED]))
    size = draw(st.integers(0, 3000))
    rng = generator(draw(SEEDS))
    if kind in NOT_SCALED:
        return NOT_SCALED[kind](rng, size).astype(np.float32)
    scale = 10 ** draw(st.floats(-30, 30))
    return (scale / 10 * KINDS[kind](rng, size)).astype(np.float32)


vectors = drawn_vectors() | hnp.arrays(
    np.float32, st.integers(0, 40), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


def gaussian(size: int, seed: int = 1) -> Vector:
    return generator(seed).normal(size=size).astype(np.float32)


def unit_levels(v: NDArray[Any], levels: int, norm: float) -> NDArray[np.float64]:
    """Return s |v_j| / |v|."""
    magnitude = np.abs(v.astype(np.float64))
    return levels * magnitude / norm if norm else magnitude


def step_of(v: Vector, bits: int) -> float:
    """Return the distance of two levels: one level is spared for 0, except with one bit."""
    return float((v.max().astype(np.float64) - v.min()) / max(2**bits - 2, 1)) if v.size else 0.0


def ulps(v: NDArray[Any]) -> NDArray[np.float64]:
    """Return a bound of what rounding to float32 changes."""
    magnitude: NDArray[np.float64] = np.abs(v).astype(np.float64)
    return 2.0**-23 * magnitude + 2.0**-149


def quantized(compressor: Compressor, v: Vector, rng: np.random.Generator) -> Vector:
    """Return what a payload would be decoded to, faster than by making one."""
    return compressor.dequantize(*compressor.quantize(v, rng))
