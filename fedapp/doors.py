"""What users bring: things named "package.module:name" in the config, or given as Python objects.

A name is looked up among the objects that were given in Python, and otherwise imported: from beside pyproject.toml, from
the current directory, or from an installed package.
"""

import importlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, ismethod, signature
from typing import Any

from fedapp.errors import ConfigError, UserCodeError

_NAME = re.compile(r"\w+(\.\w+)*:[\w<>]+([.-][\w<>]+)*")
_given: dict[str, object] = {}  # the objects given in Python, by the name they have in the config
_times_given = 0  # how often objects were given, the same ones again included


def is_outside(name: str) -> bool:
    """Tell whether a value of the config names something of the user's."""
    return ":" in name


def short(name: str) -> str:
    """Return what people call a thing by: the last part of its name."""
    if not is_outside(name) and "/" not in name:
        return name
    return re.split(r"[:/.]", name)[-1].replace("<lambda>", "lambda")


def name_of(value: object) -> str:
    """Give an object a name for the config, and remember the object under it in this process."""
    for known, other in _given.items():
        if other is value or (ismethod(value) and ismethod(other) and other == value):
            register({known: value})  # it may have changed since
            return known
    named = value if hasattr(value, "__qualname__") else type(value)
    name = f"{named.__module__}:{named.__qualname__}"
    if named is not value or ismethod(value) or "<" in name:  # two of these may be two things
        name += f"-{1 + sum(other.startswith(f'{name}-') for other in _given)}"
    register({name: value})
    return name


def given() -> dict[str, object]:
    """Return the objects that were given in Python, by name."""
    return dict(_given)


def given_for(values: Collection[object]) -> dict[str, object]:
    """Return those objects that some values of a config name: what other processes need for its run."""
    return {name: value for name, value in _given.items() if name in values}


def register(objects: Mapping[str, object]) -> None:
    """Remember objects under their names; one with the name of an older one takes its place."""
    global _times_given
    _times_given += bool(objects)
    _given.update(objects)


def times_given() -> int:
    """Return what changes when an object is given, also the same again: a key for caches of what is made from them."""
    return _times_given


def find_object(key: str, name: str) -> Any:
    """Return what the value of a config key names."""
    if name in _given:
        return _given[name]
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{key} = {name!r} is not a name: write it as package.module:name.", tell=True
        )
    place, _, path = name.partition(":")
    if place == "__main__" or "<" in path or "-" in path:
        raise ConfigError(
            f"{key} = {name!r} was given as a Python object and cannot be imported: give it again with fedapp.run, or "
            "move it into a module of its own.",
            tell=True,
        )
    try:
        with user_code(key, name, "importing it"):
            found: Any = importlib.import_module(place)
    except UserCodeError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{place}.".startswith(f"{cause.name}."):
            raise ConfigError(
                f"{key} = {name!r} cannot be imported ({cause}): put its package beside pyproject.toml, run from its "
                "directory, or install it.",
                tell=True,
            ) from None
        raise
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(
                f"{key} = {name!r}: the module {place} has nothing named {path}.", tell=True
            )
        found = getattr(found, part)
    return found


@contextmanager
def user_code(key: str, name: str, doing: str) -> Iterator[None]:
    """Turn an error in the user's code into a sentence, after which the user's traceback is shown."""
    try:
        yield
    except (ConfigError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UserCodeError(
            f"{key} = {name!r} raised {type(error).__name__} while {doing}: see the traceback.",
            tell=True,
        ) from error


def call_with(function: Callable[..., Any], *offered: object) -> Any:
    """Call a function with as many of the offered arguments as it needs: parameters with a default keep that."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in
        return function(*offered)
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        return function(*offered)
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(p.kind in positional and p.default is Parameter.empty for p in parameters)
    return function(*offered[:needed])
