"""Run configs as a command line gives them: preset files, and `key=value` assignments as `flwr run -c` takes them."""

import os
import re
import tomllib
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from flwr.common.config import flatten_dict, parse_config_args

from fedapp.config import Value
from fedapp.errors import ConfigError

_ASSIGNMENT = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as Flower splits them


def read_toml(path: Path) -> dict[str, Any]:
    """Read a preset or a sweep."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"The preset {path} cannot be read: {error}.") from None


def flat_keys(path: Path, table: dict[str, Any]) -> dict[str, Value]:
    """Return the keys of a file as Flower writes them: one level, dotted."""
    try:
        return dict(flatten_dict(table))
    except ValueError as error:
        raise ConfigError(f"The preset {path} cannot be read: {error}.") from None


def add_config_arguments(parser: ArgumentParser) -> None:
    """Let a command take what `read_overrides` reads."""
    parser.add_argument("presets", nargs="*", type=Path, metavar="PRESET.toml")
    parser.add_argument(
        "-c",
        dest="config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a run-config key with a TOML value, as `flwr run -c` takes it; may be repeated",
    )


def read_overrides(presets: list[Path], assignments: list[str]) -> dict[str, Value]:
    """Read preset files and `key=value` strings as `flwr run -c` does; later ones win."""
    values: dict[str, Value] = {}
    for preset in presets:
        table = read_toml(preset)
        if "sweep" in table or "include" in table:
            raise ConfigError(f"{preset} is a sweep: run it with run_simulation.py.")
        values |= flat_keys(preset, table)
    for assignment in assignments:
        try:
            parsed = parse_config_args([assignment])
        except Exception:  # Flower raises a type of its command line's
            parsed = {}
        if not parsed or _ASSIGNMENT.sub("", assignment).strip():
            raise ConfigError(
                f"-c {assignment!r} is not understood: write key=value with a TOML value, "
                "for example -c 'algorithm=\"fedprox\"' or -c lr=0.05."
            )
        values |= parsed
    return values


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
