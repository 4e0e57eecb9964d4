"""Tables of config keys: frozen, typed, checked where they are declared.

The options of an algorithm, the settings of a compressor and the keys of a problem are tables. Keys are kebab-case in
files and on the command line, and snake_case in code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from fedapp.keys import Key, declared_keys
from fedapp.names import did_you_mean

Value = bool | int | float | str


class Table(BaseModel):
    """A table of keys, each with its type, default, bounds and description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
    )


class NoOptions(Table):
    """The options of an algorithm that has none."""


T = TypeVar("T", bound=Table)
AnyOptions = TypeVar("AnyOptions", bound=Table, covariant=True)


def sentence(
    invalid: ValidationError, table: str = "", model: type[BaseModel] | None = None
) -> str:
    """Return one sentence about the first thing that is wrong with the values of a table, or of a whole config."""
    return sentences(invalid, table, model)[0]


def sentences(
    invalid: ValidationError, table: str = "", model: type[BaseModel] | None = None
) -> list[str]:
    """Return a sentence for each thing that is wrong with the values of a table, or of a whole config."""
    keys = {declared.path: declared for declared in declared_keys(model)} if model else {}
    found = [_sentence(problem, table, keys) for problem in invalid.errors(include_url=False)]
    return list(dict.fromkeys(found))


def _sentence(problem: ErrorDetails, table: str, keys: Mapping[str, Key]) -> str:
    key = ".".join(str(part) for part in ((table,) if table else ()) + problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        near = did_you_mean(key, keys)
        return f"There is no config key '{key}'{near}: `fedapp config` lists those there are."
    if not problem["loc"]:  # a check over several keys names them itself
        return f"{message}."
    if problem["type"] == "model_type":
        return f"{key} is a table of keys: set {key}.<key> instead."
    message = message.removeprefix("Input ")
    given = problem["input"]
    near = did_you_mean(str(given), keys[key].names) if key in keys else ""
    if problem["type"] == "bool_type" and str(given).lower() in ("true", "false"):
        near = f" (did you mean {str(given).lower()}?)"
    return f"{key} = {given!r} is not allowed{near}: it {message}."


def full_path(path: str | bool) -> str | bool:
    """Check that the value of a key, if it is a path, does not depend on the working directory."""
    if isinstance(path, str) and path and not Path(path).expanduser().is_absolute():
        raise ValueError(
            "should be a full path, because under `flwr run` a relative one would mean a "
            "directory of Flower's"
        )
    return path
