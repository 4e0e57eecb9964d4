"""The error of a compressor: zero on average where it should be, and no larger than its variance says."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedapp.compression import Compressor, make_compressor
from fedapp.models.layout import Piece
from tests.support.compressors import QSGD8, RANDK, UNIFORM4
from tests.support.vectors import Vector, gaussian, generator, quantized, step_of, unit_levels

Draw = Callable[[np.random.Generator], NDArray[Any]]


def worst_bias(draw: Draw, v: Vector, repeats: int) -> float:
    """Return how many standard errors the mean of many draws is off.

    Each coordinate is looked at, and the directions in which small errors would add up.
    """
    exact = v.astype(np.float64)
    directions = np.stack([np.ones(v.size), np.sign(exact), exact], axis=1)
    looks = np.hstack([np.eye(v.size), directions])
    rng = generator(11)
    seen = np.stack([draw(rng) for _ in range(repeats)]).astype(np.float64) @ looks
    error = np.abs(seen.mean(axis=0) - exact @ looks)
    deviation = seen.std(axis=0, ddof=1)
    step = 2 * deviation[: v.size].max()  # a level hardly ever reached may be missing altogether
    rounding = 1e-7 * (np.abs(exact) @ np.abs(looks))  # decoded numbers are rounded to float32
    return float((error / (deviation / math.sqrt(repeats) + step / repeats + rounding)).max())


def sample(size: int = 60) -> Vector:
    """Return numbers of both signs, none so small that it is hardly ever rounded up."""
    rng = generator(5)
    return (rng.choice([-1, 1], size) * rng.uniform(0.2, 1, size)).astype(np.float32)


UNBIASED = [
    make_compressor("none"),
    make_compressor("qsgd", levels=1),
    make_compressor("qsgd", levels=16),
    make_compressor("qsgd", levels=5, norm="max"),
    make_compressor("qsgd", levels=3, bucket=7),
    make_compressor("qsgd", levels=32767),
    make_compressor("uniform", bits=1),
    make_compressor("uniform", bits=2),
    make_compressor("uniform", bits=8),
    make_compressor("uniform", bits=12),
    make_compressor("uniform", bits=3, tensors=(40, 0, 20)),
    make_compressor("uniform", bits=4, zero_point_noise=2),
    make_compressor("randk", ratio=0.25),
    make_compressor("randk", ratio=0.5, values=QSGD8),
    make_compressor("randk", ratio=0.5, values=UNIFORM4),
    make_compressor("dithered"),
    make_compressor("dithered", step=0.01),
    make_compressor("dithered", step=20.0),
    make_compressor("natural"),
    make_compressor("randk", ratio=0.5, values=make_compressor("natural")),
    make_compressor("dithered", nmse=0.5, pieces=(Piece(48, 6), Piece(12, 12))),
]


@pytest.mark.parametrize("compressor", UNBIASED, ids=repr)
def test_unbiased_within_the_standard_error(compressor: Compressor) -> None:
    assert compressor.unbiased
    v = sample()
    assert worst_bias(lambda rng: quantized(compressor, v, rng), v, 1500) < 5


@pytest.mark.parametrize("compressor", [QSGD8, UNIFORM4, RANDK], ids=repr)
def test_payloads_are_unbiased_within_the_standard_error(compressor: Compressor) -> None:
    v = sample()
    assert worst_bias(lambda rng: compressor.decode(compressor.encode(v, rng), v.size), v, 400) < 5


@pytest.mark.parametrize(
    "compressor",
    [
        make_compressor("float16"),
        make_compressor("bfloat16"),
        make_compressor("sign"),
        make_compressor("ternary", ratio=0.9),
        make_compressor("lowrank", rank=1, pieces=(Piece(60, 6),)),
        make_compressor("uniform", bits=8, rounding="nearest"),
        make_compressor("uniform", bits=4, rounding="nearest", zero_point_noise=1),
        make_compressor("topk", ratio=0.9),
        make_compressor("topk", ratio=0.9, values=QSGD8),
        make_compressor("randk", ratio=1.0, values=make_compressor("uniform", rounding="nearest")),
    ],
    ids=repr,
)
def test_the_check_notices_a_biased_compressor(compressor: Compressor) -> None:
    assert not compressor.unbiased
    v = sample()
    assert worst_bias(lambda rng: quantized(compressor, v, rng), v, 1500) > 5


@pytest.mark.parametrize("levels", [4, 16])
def test_the_check_notices_a_bias_of_two_percent(levels: int) -> None:
    compressor, v = make_compressor("qsgd", levels=levels), sample()
    assert worst_bias(lambda rng: 0.98 * quantized(compressor, v, rng), v, 1500) > 5


def squared_errors(compressor: Compressor, v: Vector, repeats: int) -> tuple[float, float]:
    """Return the mean of |Q(v) - v|^2 and its standard error."""
    rng = generator(12)
    errors = [square(quantized(compressor, v, rng) - v.astype(np.float64)) for _ in range(repeats)]
    return float(np.mean(errors)), float(np.std(errors, ddof=1)) / math.sqrt(repeats)


def square(v: NDArray[Any]) -> float:
    return float((v.astype(np.float64) ** 2).sum())


SHAPES = {
    "gaussian": gaussian(150),
    "heavy-tailed": generator(2).standard_cauchy(150).astype(np.float32),
    "constant": np.full(150, 0.3, np.float32),
    "one non-zero": np.eye(1, 150, 17, dtype=np.float32)[0],
    "halfway between levels": np.array([1.0] + [1 / 32] * 149, np.float32),
}


@pytest.mark.parametrize("v", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(
    "compressor",
    [
        make_compressor("qsgd", levels=1),
        make_compressor("qsgd", levels=16),
        make_compressor("qsgd", levels=1, norm="max"),
        make_compressor("qsgd", levels=16, norm="max"),
        make_compressor("qsgd", levels=4, bucket=16),
        make_compressor("qsgd", levels=4, norm="max", bucket=16),
        RANDK,
        make_compressor("randk", ratio=0.3, values=QSGD8),
        make_compressor("topk", ratio=0.1),
        make_compressor("topk", ratio=0.3, values=QSGD8),
        make_compressor("float16"),
        make_compressor("none"),
        make_compressor("dithered"),
        make_compressor("dithered", step=0.05),
        make_compressor("dithered", nmse=0.3),
        make_compressor("bfloat16"),
        make_compressor("natural"),
        make_compressor("sign"),
        make_compressor("sign", tensors=(100, 50)),
        make_compressor("ternary", ratio=0.1),
        make_compressor("lowrank", rank=2, pieces=(Piece(120, 12), Piece(30, 30))),
    ],
    ids=repr,
)
def test_the_error_is_at_most_q_times_the_square_of_the_vector(
    compressor: Compressor, v: Vector
) -> None:
    mean, error = squared_errors(compressor, v, 200)
    assert mean - 5 * error <= compressor.variance(v.size) * square(v) * (1 + 1e-6)


@pytest.mark.parametrize("v", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("norm", ["l2", "max"])
@pytest.mark.parametrize("levels", [1, 4, 16])
def test_the_error_of_qsgd_is_that_of_its_definition(norm: str, levels: int, v: Vector) -> None:
    size = float(np.linalg.norm(v.astype(np.float64), 2 if norm == "l2" else np.inf))
    up = unit_levels(v, levels, size) % 1  # the probability of the upper level
    expected = (size / levels) ** 2 * (up * (1 - up)).sum()
    mean, error = squared_errors(make_compressor("qsgd", levels=levels, norm=norm), v, 400)
    assert abs(mean - expected) <= 5 * error + 1e-5 * square(v)


@pytest.mark.parametrize("v", SHAPES.values(), ids=SHAPES.keys())
def test_the_error_of_randk_is_q_times_the_square(v: Vector) -> None:
    compressor = make_compressor("randk", ratio=0.1)
    assert compressor.variance(v.size) == pytest.approx(9)
    mean, error = squared_errors(compressor, v, 3000)
    assert abs(mean - 9 * square(v)) <= 5 * error + 1e-5 * square(v)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("v", SHAPES.values(), ids=SHAPES.keys())
def test_the_error_of_uniform_is_at_most_a_quarter_step_squared(v: Vector, bits: int) -> None:
    compressor = make_compressor("uniform", bits=bits, tensors=(100, 50))
    mean, error = squared_errors(compressor, v, 200)
    bound = sum(piece.size * step_of(piece, bits) ** 2 / 4 for piece in (v[:100], v[100:]))
    assert mean - 5 * error <= bound * (1 + 1e-6) + 1e-12 * square(v)


@pytest.mark.parametrize("options", [{"bits": 2}, {"bits": 8}, {"bits": 8, "zero_point_noise": 3}])
def test_the_variance_of_uniform_holds_for_gaussian_vectors(options: dict[str, int]) -> None:
    compressor, v = make_compressor("uniform", **options), gaussian(2000)
    mean, error = squared_errors(compressor, v, 200)
    assert mean - 5 * error <= compressor.variance(v.size) * square(v)


def test_variance_of_qsgd_by_hand() -> None:
    assert make_compressor("qsgd", levels=20).variance(100) == 0.25  # d/s^2
    assert make_compressor("qsgd", levels=5).variance(100) == 2.0  # sqrt(d)/s
    assert make_compressor("qsgd", levels=5, bucket=25).variance(100) == 1.0
    assert make_compressor("qsgd", levels=5, norm="max").variance(100) == 1.0  # d/(4 s^2)
