"""The leaderboard of codecs: its arithmetic, what it measures of ours and of peers, and the updates that it reads."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import peers, updates
from benchmarks.leaderboard import (
    Input,
    Row,
    bits_at,
    compare,
    floor,
    frontier,
    inputs,
    of_peer,
    ours,
    seconds_ratio,
)
from fedapp.compression import make_compressor
from fedapp.models.layout import Piece
from fedapp.randomness import generator


def row(bits: float, nmse: float, encode: float = 1.0, decode: float = 1.0) -> Row:
    return {"bits": bits, "nmse": nmse, "encode_seconds": encode, "decode_seconds": decode}


def small() -> Input:
    u = np.random.default_rng(1).standard_normal(600).astype(np.float32)
    return u, [(20, 5, 5), (100,)]


def test_settings_that_another_beats_in_bits_and_error_are_left_out() -> None:
    best = [row(1, 0.5), row(2, 0.2), row(3, 0.1)]
    beaten = [row(2.5, 0.2), row(2.2, 0.3), row(9, 0.0)]  # no error has no logarithm
    assert frontier([*beaten, *reversed(best)]) == best


def test_bits_between_two_settings_are_interpolated_in_log_log_and_never_beyond() -> None:
    rows = [row(1, 0.4), row(4, 0.1)]
    assert bits_at(rows, 0.2) == pytest.approx(2)
    assert bits_at(rows, 0.4) == pytest.approx(1) and bits_at(rows, 0.1) == pytest.approx(4)
    assert bits_at(rows, 0.41) is None and bits_at(rows, 0.09) is None


def test_another_bit_divides_the_error_of_the_best_code_by_four() -> None:
    assert floor(0.25) == 1 and floor(0.25 / 4) == 2


def test_times_are_compared_at_the_settings_closest_to_an_error() -> None:
    one = [row(1, 0.5, encode=2.0), row(1, 1e-6, encode=1000.0)]
    other = [row(1, 0.5, encode=8.0), row(1, 1e-7, encode=1e-9)]
    assert seconds_ratio(one, other, "encode_seconds") == pytest.approx(0.25)
    assert seconds_ratio(one, other, "decode_seconds") == pytest.approx(1)


def test_a_codec_with_half_of_anothers_bits_is_shown_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, other = ([row(bits * k, nmse) for bits, nmse in [(1, 0.9), (8, 0.001)]] for k in (1, 2))
    report = {"inputs": {"both": {"a": one, "b": other}, "without": {"a": one}}}
    compare(report, "a", "b")
    _, line, total = capsys.readouterr().out.strip().splitlines()
    assert line.split() == ["both", *8 * ["0.50"], "0.500", "1.00", "1.00"]
    assert total.split() == ["all", "0.500"]


def test_bytes_and_errors_of_ours_are_those_of_the_codec_on_the_tensors() -> None:
    u, shapes = small()
    found = ours((u, shapes), 1, ["lowrank"])
    assert list(found) == ["lowrank"]
    codec = make_compressor("lowrank", rank=2).for_pieces((Piece(500, 25), Piece(100, 100)))
    payload, seen = codec.transmit(u, generator(0, "codecs"))
    (measured,) = (each for each in found["lowrank"] if each["setting"] == "{'rank': 2}")
    assert measured["bytes"] == len(payload)
    assert measured["nmse"] == pytest.approx(((seen - u) ** 2).sum() / (u**2).sum(), rel=1e-5)
    assert 0 < measured["encode_seconds"] < 60 and 0 < measured["decode_seconds"] < 60


def test_a_quick_leaderboard_reads_the_middle_of_training_only(tmp_path: Path) -> None:
    u, shapes = small()
    objects = np.empty(2, object)
    objects[:] = shapes
    for name, factor in (("net-early", 1), ("net-middle", 2), ("net-middle-feedback", 3)):
        np.savez(tmp_path / f"{name}.npz", us=np.stack([factor * u, 0 * u]), shapes=objects)
    drawn = {"Gaussian", "Student t, 3"}
    quick, whole = inputs(tmp_path, True), inputs(tmp_path, False)
    assert quick.keys() - drawn == {"net-middle"}
    assert whole.keys() - drawn == {"net-early", "net-middle", "net-middle-feedback"}
    np.testing.assert_array_equal(quick["net-middle"][0], 2 * u)
    assert quick["net-middle"][1] == shapes
    assert inputs(None, False).keys() == drawn


# Peers.


def test_a_peer_that_is_not_installed_ends_the_leaderboard_with_its_error() -> None:
    with pytest.raises(SystemExit, match=r"(?s)zfp failed.*No package metadata was found for zfpy"):
        of_peer("zfp", sys.executable, small(), 1)


def test_a_peer_is_handed_the_vector_and_its_lines_come_back(tmp_path: Path) -> None:
    """A Python stands in that answers with what it was called with, and what the file holds."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, numpy as np\n"
        "script, name, path, *rest = sys.argv[1:]\n"
        "file = np.load(path, allow_pickle=True)\n"
        "print(json.dumps({'version': '1.2'}))\n"
        "print(json.dumps({'called': [os.path.basename(script), name, *rest], 'sum': float(file['u'].sum()),\n"
        "                  'shapes': [list(s) for s in file['shapes']], 'threads': os.environ['OMP_NUM_THREADS']}))\n"
    )
    python.chmod(0o755)
    u, shapes = small()
    version, (answer,) = of_peer("zfp", str(python), (u, shapes), 3)
    assert version == "1.2"
    assert answer == {
        "called": ["peers.py", "zfp", "--repeats", "3"],
        "sum": float(u.sum()),
        "shapes": [list(shape) for shape in shapes],
        "threads": "1",
    }


def test_a_peers_bytes_count_its_scale_and_its_error_is_relative() -> None:
    u = np.array([3.0, -4.0], np.float32)
    calls: list[str] = []

    def encode() -> tuple[Any, int]:
        calls.append("encode")
        return u, 10

    def decode(data: Any) -> Any:
        calls.append("decode")
        return data * np.float32(0.5)

    found = peers.measured(("half", encode, decode), u, 2)
    assert calls == ["encode", "decode"] * 2
    assert found["setting"] == "half" and found["bytes"] == 10 + peers.SCALE
    assert found["nmse"] == pytest.approx(0.25)


# Updates.


def test_updates_are_what_clients_hand_over_with_and_without_what_was_left_behind() -> None:
    """Nothing is left behind before the first round. In the second, a vector leans to what is."""
    training = updates.Training({"local-steps": 1, "batch-size": 8}, {"early": 1, "late": 2})
    plain, shapes, accuracy = updates.captured(training, "", False)
    fed, same, _ = updates.captured(training, "", True)
    assert len(plain) == len(fed) == updates.CLIENTS * 2 and 0 <= accuracy <= 1
    assert list(shapes) == list(same)
    sizes = {sum(int(np.prod(shape)) for shape in shapes), *(len(v) for v in plain + fed)}
    assert len(sizes) == 1
    for one, other in zip(plain[: updates.CLIENTS], fed, strict=False):
        np.testing.assert_array_equal(one, other)
    left = [v - updates.WatchedTopK().transmit(v, generator(0, "x"))[1] for v in fed[:4]]
    assert all(np.abs(v).sum() > 0 for v in left)
    assert all(float(v @ e) > float(e @ e) / 2 for v, e in zip(fed[4:], left, strict=True))
