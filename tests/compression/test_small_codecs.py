"""bfloat16, powers of two, signs, ternary and low rank, against their definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given

from fedapp.compression import NotFiniteError, PayloadError, make_compressor
from fedapp.compression.payload import seal
from fedapp.errors import ConfigError
from fedapp.models.layout import Piece
from tests.support.payloads import body_of
from tests.support.vectors import PROPERTY, Vector, gaussian, generator, same_bits, through, vectors


@PROPERTY
@given(vectors)
def test_bfloat16_rounds_as_torch_does(v: Vector) -> None:
    expected = torch.from_numpy(v).to(torch.bfloat16).to(torch.float32).numpy()
    assert same_bits(through(make_compressor("bfloat16"), v), expected)


def test_bfloat16_has_a_largest_number_instead_of_infinity() -> None:
    largest = np.float32(np.finfo(np.float32).max)
    out = through(make_compressor("bfloat16"), np.array([largest, -largest]))
    assert out.tolist() == [(2 - 2.0**-7) * 2.0**127, -(2 - 2.0**-7) * 2.0**127]


@PROPERTY
@given(vectors)
def test_natural_gives_one_of_the_two_nearest_powers_of_two(v: Vector) -> None:
    out = through(make_compressor("natural"), v).astype(np.float64)
    exact = v.astype(np.float64)
    mantissa, _ = np.frexp(out)
    assert np.isin(np.abs(mantissa), (0, 0.5)).all()
    assert (np.sign(out) == np.sign(exact)).all()
    some = exact != 0
    ratio = out[some] / exact[some]
    assert ((ratio > 0.5) & (ratio < 2)).all()
    powers = np.abs(np.frexp(exact)[0]) == 0.5
    assert (out[powers] == exact[powers]).all()


def test_natural_rounds_up_as_often_as_keeps_the_mean() -> None:
    """3 = 2 (1 + 1/2) goes up every second time; 5 = 4 (1 + 1/4) every fourth."""
    for number, up, share in ((3.0, 4.0, 0.5), (5.0, 8.0, 0.25), (-7.0, -8.0, 0.75)):
        out = through(make_compressor("natural"), np.full(40_000, number))
        assert np.isin(out, (up, up / 2)).all()
        assert (out == up).mean() == pytest.approx(share, abs=0.015)


def test_natural_refuses_what_it_could_round_to_infinity() -> None:
    with pytest.raises(NotFiniteError, match="powers of two"):
        make_compressor("natural").encode(np.full(99, 3e38, np.float32), generator())


@pytest.mark.parametrize("highest", [-32768, -150, 128, 32767])
def test_hostile_exponents_of_natural_are_refused(highest: int) -> None:
    compressor = make_compressor("natural")
    body = np.array(highest, "<i2").tobytes() + body_of(compressor, gaussian(50))[2:]
    with pytest.raises(PayloadError):
        compressor.decode(seal(compressor.codec, 50, body, compressor.key), 50)


def test_sign_sends_a_bit_a_number_and_a_mean_for_each_tensor() -> None:
    v = gaussian(10_000)
    v[4000:] *= 7
    compressor = make_compressor("sign").for_tensors((4000, 0, 6000))
    out = through(compressor, v)
    for part in (slice(0, 4000), slice(4000, None)):
        mean = np.abs(v[part].astype(np.float64)).mean()
        assert out[part] == pytest.approx(np.where(v[part] < 0, -mean, mean), rel=1e-6)
    assert len(compressor.encode(v, generator())) <= 10_000 / 8 + 40
    with pytest.raises(ConfigError, match="10 numbers, and the vector has 11"):
        make_compressor("sign").for_tensors((10,)).encode(gaussian(11), generator())


@pytest.mark.parametrize("mean", [-1.0, np.inf, -np.inf, np.nan])
def test_hostile_means_are_refused(mean: float) -> None:
    compressor = make_compressor("sign")
    body = np.array(mean, "<f4").tobytes() + body_of(compressor, gaussian(50))[4:]
    with pytest.raises(PayloadError):
        compressor.decode(seal(compressor.codec, 50, body, compressor.key), 50)


@pytest.mark.parametrize("ratio", [0.01, 0.2])
def test_ternary_is_the_signs_of_the_largest_times_their_mean(ratio: float) -> None:
    v = gaussian(2000)
    largest = np.argsort(-np.abs(v))[: round(ratio * 2000)]
    expected = np.zeros(2000)
    expected[largest] = np.sign(v[largest]) * np.abs(v[largest].astype(np.float64)).mean()
    assert through(make_compressor("ternary", ratio=ratio), v) == pytest.approx(expected, rel=1e-6)
    by_topk = through(make_compressor("topk", ratio=ratio, values="ternary"), v)
    assert same_bits(by_topk, through(make_compressor("ternary", ratio=ratio), v))


def low_rank_matrix(rank: int, rows: int = 40, columns: int = 30) -> Vector:
    rng = generator(4)
    return (
        (rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns)))
        .ravel()
        .astype(np.float32)
    )


def test_lowrank_keeps_matrices_of_that_rank_and_sends_vectors_in_half_precision() -> None:
    v = np.concatenate([low_rank_matrix(3), gaussian(40)])
    pieces = (Piece(1200, 30), Piece(40, 40))
    compressor = make_compressor("lowrank", rank=3).for_pieces(pieces)
    out = through(compressor, v)
    assert np.linalg.norm(out - v) < 2e-3 * np.linalg.norm(v)
    assert compressor.nominal_bits(1240) == 16 * (3 * 70 + 40)
    assert len(compressor.encode(v, generator())) <= compressor.nominal_bits(1240) / 8 + 30


def test_lowrank_is_near_the_best_of_its_rank() -> None:
    """The truncated singular value decomposition is the best; one power iteration comes close."""
    rng = generator(9)
    spectrum = 0.6 ** np.arange(30)
    left, right = (
        np.linalg.qr(rng.normal(size=(40, 30)))[0],
        np.linalg.qr(rng.normal(size=(30, 30)))[0],
    )
    matrix = left * spectrum @ right.T
    best = (spectrum[4:] ** 2).sum()
    compressor = make_compressor("lowrank", rank=4).for_pieces((Piece(1200, 30),))
    out = through(compressor, matrix.ravel().astype(np.float32)).reshape(40, 30)
    assert best * 0.99 < ((out - matrix) ** 2).sum() < 1.5 * best


def test_lowrank_takes_matrices_of_lower_rank_and_incomplete_rows() -> None:
    compressor = make_compressor("lowrank", rank=3)
    for v, pieces in (
        (low_rank_matrix(1), (Piece(1200, 30),)),
        (np.zeros(1200, np.float32), (Piece(1200, 30),)),
        (low_rank_matrix(1)[:1190], (Piece(1190, 30),)),
        (1e-44 * np.ones(1200, np.float32), (Piece(1200, 30),)),
    ):
        out = through(compressor.for_pieces(pieces), v).astype(np.float64)
        limit = 0.25 if v.size == 1190 or v.max() < 1e-40 else 1e-2
        assert np.linalg.norm(out - v) <= limit * np.linalg.norm(v.astype(np.float64))


def test_lowrank_refuses_factors_that_overflow() -> None:
    compressor = make_compressor("lowrank").for_pieces((Piece(1200, 30),))
    with pytest.raises(NotFiniteError, match="overflow"):
        compressor.encode(np.full(1200, 3e38, np.float32), generator())


def test_factors_that_are_not_smaller_are_not_used() -> None:
    compressor = make_compressor("lowrank", rank=18).for_pieces((Piece(1200, 30),))
    assert compressor.nominal_bits(1200) == 16 * 1200
    assert make_compressor("lowrank", rank=17).for_pieces((Piece(1200, 30),)).nominal_bits(
        1200
    ) == (16 * 17 * 70)
    with pytest.raises(ConfigError, match="10 numbers, and the vector has 11"):
        make_compressor("lowrank", pieces=(Piece(10, 5),)).encode(gaussian(11), generator())


@pytest.mark.parametrize("exponent", [-32768, 0, 120, 500, 32767])
def test_hostile_factors_give_finite_numbers_or_are_refused(exponent: int) -> None:
    compressor = make_compressor("lowrank", rank=2).for_pieces((Piece(400, 20),))
    body = bytearray(body_of(compressor, gaussian(400)))
    for place in (0, 2 + 80):  # the exponents of both factors
        body[place : place + 2] = np.array(exponent, "<i2").tobytes()
    body[2:4] = b"\xff\x7b"  # the largest half
    try:
        out = compressor.decode(seal(compressor.codec, 400, bytes(body), compressor.key), 400)
    except PayloadError:
        return
    assert np.isfinite(out).all()
