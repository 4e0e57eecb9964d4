"""Subtractive dither: its error is what it says, rows and columns pay, and it beats random rounding."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.compression import Compressor, PayloadError, dither_model, make_compressor
from fedapp.compression.payload import seal
from fedapp.compression.scales import NOTHING, find_scales
from fedapp.errors import ConfigError
from fedapp.models.layout import Piece
from fedapp.parsing import parse_run_config
from tests.support.payloads import body_of
from tests.support.vectors import PROPERTY, SEEDS, Vector, gaussian, generator, same_bits, through


def error(compressor: Compressor, v: Vector, seed: int = 0) -> float:
    """Return |Q(v) - v|^2 / |v|^2."""
    exact = v.astype(np.float64)
    return float(((through(compressor, v, seed) - exact) ** 2).sum() / (exact**2).sum())


def bits(compressor: Compressor, v: Vector) -> float:
    return 8 * len(compressor.encode(v, generator())) / v.size


def like_an_update(rows: int = 120, columns: int = 80) -> tuple[Vector, tuple[Piece, ...]]:
    """Return a matrix whose rows and columns differ much in size, some of them zero, and a bias."""
    rng = generator(3)
    scale = np.exp(0.7 * rng.normal(size=(rows, 1))) * np.exp(0.7 * rng.normal(size=columns))
    matrix = scale * rng.laplace(size=(rows, columns))
    matrix[rng.random(rows) < 0.2] = 0
    v = np.concatenate([matrix.ravel(), rng.normal(size=rows)]).astype(np.float32)
    return v, (Piece(rows * columns, columns), Piece(rows, rows))


def test_an_error_that_no_step_gives_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dithered\.nmse = 1e-20 is not allowed"):
        parse_run_config({"compressor": "dithered", "dithered.nmse": 1e-20})


@pytest.mark.parametrize("nmse", [0.01, 0.1, 0.5, 2.0])
def test_the_error_is_the_one_asked_for(nmse: float) -> None:
    v, pieces = like_an_update()
    compressor = make_compressor("dithered", nmse=nmse).for_pieces(pieces)
    assert np.mean([error(compressor, v, seed) for seed in range(20)]) == pytest.approx(
        nmse, rel=0.03
    )


def test_a_number_is_decoded_as_k_plus_u_times_delta() -> None:
    """The definition, with u drawn by hand from the seed in the payload."""
    v, compressor = gaussian(1001), make_compressor("dithered", step=2.0)
    seed = int(np.frombuffer(body_of(compressor, v)[:8], "<u8")[0])
    raw = np.random.PCG64(seed).random_raw(501).view("<u4")[:1001]
    u = (raw // 256 + 0.5) / 2**24 - 0.5
    dither, _ = compressor.quantize(v, generator())
    (delta,) = dither.steps  # one row, one scale
    expected = (np.rint(v / delta - u) + u) * delta
    assert through(compressor, v) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("step", [0.3, 1.0, 2.5])
def test_the_error_is_uniform_and_does_not_depend_on_the_vector(step: float) -> None:
    v = gaussian(50_000)
    residual = through(make_compressor("dithered", step=step), v).astype(np.float64) - v
    delta = math.sqrt(12 * (residual**2).mean())
    assert np.abs(residual).max() <= delta / 2 * 1.02
    histogram = np.histogram(residual, 10, (-delta / 2, delta / 2))[0]
    assert np.abs(histogram / 5000 - 1).max() < 0.1
    assert abs(np.corrcoef(residual, v)[0, 1]) < 5 / math.sqrt(v.size)


@pytest.mark.parametrize("levels", [100, 300, 1000])
def test_at_equal_bytes_it_has_at_most_half_the_error_of_qsgd(levels: int) -> None:
    v, pieces = like_an_update()
    for vector, known in ((gaussian(v.size), (Piece(v.size, v.size),)), (v, pieces)):
        other = make_compressor("qsgd", levels=levels)
        ours = make_compressor("dithered", nmse=error(other, vector) / 2).for_pieces(known)
        assert bits(ours, vector) <= bits(other, vector)


@pytest.mark.parametrize("number_bits", [5, 8])
def test_at_equal_bytes_it_has_at_most_half_the_error_of_uniform(number_bits: int) -> None:
    v, pieces = like_an_update()
    for vector, known in ((gaussian(v.size), (Piece(v.size, v.size),)), (v, pieces)):
        other = make_compressor("uniform", bits=number_bits)
        ours = make_compressor("dithered", nmse=error(other, vector) / 2).for_pieces(known)
        assert bits(ours, vector) <= bits(other, vector)


@pytest.mark.parametrize(("nmse", "limit"), [(0.535, 1.03), (0.098, 2.02), (0.03, 2.82)])
def test_gaussian_numbers_take_hardly_more_than_the_information(nmse: float, limit: float) -> None:
    """I(X; X + U) is 1.014, 1.998 and 2.805 bits: theory's word on what this quantizer needs."""
    assert bits(make_compressor("dithered", nmse=nmse), gaussian(300_000)) <= limit


def test_rows_and_columns_pay() -> None:
    v, pieces = like_an_update()
    plain = make_compressor("dithered", nmse=0.1)
    assert bits(plain.for_pieces(pieces), v) < 0.8 * bits(plain, v)


def test_rows_and_columns_of_zeros_stay_zero() -> None:
    v, pieces = like_an_update()
    v[: pieces[0].size].reshape(120, 80)[:, 7] = 0
    out = through(make_compressor("dithered").for_pieces(pieces), v)
    matrix, sent = v[: pieces[0].size].reshape(120, 80), out[: pieces[0].size].reshape(120, 80)
    assert not sent[~matrix.any(axis=1)].any()
    assert not sent[:, 7].any()
    assert np.count_nonzero(sent) > 5000


def test_a_zero_vector_takes_few_bytes() -> None:
    for size in (0, 1, 100_000):
        v = np.zeros(size, np.float32)
        payload = make_compressor("dithered").encode(v, generator())
        assert len(payload) < 60
        assert not make_compressor("dithered").decode(payload, size).any()


def test_other_tensors_than_those_of_the_vector_are_refused() -> None:
    compressor = make_compressor("dithered").for_pieces((Piece(10, 5),))
    with pytest.raises(ConfigError, match="10 numbers, and the vector has 11"):
        compressor.encode(gaussian(11), generator())


@PROPERTY
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 70)), min_size=1, max_size=5),
    st.sampled_from([0.001, 0.3, 2.0, 40.0]),
    st.floats(-30, 30),
    SEEDS,
)
def test_any_tensors_come_back(
    shapes: list[tuple[int, int]], step: float, scale: float, seed: int
) -> None:
    """Tensors whose last row is incomplete are among them, and empty ones."""
    pieces = tuple(Piece(size, columns) for size, columns in shapes)
    compressor = make_compressor("dithered", step=step).for_pieces(pieces)
    rng, size = generator(seed), sum(piece.size for piece in pieces)
    v = (10**scale * rng.normal(size=size) * (rng.random(size) < 0.7)).astype(np.float32)
    payload, sent = compressor.transmit(v, generator(seed))
    assert same_bits(compressor.decode(payload, size), sent)
    exact = v.astype(np.float64)
    assert ((sent - exact) ** 2).sum() <= 3 * step**2 / 12 * (exact**2).sum() * (1 + 1e-5)


def test_classes_are_the_sums_of_the_exponents_of_rows_and_columns() -> None:
    v = np.outer(2.0 ** np.arange(6), 4.0 ** np.arange(5)).ravel().astype(np.float32)
    v = np.tile(v, 100)  # enough numbers that scales of columns pay
    pieces = (Piece(v.size, 5),)
    scales = find_scales(v, pieces, lambda exponents: np.maximum(exponents + 50, 0) ** 2)
    assert scales.kinds.tolist() == [3]
    found = scales.exponents(scales.classes).reshape(-1, 5)
    assert (np.diff(found, axis=1) == 4).all()  # a factor of 4, in powers of sqrt(2)
    assert (np.diff(found[:6], axis=0) == 2).all()
    assert NOTHING not in scales.classes


def test_the_tables_of_probabilities_are_those_of_the_distributions() -> None:
    """Gaussian and Laplace, against scipy."""
    from scipy import stats

    starts = np.concatenate([[0.0], dither_model.EDGES[:-1]])
    u = 0.5 - (starts + dither_model.EDGES) / 2
    for beta, law in ((2, stats.laplace(scale=math.sqrt(0.5))), (4, stats.norm())):
        for index in (24, 32, 40):  # deviations 1/4, 1, 4
            deviation = 2.0 ** (index / 4 - 8)
            table = dither_model._table(beta * dither_model.DEVIATIONS + index)
            reach = (table.shape[1] - 2) // 2
            k = np.arange(-reach, reach + 1)
            upper, lower = ((k + u[:, None] + e) / deviation for e in (0.5, -0.5))
            assert np.abs(table[:, :-1] - (law.cdf(upper) - law.cdf(lower))).max() < 4e-3
            assert table.sum(axis=1) == pytest.approx(1)


@pytest.mark.parametrize("step", [0.0, -1.0, 1e-80, 1e80, np.inf, np.nan])
def test_hostile_steps(step: float) -> None:
    compressor, v = make_compressor("dithered"), gaussian(100)
    body = bytearray(body_of(compressor, v))
    body[8:16] = np.array(step, "<f8").tobytes()
    with pytest.raises(PayloadError):
        compressor.decode(seal(compressor.codec, 100, bytes(body), compressor.key), 100)


@pytest.mark.parametrize("step", [1e-69, 1e-30, 1e30, 1e69])
@pytest.mark.parametrize("lowest", [-301, -300, 0, 300, 301])
def test_hostile_steps_and_scales_give_finite_numbers_or_are_refused(
    step: float, lowest: int
) -> None:
    compressor, v = make_compressor("dithered"), gaussian(100)
    body = bytearray(body_of(compressor, v))
    body[8:16] = np.array(step, "<f8").tobytes()
    body[16:18] = np.array(lowest, "<i2").tobytes()
    try:
        out = compressor.decode(seal(compressor.codec, 100, bytes(body), compressor.key), 100)
    except PayloadError:
        return
    assert np.isfinite(out).all()
