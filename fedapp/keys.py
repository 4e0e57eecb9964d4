"""The declared config keys as a list: for `fedapp config`, the block in pyproject.toml, and shell completion."""

import json
import re
import tomllib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from rich.markup import escape
from rich.table import Table

BLOCK = "tool.flwr.app.config"  # the table of pyproject.toml in which Flower looks for the keys
BEFORE_COMMENT = 28  # columns
PARAGRAPHS = ("local-steps", "problem", "eval-every")  # keys that begin one


_ASSIGNMENT = re.compile(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)")  # as Flower splits them


def read_assignments(text: str, texts: Container[str] = ()) -> dict[str, bool | int | float | str]:
    """Read "key=value key=value" as `flwr run -c` does, and bare words too; nothing if it is not understood.

    A value without quotes is a text if TOML cannot read it, or if its key is one of `texts`.
    """
    found: dict[str, bool | int | float | str] = {}
    for key, value in _ASSIGNMENT.findall(text):
        read = value if key in texts and value[0] not in "'\"" else _read_value(value)
        if read is None:
            return {}
        found[key] = read
    return {} if _ASSIGNMENT.sub("", text).strip() else found


def _read_value(text: str) -> bool | int | float | str | None:
    """Return a value that TOML can read, or a bare word as it is; None if it is neither."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None if text[0] in "'\"[{" else text
    if isinstance(value, list | dict):
        return None
    return value if isinstance(value, bool | int | float | str) else text  # a date is a name


@dataclass(frozen=True)
class Key:
    """A config key as it is declared; `table` is empty for the keys of every run."""

    table: str
    name: str
    default: object
    description: str
    choices: tuple[object, ...]  # all that is allowed; empty if there is no list
    bounds: str = ""  # a number's bounds, in words

    @property
    def path(self) -> str:
        """The key as it is written with `-c`: dotted, if it is in a table."""
        return f"{self.table}.{self.name}" if self.table else self.name

    @property
    def names(self) -> list[str]:
        """The names that are allowed, where there is a list of them."""
        return [choice for choice in self.choices if isinstance(choice, str)]

    @property
    def allowed(self) -> str:
        """What the key takes, in words."""
        if self.choices:
            *others, last = map(json.dumps, self.choices)
            return f"{', '.join(others)} or {last}" if others else last
        if isinstance(self.default, bool):
            return "true or false"
        if isinstance(self.default, str):
            return "text"
        kind = "whole number" if isinstance(self.default, int) else "number"
        return f"{kind} {self.bounds}".strip()


def declared_keys(model: type[BaseModel], table: str = "") -> Iterator[Key]:
    """Yield the keys that a model declares, and those of its tables after them."""
    defaults = model().model_dump(by_alias=True)  # without what only the code sets
    tables: list[tuple[str, type[BaseModel]]] = []
    for attribute, field in model.model_fields.items():
        name, kind = field.alias or attribute, field.annotation
        if isinstance(defaults.get(name), dict) and isinstance(kind, type):
            tables.append((name, kind))
        elif name in defaults:
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            bounds = _bounds(field.metadata)
            yield Key(table, name, defaults[name], field.description or "", choices, bounds)
    for name, kind in tables:
        yield from declared_keys(kind, name)


def _bounds(metadata: Iterable[object]) -> str:
    """Write the bounds of a number, as pydantic holds them."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    return " and ".join(
        f"{word} {getattr(bound, name)}"
        for name, word in words.items()
        for bound in metadata
        if hasattr(bound, name)
    )


def config_table(model: type[BaseModel], values: Mapping[str, object]) -> Table:
    """Return a table of a run config's keys: value, default where that is another, and description."""
    shown = Table("key", "value", "default", "description", box=None, pad_edge=False)
    for key in declared_keys(model):
        value, default = json.dumps(values[key.path]), json.dumps(key.default)
        shown.add_row(
            key.path, *map(escape, (value, "" if value == default else default, key.description))
        )
    return shown


def toml_block(model: type[BaseModel]) -> str:
    """Return the block of pyproject.toml that declares the keys with their defaults, which Flower asks for."""
    lines, table = [f"[{BLOCK}]"], ""
    for key in declared_keys(model):
        if key.table != table:
            table = key.table
            lines += ["", f"[{BLOCK}.{table}]"]
        elif not table and key.name in PARAGRAPHS:
            lines.append("")
        assignment = f"{key.name} = {json.dumps(key.default)}"
        lines.append(f"{assignment:{BEFORE_COMMENT - 2}}  # {key.description}")
    return "\n".join(lines) + "\n"


def with_toml_block(pyproject: str, model: type[BaseModel]) -> str:
    """Return the text of a pyproject.toml with the keys that it declares replaced by the present ones."""
    lines = pyproject.splitlines()
    headers = [k for k, line in enumerate(lines) if line.startswith("[")]
    ours = [k for k in headers if lines[k].startswith((f"[{BLOCK}]", f"[{BLOCK}."))]
    if not ours:
        return f"{pyproject.rstrip()}\n\n{toml_block(model)}"
    after = [k for k in headers if k > ours[-1]]
    rest = ["", *lines[after[0] :]] if after else []
    return "\n".join([*lines[: ours[0]], toml_block(model).rstrip(), *rest]) + "\n"
