"""Compression of what clients send: quantizers, sparsifiers, entropy coding.

A compressor turns a vector into bytes and back; any algorithm can use any. `make_compressor` makes one by name. A new
one is a class in a module of this package, with a `name` and a `codec` of its own.
"""

import importlib
import pkgutil
from typing import Any

from pydantic import ValidationError

from fedapp.compression.compressor import Compressor, known
from fedapp.compression.payload import NotFiniteError, PayloadError
from fedapp.errors import ConfigError
from fedapp.names import did_you_mean
from fedapp.tables import sentence

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
COMPRESSORS = known()

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "NotFiniteError",
    "PayloadError",
    "compressor_type",
    "make_compressor",
]


def compressor_type(name: str) -> type[Compressor]:
    """Return a compressor's class by its name in the config."""
    if name not in COMPRESSORS:
        raise ConfigError(
            f"compressor = {name!r} is not known{did_you_mean(name, COMPRESSORS)}: "
            f"choose {', '.join(COMPRESSORS)}."
        )
    return COMPRESSORS[name]


def make_compressor(name: str, **options: Any) -> Compressor:
    """Make a compressor by name.

    For example `make_compressor("topk", ratio=0.01, values=make_compressor("qsgd", levels=4))`.
    """
    try:
        return compressor_type(name)(**options)
    except ValidationError as invalid:
        raise ConfigError(sentence(invalid, name)) from None
