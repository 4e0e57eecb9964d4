"""Vectors that cannot be compressed, and options that make no compressor, are refused."""

import math
from typing import Any

import numpy as np
import pytest

from fedapp.compression import Compressor, make_compressor
from fedapp.compression.cells import CHUNK
from fedapp.errors import ConfigError
from tests.support.compressors import every_compressor
from tests.support.vectors import gaussian, generator, through


@every_compressor
@pytest.mark.filterwarnings("ignore:overflow")  # as float32, 1e39 is infinite
def test_numbers_that_are_not_finite_are_refused(compressor: Compressor) -> None:
    for position in (0, 5, CHUNK + 3):
        for wrong in (np.nan, np.inf, -np.inf, 1e39):
            v = np.zeros(position + 2)
            v[position] = wrong
            with pytest.raises(ValueError, match="finite"):
                compressor.encode(v, generator())
            with pytest.raises(ValueError, match="finite"):
                compressor.transmit(v, generator())


@every_compressor
def test_what_is_not_one_dimensional_is_refused(compressor: Compressor) -> None:
    shapes: list[tuple[int, ...]] = [(), (2, 3), (1, 5), (5, 1), (0, 3), (1, 1, 1)]
    for shape in shapes:
        with pytest.raises(ValueError, match="shape"):
            compressor.encode(np.zeros(shape, np.float32), generator())


@every_compressor
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_encoded_can_be_decoded_up_to_the_largest_float(compressor: Compressor) -> None:
    largest = float(np.finfo(np.float32).max)
    for v in ([largest, -largest / 3, 0, 1], [-largest] * 20, [largest, -largest, 1, 2, 3]):
        for seed in range(10):
            try:
                payload = compressor.encode(np.array(v, np.float32), generator(seed))
            except ValueError:
                continue
            compressor.decode(payload, len(v))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gzip", {}),
        ("", {}),
        ("QSGD", {}),
        ("none", {"levels": 1}),
        ("float16", {"bits": 16}),
        ("qsgd", {"bits": 8}),
        ("qsgd", {"levels": 0}),
        ("qsgd", {"levels": -1}),
        ("qsgd", {"levels": 32768}),
        ("qsgd", {"levels": 2.5}),
        ("qsgd", {"levels": "8"}),
        ("qsgd", {"norm": "l1"}),
        ("qsgd", {"bucket": -1}),
        ("qsgd", {"bucket": 2.5}),
        ("uniform", {"levels": 4}),
        ("uniform", {"bits": 0}),
        ("uniform", {"bits": 17}),
        ("uniform", {"bits": 7.5}),
        ("uniform", {"rounding": "up"}),
        ("uniform", {"zero_point_noise": -1}),
        ("uniform", {"tensors": (5, -2)}),
        ("uniform", {"tensors": 5}),
        ("topk", {"k": 3}),
        ("topk", {"ratio": 0}),
        ("topk", {"ratio": 2}),
        ("topk", {"ratio": -0.1}),
        ("topk", {"ratio": math.nan}),
        ("topk", {"ratio": "0.1"}),
        ("topk", {"values": "topk"}),
        ("randk", {"ratio": 0}),
        ("randk", {"ratio": 2}),
        ("randk", {"values": None}),
        ("dithered", {"step": 0.0}),
        ("dithered", {"step": -1.0}),
        ("dithered", {"step": 1e4}),
        ("dithered", {"nmse": -0.1}),
        ("dithered", {"levels": 3}),
        ("bfloat16", {"bits": 16}),
        ("natural", {"levels": 1}),
        ("sign", {"tensors": (-1,)}),
        ("ternary", {"ratio": 0}),
        ("topk", {"values": "ternaries"}),
        ("lowrank", {"rank": 0}),
        ("lowrank", {"rank": 2.5}),
    ],
)
def test_wrong_options_are_a_config_error(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_compressor(name, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qsgd", {"levels": 4.0}),
        ("qsgd", {"levels": np.int64(4)}),
        ("qsgd", {"levels": True}),
        ("qsgd", {"bucket": 2.0}),
        ("qsgd", {"bucket": np.int64(2)}),
        ("uniform", {"bits": 8.0}),
        ("uniform", {"bits": np.int64(8)}),
        ("uniform", {"zero_point_noise": 1.0}),
        ("uniform", {"tensors": [1, 2]}),
        ("uniform", {"tensors": (1.0, 2.0)}),
        ("topk", {"ratio": 1}),
        ("topk", {"ratio": np.float32(0.5)}),
    ],
)
def test_options_of_another_type_are_refused_or_work(name: str, options: dict[str, Any]) -> None:
    try:
        compressor = make_compressor(name, **options)
    except ConfigError:
        return
    assert through(compressor, gaussian(3)).shape == (3,)
    assert compressor.nominal_bits(3) > 0
    assert compressor.variance(3) >= 0
