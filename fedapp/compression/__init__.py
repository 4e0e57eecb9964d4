"""Compression of what clients send: quantizers, sparsifiers, entropy coding.

A compressor turns a vector into bytes and back; any algorithm can use any. `make_compressor` makes
one by name.
"""

from typing import Any

from fedapp.compression.compressor import Compressor
from fedapp.compression.payload import NotFiniteError, PayloadError
from fedapp.compression.quantizers import QSGD, Float16, Identity, Uniform
from fedapp.compression.sparsifiers import RandK, TopK
from fedapp.errors import ConfigError
from fedapp.names import did_you_mean

COMPRESSORS: dict[str, type[Compressor]] = {
    "none": Identity,
    "float16": Float16,
    "qsgd": QSGD,
    "uniform": Uniform,
    "topk": TopK,
    "randk": RandK,
}

__all__ = ["COMPRESSORS", "Compressor", "NotFiniteError", "PayloadError", "make_compressor"]


def make_compressor(name: str, **options: Any) -> Compressor:
    """Make a compressor by name.

    For example `make_compressor("topk", ratio=0.01, values=make_compressor("qsgd", levels=4))`.
    """
    if name not in COMPRESSORS:
        raise ConfigError(
            f"compressor = {name!r} is not known{did_you_mean(name, COMPRESSORS)}: "
            f"choose {', '.join(COMPRESSORS)}."
        )
    try:
        return COMPRESSORS[name](**options)
    except TypeError as error:
        raise ConfigError(f"The compressor {name} does not take that: {error}.") from None
