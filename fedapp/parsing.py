"""From the values of a run config to a checked `RunConfig` with the tables of all parts.

`pyproject.toml` declares the same keys and defaults, because Flower refuses a key that is not declared there.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flwr.common.config import unflatten_dict
from pydantic import ValidationError, create_model

from fedapp.compression import COMPRESSORS, compressor_type
from fedapp.config import RunConfig
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.keys import read_assignments
from fedapp.problems.kinds import KINDS
from fedapp.registry import ALGORITHMS, find_algorithm
from fedapp.tables import Table, Value, sentence, sentences

# TOML has no key that is a text and a table at once, so these belong to a table of another name.
OTHER_NAMES = {"downlink.kappa": "grid.kappa", "downlink.keep": "grid.keep"}


def tables() -> dict[str, type[Table]]:
    """Return the tables of algorithms, compressors and problems by name, in the order of the config."""
    found: dict[str, type[Table]] = {}
    for algorithm in ALGORITHMS.values():
        if algorithm.has_options:
            found[algorithm.table] = algorithm.options
    found |= {name: kind for name, kind in COMPRESSORS.items() if kind.model_fields}
    for problem in KINDS:
        found |= problem.tables
    return found


def config_type(algorithm: str = "", compressor: str = "") -> type[RunConfig]:
    """Return the run config with all tables, those of an algorithm and a compressor from elsewhere included."""
    outside: list[tuple[str, str, type[Table]]] = []
    if is_outside(algorithm) and (other := find_algorithm(algorithm)).has_options:
        outside.append((f"algorithm = {algorithm!r}", other.table, other.options))
    if is_outside(compressor) and (kind := compressor_type(compressor)).model_fields:
        outside.append((f"compressor = {compressor!r}", kind.name, kind))
    return _config_type(tuple(outside))


@lru_cache(maxsize=8)
def _config_type(outside: tuple[tuple[str, str, type[Table]], ...]) -> type[RunConfig]:
    found = tables()
    for what, table, options in outside:
        if table in RunConfig.model_fields or table in found:
            raise ConfigError(
                f"{what} names its table {table}, which fedapp has already: choose another name."
            )
        if options in found.values():  # a table is found by its class
            raise ConfigError(
                f"{what} takes its options from one of fedapp's: derive a class of its own."
            )
        found[table] = options
    fields: dict[str, Any] = {name: (kind, kind()) for name, kind in found.items()}
    return create_model("RunConfig", __base__=RunConfig, **fields)


def parse_run_config(values: Mapping[str, Value]) -> RunConfig:
    """Check a flat run config; whatever is wrong becomes one sentence."""
    kind, nested = _prepared(values)
    try:
        config = kind.model_validate(nested)
    except ValidationError as invalid:
        raise ConfigError(sentence(invalid, model=kind)) from None
    if config.compressor:
        compressor_type(config.compressor)
    return config


def config_problems(values: Mapping[str, Value]) -> list[str]:
    """Return a sentence for each thing that is wrong with a flat run config."""
    try:
        kind, nested = _prepared(values)
        kind.model_validate(nested)
        parse_run_config(values)
    except ValidationError as invalid:
        return sentences(invalid, model=kind)
    except ConfigError as error:
        return [str(error)]
    return []


def _prepared(values: Mapping[str, Value]) -> tuple[type[RunConfig], dict[str, Any]]:
    """Return the type of a run config, and its values in tables, with the keys that `options` carries."""
    carried = _carried(values.get("options", ""))
    for key in carried.keys() & values.keys():
        if carried[key] != values[key]:
            raise ConfigError(
                f"{key} is {values[key]!r} and in options {carried[key]!r}: set it in one of the two places."
            )
    values = {OTHER_NAMES.get(key, key): value for key, value in {**values, **carried}.items()}
    named = (values.get(key, "") for key in ("algorithm", "compressor"))
    kind = config_type(*(name if isinstance(name, str) else "" for name in named))
    try:
        return kind, unflatten_dict(values)
    except TypeError:  # one key is a value and a table at once
        raise ConfigError("A config key is given both a value and keys of its own.") from None


def _carried(options: Value) -> dict[str, Value]:
    """Return the keys that the key `options` carries."""
    if not isinstance(options, str) or not options:
        return {}
    carried = read_assignments(options)
    if not carried or "options" in carried:
        raise ConfigError(
            f"options = {options!r} is not understood: write key=value with TOML values, separated by spaces."
        )
    return carried
