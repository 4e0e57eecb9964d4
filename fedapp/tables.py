"""Tables of config keys: frozen, typed, checked where they are declared.

The options of an algorithm, the settings of a compressor and the keys of a problem are tables. Keys are kebab-case in
files and on the command line, and snake_case in code.
"""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fedapp.keys import declared_keys
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


def sentence(
    invalid: ValidationError, table: str = "", model: type[BaseModel] | None = None
) -> str:
    """Return one sentence about the first thing that is wrong with the values of a table, or of a whole config."""
    problem = invalid.errors(include_url=False)[0]
    key = ".".join(str(part) for part in ((table,) if table else ()) + problem["loc"])
    keys = {declared.path: declared for declared in declared_keys(model)} if model else {}
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        near = did_you_mean(key, keys)
        return f"There is no config key '{key}'{near}: `fedapp config` lists those there are."
    if not problem["loc"]:  # a check over several keys names them itself
        return f"{message}."
    if problem["type"] == "model_type":
        return f"{key} is a table of keys: set {key}.<key> instead."
    message = message.removeprefix("Input ")
    near = did_you_mean(str(problem["input"]), keys[key].names) if key in keys else ""
    return f"{key} = {problem['input']!r} is not allowed{near}: it {message}."
