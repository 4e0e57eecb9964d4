"""The codec whose chances depend on rows, columns and neighbours."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedapp.compression import Compressor, PayloadError, contexts, make_compressor
from fedapp.compression.kernels import binary
from fedapp.compression.kernels import contextual as kernel
from fedapp.compression.payload import seal
from fedapp.errors import ConfigError
from fedapp.models.layout import Piece
from tests.support.vectors import gaussian

Vector = NDArray[np.float32]
KERNELS = Path(binary.__file__).parent
PIECES = (Piece(40 * 60, 60), Piece(40, 40), Piece(10 * 40, 40), Piece(10, 10))
SIZE = sum(piece.size for piece in PIECES)
SIZES = np.array([9])


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def update(noise: float = 0.3, seed: int = 1) -> Vector:
    """Return a vector like an update: of rank one and noise, some rows and columns still."""
    random = np.random.default_rng(seed)
    parts = []
    for size, columns in PIECES:
        rows = size // columns
        outer = np.outer(
            random.normal(size=rows) * (random.random(rows) < 0.6),
            random.exponential(size=columns) * (random.random(columns) < 0.5),
        )
        parts.append((outer + noise * np.abs(outer) * random.normal(size=outer.shape)).ravel())
    return np.concatenate(parts).astype(np.float32)


def error(v: Vector, w: Vector) -> float:
    return float(((v - w) ** 2).sum(dtype=np.float64) / (v**2).sum(dtype=np.float64))


def sent(codec: Compressor, v: Vector) -> tuple[int, float]:
    payload, seen = codec.transmit(v, rng())
    np.testing.assert_array_equal(codec.decode(payload, v.size), seen)
    return len(payload), error(v, seen)


@pytest.mark.parametrize("step", [0.05, 0.5, 2.0, 8.0])
def test_no_number_is_off_by_more_than_its_rounding_allows(step: float) -> None:
    v = update()
    w = make_compressor("contextual", step=step).for_pieces(PIECES).transmit(v, rng())[1]
    rms = np.sqrt((v.astype(np.float64) ** 2).mean())
    off = np.abs(v - w) / (step * rms)
    kept = w != 0
    assert off[kept].max() < 1.1
    assert np.abs(v)[~kept].max() < 3 * step * rms
    assert (np.sign(w[kept]) == np.sign(v[kept])).all()


def test_what_is_decoded_has_the_right_mean_at_every_small_magnitude() -> None:
    v = update()
    w = make_compressor("contextual", step=0.5).for_pieces(PIECES).transmit(v, rng())[1]
    for value in np.unique(np.abs(w[w != 0]))[:2]:
        of_it = np.abs(w) == value
        assert abs(np.abs(v[of_it]).mean() - value) <= 0.51 / 64 * 0.5 * np.sqrt((v**2).mean())


def test_rows_and_columns_pay() -> None:
    v = update()
    known, error_known = sent(make_compressor("contextual", step=1.0).for_pieces(PIECES), v)
    unknown, error_unknown = sent(make_compressor("contextual", step=1.0), v)
    shuffled = np.random.default_rng(3).permutation(v)
    no_order, _ = sent(make_compressor("contextual", step=1.0).for_pieces(PIECES), shuffled)
    assert known < 0.93 * unknown and known < 0.8 * no_order
    assert error_known < 1.1 * error_unknown


def test_it_takes_far_fewer_bytes_than_stochastic_rounding_at_the_same_error() -> None:
    v = update()
    size, nmse = sent(make_compressor("qsgd", levels=64), v)
    ours, error_ours = sent(make_compressor("contextual", nmse=nmse).for_pieces(PIECES), v)
    assert error_ours <= nmse and ours < 0.6 * size


def test_independent_gaussian_numbers_take_little_more_than_their_entropy() -> None:
    v = gaussian(20_000)
    size, nmse = sent(make_compressor("contextual", step=0.5), v)
    floor = -0.5 * np.log2(nmse)  # bits of the best code there can be
    assert floor < 8 * size / v.size < floor + 0.3  # a uniform quantizer's entropy is 0.25 above it


@settings(max_examples=30)
@given(st.floats(1e-3, 0.9), st.integers(0, 5))
def test_an_error_that_is_asked_for_is_kept(nmse: float, seed: int) -> None:
    v = update(seed=seed)
    _, found = sent(make_compressor("contextual", nmse=nmse).for_pieces(PIECES), v)
    assert found <= 1.001 * nmse
    assert found > 0.5 * nmse


@settings(max_examples=30)
@given(st.integers(25, 6000), st.integers(0, 5))
def test_a_length_that_is_asked_for_is_kept_and_used(most: int, seed: int) -> None:
    v = update(seed=seed)
    size, _ = sent(make_compressor("contextual", max_bytes=most).for_pieces(PIECES), v)
    assert size <= most
    finest, _ = sent(make_compressor("contextual", step=0.01).for_pieces(PIECES), v)
    assert size > 0.85 * min(most, finest) - 30


def test_a_finer_step_costs_more_and_errs_less() -> None:
    results = [
        sent(make_compressor("contextual", step=step).for_pieces(PIECES), update())
        for step in (0.1, 0.3, 1.0, 3.0, 10.0)
    ]
    sizes, errors = zip(*results, strict=True)
    assert sorted(sizes, reverse=True) == list(sizes) and sorted(errors) == list(errors)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nmse": 0.1, "max_bytes": 100}, "both choose the step"),
        ({"nmse": 1e-9}, "at least 0.00001"),
        ({"max_bytes": 5}, "at least 25"),
        ({"step": 0.0}, "greater than or equal to 0.01"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_compressor("contextual", **options)


def test_pieces_of_another_vector_are_refused() -> None:
    codec = make_compressor("contextual").for_pieces(PIECES)
    with pytest.raises(ConfigError, match="the vector has 7"):
        codec.encode(np.ones(7), rng())


@pytest.mark.parametrize("step", [-1.0, np.inf, np.nan, -np.inf])
def test_a_step_that_cannot_be_is_refused(step: float) -> None:
    codec = make_compressor("contextual")
    body = np.array([step], "<f8").tobytes() + bytes(3) + b"\x01\x02"
    with pytest.raises(PayloadError, match="its step"):
        codec.decode(seal(codec.codec, 50, body, codec.key), 50)


def test_words_behind_the_last_number_are_refused() -> None:
    codec = make_compressor("contextual")
    body = codec.write(*codec.quantize(gaussian(50), rng())) + b"\x01\x02" * 20
    with pytest.raises(PayloadError, match="too many"):
        codec.decode(seal(codec.codec, 50, body, codec.key), 50)


@pytest.mark.parametrize("words", [b"", b"\x00\x00" * 3 + b"\x01\x00"])
def test_numbers_larger_than_any_that_is_sent_are_refused_at_once(words: bytes) -> None:
    """All bits of no words are ones: a magnitude without end."""
    codec = make_compressor("contextual")
    body = np.array([1.0], "<f8").tobytes() + bytes(3) + words
    with pytest.raises(PayloadError, match="too large"):
        codec.decode(seal(codec.codec, 50, body, codec.key), 50)


def test_the_largest_magnitude_that_is_sent_arrives() -> None:
    v = np.full(9, 1e30, np.float32)
    v[4] = -2.0
    levels, words = contexts.coded(v, 0.0, ())
    back = np.zeros(9, np.int32)
    kernel.decode(v[:0], 0.0, back, SIZES, SIZES, words)
    np.testing.assert_array_equal(back, levels)
    assert levels[0] == kernel.LARGEST_LEVEL and levels[4] == -2


@pytest.mark.parametrize("most", [45, 60, 90])
def test_a_short_payload_holds_something_if_any_step_fits(most: int) -> None:
    for seed in range(8):
        v = np.random.default_rng(seed).standard_t(3, 30_000).astype(np.float32)
        steps = [2.0 ** (n / 4) for n in range(4, 33)]
        fits = any(0 < sent(make_compressor("contextual", step=s), v)[0] <= most
                   and sent(make_compressor("contextual", step=s), v)[1] < 1 for s in steps)  # fmt: skip
        size, nmse = sent(make_compressor("contextual", max_bytes=most), v)
        assert size <= most and (nmse < 1 or not fits)


def test_the_tables_are_the_same_whoever_computes_them() -> None:
    """No entry is so close to where rounding changes that another machine's logarithms could round it otherwise."""
    x = np.arange(4096)
    logits = binary.LOGITS_PER_UNIT * np.log((x + 0.5) / (4096 - x - 0.5))
    z = np.arange(-binary.LARGEST, binary.LARGEST + 1)
    chances = binary.ONE / (1 + np.exp(-z / binary.LOGITS_PER_UNIT))
    for exact in (logits, chances):
        assert np.abs(exact - np.floor(exact) - 0.5).min() > 1e-6


@pytest.mark.slow
def test_hostile_words_never_reach_outside_the_tables(tmp_path: Path) -> None:
    """Decode random and damaged words with the compiler's checks of every index on."""
    program = """
import numpy as np
from fedapp.compression.kernels import contextual as kernel
random, empty = np.random.default_rng(5), np.empty(0, np.float32)
count = 0
for number in range(300):
    sizes = random.integers(1, 400, random.integers(1, 4))
    columns = np.minimum(random.integers(1, 60, len(sizes)), sizes)
    words = random.integers(0, 1 << 16, random.integers(0, 400)).astype(np.uint16)
    kind = number % 4
    if kind == 1:
        words[:] = 0
    if kind == 2:
        words[:] = 65535
    if kind == 3:
        v = (random.normal(size=sizes.sum()) * random.choice([1, 1e3, 1e6])).astype(np.float32)
        words = np.empty(20 * v.size + 200, np.uint16)
        used = kernel.encode(v, 0.1, np.zeros(v.size, np.int32), sizes, columns, words)
        words = words[:used]
        words[random.integers(0, used, 3)] = random.integers(0, 1 << 16, 3)
    levels = np.zeros(sizes.sum(), np.int32)
    kernel.decode(empty, 0.0, levels, sizes, columns, words)
    count += len(levels)
print('{"decoded": %d}' % count)
"""
    checked = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | checked,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decoded"] > 10_000


def test_commands_that_code_nothing_do_not_load_the_compiler() -> None:
    program = "import sys, fedapp.compression, fedapp.parsing; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_cached_kernel_is_not_used_when_any_of_its_sources_has_changed(tmp_path: Path) -> None:
    """Each copy of the kernels has a cache of its own, named after all the sources; a change of one renames it."""
    place = tmp_path / "kernels"
    shutil.copytree(KERNELS, place, ignore=shutil.ignore_patterns("__pycache__"))
    program = "import sys; sys.path.insert(0, sys.argv[1]); import compiling; print(compiling.cache_directory())"
    named = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program, str(place)], capture_output=True, text=True, check=True
        )
        named.append(Path(done.stdout.strip()))
        assert named[-1].parent == place / "__pycache__" and named[-1].is_dir()
        with (place / "binary.py").open("a") as file:
            file.write("# changed\n")
    assert named[0] != named[1]
