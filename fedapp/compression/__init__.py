"""Compression of what clients send: quantizers, sparsifiers, entropy coding.

A compressor turns a vector into bytes and back; any algorithm can use any. `make_compressor` makes one by name. A new
one is a class in a module of this package, with its own `name` and `codec`.
"""

import importlib
import pkgutil
from typing import Any

from pydantic import ValidationError

from fedapp.compression.compressor import Compressor, known
from fedapp.compression.payload import NotFiniteError, PayloadError
from fedapp.doors import find_object, is_outside
from fedapp.errors import ConfigError
from fedapp.names import did_you_mean
from fedapp.tables import sentence

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
COMPRESSORS = known()
FIRST_OUTSIDE_CODEC = 128  # smaller ones are for compressors of this package

__all__ = [
    "COMPRESSORS",
    "Compressor",
    "NotFiniteError",
    "PayloadError",
    "compressor_type",
    "make_compressor",
]


def compressor_type(name: str) -> type[Compressor]:
    """Return a compressor's class by its name in the config, or by "package.module:name"."""
    if is_outside(name):
        return _outside_type(name)
    if name not in COMPRESSORS:
        raise ConfigError(
            f"compressor = {name!r} is not known{did_you_mean(name, COMPRESSORS)}: "
            f"choose {', '.join(COMPRESSORS)}."
        )
    return COMPRESSORS[name]


def _outside_type(name: str) -> type[Compressor]:
    found = find_object("compressor", name)
    if not (isinstance(found, type) and issubclass(found, Compressor)):
        raise ConfigError(
            f"compressor = {name!r} does not name a class derived from fedapp.Compressor."
        )
    lacking = ["name"] * (not hasattr(found, "name")) + sorted(found.__abstractmethods__)
    if lacking:
        raise ConfigError(
            f"compressor = {name!r} is not complete: add {', '.join(lacking)} to its class."
        )
    if not FIRST_OUTSIDE_CODEC <= found.codec < 256:
        raise ConfigError(
            f"compressor = {name!r} has codec = {found.codec}: choose one from {FIRST_OUTSIDE_CODEC} to 255."
        )
    return found


def make_compressor(name: str, **options: Any) -> Compressor:
    """Make a compressor by name.

    For example `make_compressor("topk", ratio=0.01, values=make_compressor("qsgd", levels=4))`.
    """
    try:
        return compressor_type(name)(**options)
    except ValidationError as invalid:
        raise ConfigError(sentence(invalid, name)) from None
