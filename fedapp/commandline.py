"""Run configs on a command line: preset files, and `key=value` assignments as `flwr run -c` takes them."""

import os
import tomllib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import typer

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.keys import Key, declared_keys, read_assignments
from fedapp.tables import Value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a preset or a sweep."""
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"The preset {path} cannot be read: {error}; TOML wants quotes around words, as in "
            'algorithm = "fedprox".'
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"The preset {path} cannot be read: {error}.") from None


def flat_keys(path: Path, table: dict[str, Any]) -> dict[str, Value]:
    """Return the keys of a file as Flower writes them: one level, dotted."""
    from flwr.common.config import flatten_dict  # all of Flower comes with it: half a second

    try:
        return dict(flatten_dict(table))
    except ValueError as error:
        raise ConfigError(f"The preset {path} cannot be read: {error}.") from None


def read_overrides(presets: Sequence[Path], assignments: Sequence[str]) -> dict[str, Value]:
    """Read preset files and `key=value` strings as `flwr run -c` does; later ones win."""
    values: dict[str, Value] = {}
    for preset in presets:
        table = read_toml(preset)
        if "sweep" in table or "include" in table:
            raise ConfigError(
                f"{preset} is a sweep: run it with `fedapp run`; this command takes one run's keys."
            )
        values |= flat_keys(preset, table)
    for assignment in assignments:
        parsed = read_assignments(assignment, _text_keys())
        if not parsed:
            raise ConfigError(f"-c {assignment!r} is not understood: {_advice(assignment)}.")
        values |= parsed
    return values


def _advice(assignment: str) -> str:
    """Say how to write what could not be read."""
    if assignment.endswith(".toml"):
        return f"give a preset without -c, as in fedapp run {assignment}"
    if "=" in assignment and " " in assignment:
        return "put quotes around a value with spaces, as in -c 'uplink-budget=\"50 kB\"'"
    return "write key=value, for example -c algorithm=fedprox or -c lr=0.05"


def absolute_paths(values: dict[str, Value]) -> dict[str, Value]:
    """Make a run's paths absolute, seen from the working directory."""
    paths = ["data-dir", "results-dir", "state-dir", "resume"]
    if values.get("vit.weights") != "imagenet":
        paths.append("vit.weights")
    return values | {
        key: os.path.abspath(os.path.expanduser(value))
        for key in paths
        if isinstance(value := values.get(key), str) and value
    }


def read_config(presets: Sequence[Path], assignments: Sequence[str]) -> RunConfig:
    """Return the run config that preset files and assignments give."""
    from fedapp.parsing import parse_run_config  # slow to import: Flower comes with it

    return parse_run_config(absolute_paths(read_overrides(presets, assignments)))


# Shell completion.


def complete_preset(incomplete: str) -> list[str]:
    """Return the TOML files and directories whose paths begin with `incomplete`."""
    parent, slash, start = incomplete.rpartition("/")
    prefix = parent + slash
    directory = Path(prefix or ".").expanduser()
    found = sorted(directory.iterdir()) if directory.is_dir() else []
    return [
        f"{prefix}{path.name}{'/' if path.is_dir() else ''}"
        for path in found
        if path.name.startswith(start) and (path.is_dir() or path.suffix == ".toml")
    ]


@lru_cache(maxsize=1)
def _declared_keys() -> tuple[Key, ...]:
    from fedapp.parsing import config_type

    return tuple(declared_keys(config_type()))


def _text_keys() -> set[str]:
    """Return the keys whose values are texts: `run-name=2` needs no quotes."""
    return {key.path for key in _declared_keys() if isinstance(key.default, str)}


def complete_key(incomplete: str) -> list[str]:
    """Return the config keys that begin with `incomplete`."""
    return [k.path for k in _declared_keys() if k.path.startswith(incomplete)]


def complete_assignment(incomplete: str) -> list[str]:
    """Return `key=` for the config keys that begin so, or `key=name` for the names that a key takes."""
    key, is_set, _ = incomplete.partition("=")
    if not is_set:
        return [f"{name}=" for name in complete_key(incomplete)]
    values = [f"{key}={name}" for name in names_of(key)]
    return [value for value in values if value.startswith(incomplete)]


def names_of(key: str) -> list[str]:
    """Return the names that a key takes, where there is a list of them."""
    if key == "algorithm":
        from fedapp.registry import ALGORITHMS

        return list(ALGORITHMS)
    if key == "dataset":
        from fedapp.data.sources import HUB
        from fedapp.problems.kinds import DATASETS

        return ["digits", *DATASETS, *HUB]
    if key == "model":
        from fedapp.models.keys import NETWORK_NAMES
        from fedapp.problems.kinds import MODELS

        return [*NETWORK_NAMES, *MODELS]
    return next((declared.names for declared in _declared_keys() if declared.path == key), [])


# The arguments that several commands take.

Presets = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[PRESET.toml]...",
        help="files of run-config keys; later ones win",
        autocompletion=complete_preset,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "-c",
        "--run-config",
        metavar="KEY=VALUE",
        help="a run-config key, for example -c lr=0.05; may be repeated",
        autocompletion=complete_assignment,
    ),
]
