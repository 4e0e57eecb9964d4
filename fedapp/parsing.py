"""From the values of a run config to a checked `RunConfig` with the tables of all parts.

`pyproject.toml` declares the same keys and defaults, because Flower refuses a key that is not declared there.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flwr.common.config import unflatten_dict
from pydantic import ValidationError, create_model

from fedapp.compression import COMPRESSORS
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.names import did_you_mean
from fedapp.registry import ALGORITHMS, find_algorithm
from fedapp.tables import Table, Value, sentence


def tables() -> dict[str, type[Table]]:
    """Return the tables of algorithms and compressors by name, in the order of the config."""
    found: dict[str, type[Table]] = {}
    for algorithm in ALGORITHMS.values():
        if algorithm.has_options:
            found[algorithm.table] = algorithm.options
    return found | {name: kind for name, kind in COMPRESSORS.items() if kind.model_fields}


@lru_cache(maxsize=8)
def config_type(algorithm: str = "") -> type[RunConfig]:
    """Return the run config with all tables, that of an algorithm from elsewhere included."""
    found = tables()
    if ":" in algorithm:
        other = find_algorithm(algorithm)
        if other.has_options and found.setdefault(other.table, other.options) is not other.options:
            raise ConfigError(
                f"algorithm = {algorithm!r} has a table named {other.table}, and so has one of fedapp's: rename it."
            )
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
    if config.compressor and config.compressor not in COMPRESSORS:
        raise ConfigError(
            f"compressor = {config.compressor!r} is not known{did_you_mean(config.compressor, COMPRESSORS)}: "
            f"choose {', '.join(COMPRESSORS)}."
        )
    return config
