"""The algorithms and compressors by name: those of this package, and others by "package.module:name"."""

import importlib
import pkgutil
import sys
from functools import lru_cache
from types import ModuleType

import strategies
from fedapp.algorithm import Algorithm
from fedapp.compression import COMPRESSORS, Compressor, compressor_type
from fedapp.compression.budgeted import with_budget
from fedapp.config import RunConfig, budget_of
from fedapp.doors import find_object, is_outside, times_given
from fedapp.errors import ConfigError
from fedapp.models.layout import Piece
from fedapp.names import did_you_mean


def declared(package: ModuleType) -> dict[str, Algorithm]:
    """Return the algorithms that the modules of a package declare, by name."""
    found: dict[str, Algorithm] = {}
    for module in pkgutil.iter_modules(package.__path__):
        content = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
        for value in content.values():
            if isinstance(value, Algorithm) and found.setdefault(value.name, value) is not value:
                raise ValueError(f"two algorithms are named {value.name}")
    return found


ALGORITHMS = declared(strategies)


def find_algorithm(name: str) -> Algorithm:
    """Return an algorithm by its name, or by "package.module:name"."""
    if is_outside(name):
        found = find_object("algorithm", name)
        if not isinstance(found, Algorithm):
            raise ConfigError(f"algorithm = {name!r} does not name an Algorithm of that module.")
        return found
    if name not in ALGORITHMS:
        raise ConfigError(
            f"algorithm = {name!r} is not known{did_you_mean(name, ALGORITHMS)}: "
            "`fedapp algorithms` lists those there are."
        )
    return ALGORITHMS[name]


def module_of(algorithm: Algorithm) -> ModuleType:
    """Return the module of `strategies` that declares an algorithm; its docstring names the paper."""
    return next(
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(f"{strategies.__name__}.")
        and any(value is algorithm for value in vars(module).values())
    )


def keeps_state(config: RunConfig) -> bool:
    """Return whether clients remember something between rounds."""
    return find_algorithm(config.algorithm).keeps_state(config)


def find_compressor(config: RunConfig, pieces: tuple[Piece, ...]) -> Compressor | None:
    """Return what clients compress a vector of these tensors with; None if they do not compress."""
    return _find_compressor(config, pieces, times_given())


@lru_cache(maxsize=8)
def _find_compressor(config: RunConfig, pieces: tuple[Piece, ...], times: int) -> Compressor | None:
    name = config.compressor or find_algorithm(config.algorithm).compressor
    budget = budget_of(config.uplink_budget)
    if name == "none":
        if budget:
            raise ConfigError(
                f'uplink-budget = "{config.uplink_budget}" is met by compression: set compressor, to "dithered" for example.'
            )
        return None
    settings = {other: config.table(kind) for other, kind in COMPRESSORS.items()}
    compressor = config.table(compressor_type(name)).complete(settings).for_pieces(pieces)
    if not budget:
        return compressor
    return with_budget(compressor, budget, len(find_algorithm(config.algorithm).client.sends))
