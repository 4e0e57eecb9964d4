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
from fedapp.errors import ConfigError
from fedapp.problems.kinds import KINDS
from fedapp.registry import ALGORITHMS, find_algorithm
from fedapp.tables import Table, Value, sentence


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


@lru_cache(maxsize=8)
def config_type(algorithm: str = "") -> type[RunConfig]:
    """Return the run config with all tables, that of an algorithm from elsewhere included."""
    found = tables()
    if ":" in algorithm and (other := find_algorithm(algorithm)).has_options:
        if other.table in RunConfig.model_fields or other.table in found:
            raise ConfigError(
                f"algorithm = {algorithm!r} names its table {other.table}, which fedapp has already: choose another name."
            )
        if other.options in found.values():  # a table is found by its class
            raise ConfigError(
                f"algorithm = {algorithm!r} takes its options from one of fedapp's: derive a class of its own."
            )
        found[other.table] = other.options
    fields: dict[str, Any] = {name: (kind, kind()) for name, kind in found.items()}
    return create_model("RunConfig", __base__=RunConfig, **fields)


def parse_run_config(values: Mapping[str, Value]) -> RunConfig:
    """Check a flat run config; whatever is wrong becomes one sentence."""
    name = values.get("algorithm", "")
    kind = config_type(name if isinstance(name, str) and ":" in name else "")
    try:
        config = kind.model_validate(unflatten_dict(dict(values)))
    except ValidationError as invalid:
        raise ConfigError(sentence(invalid, model=kind)) from None
    except TypeError:  # one key is a value and a table at once
        raise ConfigError("A config key is given both a value and keys of its own.") from None
    if config.compressor:
        compressor_type(config.compressor)
    return config
