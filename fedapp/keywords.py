"""Configs from Python: a dict of keys, or keyword arguments, with Python objects where the config has names."""

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import numpy as np

from fedapp.algorithm import Algorithm
from fedapp.commandline import absolute_paths
from fedapp.compression import COMPRESSORS, Compressor
from fedapp.config import RunConfig
from fedapp.doors import name_of
from fedapp.errors import ConfigError
from fedapp.names import one_line
from fedapp.parsing import parse_run_config
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value

OBJECTS = ("algorithm", "compressor", "model", "dataset", "problem")  # keys that take objects


def as_config(config: RunConfig | Mapping[str, Any]) -> RunConfig:
    """Return a config as it is, or parse a dict of its keys."""
    return config if isinstance(config, RunConfig) else parse_run_config(as_values(config))


def as_values(keys: Mapping[str, Any]) -> dict[str, Value]:
    """Return keys as Flower writes them, one level, kebab-case, dotted; objects get names.

    `num_rounds` is `num-rounds`; `fedprox__mu`, and the key `mu` in a dict `fedprox`, are `fedprox.mu`.
    """
    values: dict[str, Value] = {}
    for key, value in keys.items():
        path = key_path(key)
        if path in OBJECTS:  # before dicts: a data set may be one
            found = _named(path, value)
        elif isinstance(value, Mapping):
            found = {f"{path}.{inner}": v for inner, v in as_values(value).items()}
        else:
            found = {path: _plain(path, value)}
        if twice := found.keys() & values.keys():
            raise ConfigError(f"{min(twice)} is given twice: leave one of them out.")
        values |= found
    return absolute_paths(values)


def key_path(key: str) -> str:
    """Return a key as the config writes it."""
    return key.replace("__", ".").replace("_", "-")


def _named(key: str, value: Any) -> dict[str, Value]:
    """Return the name of what a key is given, and the settings that come with it."""
    if isinstance(value, str):
        return {key: value}
    if isinstance(value, Algorithm) and ALGORITHMS.get(value.name) is value:
        return {key: value.name}
    if key == "compressor" and isinstance(value, Compressor):  # its settings are its table
        kind = type(value)
        settings = {f"{kind.name}.{k}": v for k, v in value.model_dump(by_alias=True).items()}
        return _named(key, kind) | settings
    if any(value is kind for kind in COMPRESSORS.values()):
        return {key: value.name}
    if value is None or isinstance(value, bool | int | float):
        raise ConfigError(f"{key} = {value!r} is not allowed: give a name or an object.")
    return {key: name_of(value)}


def _plain(key: str, value: Any) -> Value:
    """Return a plain value: a path is a text, a number of NumPy's a number."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PathLike):
        value = fspath(value)
    if not isinstance(value, bool | int | float | str):
        raise ConfigError(
            f"{key} = {one_line(repr(value))[:60]} is not allowed: it should be a number, a text or a truth value."
        )
    return value
