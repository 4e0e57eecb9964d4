"""From the columns of a table to arrays: numbers, classes, texts and groups.

Whatever cannot be used is refused with its row and column, so that the owner of the data finds it.
"""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.data.files import Table
from fedapp.data.samples import LABEL_COLUMNS, WRITER_COLUMNS, class_column
from fedapp.errors import ConfigError
from fedapp.names import did_you_mean

log = logging.getLogger("flwr")

TARGET_COLUMNS = ("target", *LABEL_COLUMNS, "y", "speaker")
GROUP_COLUMNS = (*WRITER_COLUMNS, "speaker")
TEXT_COLUMNS = ("text", "sentence", "content")


def named(names: str) -> list[str]:
    """Return the names that the value of a key lists, separated by commas, or by spaces if there is no comma."""
    return [n.strip() for n in names.split(",") if n.strip()] if "," in names else names.split()


def find_column(table: Table, key: str, name: str, usual: tuple[str, ...]) -> str | None:
    """Return the column that a config key names, or the first usual one; None if there is neither."""
    if not table.rows.num_rows:
        raise ConfigError(f"{table.where} holds no rows: give it some.", tell=True)
    columns = table.rows.column_names
    if not name:
        return next((column for column in usual if column in columns), None)
    if name not in columns:
        raise ConfigError(
            f"{key} = {name!r} is not a column of {table.where}{did_you_mean(name, columns)}: it has "
            f"{', '.join(columns)}.",
            f"{key} = {name!r} is not a column of {table.where}.",
        )
    return name


def target_column(table: Table, name: str) -> str:
    """Return the column to predict."""
    return _needed_column(table, "target", name, TARGET_COLUMNS, "to predict")


def text_column(table: Table, name: str) -> str:
    """Return the column of texts."""
    return _needed_column(table, "features", name, TEXT_COLUMNS, "that holds the texts")


def _needed_column(table: Table, key: str, name: str, usual: tuple[str, ...], purpose: str) -> str:
    found = find_column(table, key, name, usual)
    if found is None:
        raise ConfigError(
            f"{table.where} has the columns {', '.join(table.rows.column_names)}: set {key} to the one {purpose}.",
            f"{table.where} has columns of other names: set {key} to the one {purpose}.",
        )
    return found


def feature_columns(table: Table, names: str, target: str, group: str | None) -> list[str]:
    """Return the columns to predict from: those that are named, or all numeric ones but target and group.

    The latter are in the order of the alphabet, so that nodes whose files have another order agree.
    """
    if chosen := named(names):
        for name in chosen:
            find_column(table, "features", name, ())
        if target in chosen:
            raise ConfigError(f"features names the target {target}: leave it out.", tell=True)
        return chosen
    others = sorted(n for n in table.rows.column_names if n not in (target, group))
    numeric = [n for n in others if is_numeric(table.rows.column(n)) or _nearly_numeric(table, n)]
    if not numeric:
        raise ConfigError(
            f"{table.where} has no numeric columns beside the target {target}: it has "
            f"{', '.join(table.rows.column_names)}.",
            f"{table.where} has no numeric columns beside the target {target}.",
        )
    if left := [n for n in others if n not in numeric]:
        log.warning(
            "In %s, the columns %s are not numbers and are not used", table.where, ", ".join(left)
        )
    return numeric


def is_numeric(column: Any) -> bool:
    """Tell whether an Arrow column holds numbers, or yes and no."""
    import pyarrow as pa

    kind = column.type
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )  # fmt: skip


def _nearly_numeric(table: Table, name: str) -> bool:
    """Tell whether most of a column's texts are numbers: then the others are mistakes, which `numbers` refuses."""
    values = [value for value in table.rows.column(name).to_pylist() if value is not None]
    return bool(values) and 2 * sum(map(_is_number, values)) > len(values)


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def numbers(table: Table, name: str) -> NDArray[np.float64]:
    """Return a column of finite numbers."""
    column = table.rows.column(name)
    _refuse_missing(table, name)
    if not is_numeric(column):
        wrong = (row for row, v in enumerate(column.to_pylist()) if not _is_number(v))
        row = next(wrong, 0)
        raise ConfigError(
            f"{table.place(row)} has {str(column[row].as_py())[:40]!r} in its column {name}, which should hold numbers: "
            "write a number there, or leave the column out of features.",
            f"{table.place(row)} has no number in its column {name}: write one there, or leave the column out of features.",
        )
    values = np.asarray(column.to_numpy(), np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ConfigError(
            f"{table.place(row)} has {values[row]} in its column {name}: write a finite number there, or leave the row "
            "out.",
            f"{table.place(row)} has no finite number in its column {name}: write one there, or leave the row out.",
        )
    return values


def texts(table: Table, name: str) -> list[str]:
    """Return a column of texts."""
    _refuse_missing(table, name)
    values: list[str] = table.rows.column(name).to_pylist()
    if not isinstance(values[0], str):
        raise ConfigError(
            f"The column {name} of {table.where} does not hold texts: set features to one that does.",
            tell=True,
        )
    return values


def classes(table: Table, name: str) -> NDArray[Any]:
    """Return a column of classes: whole numbers from 0, or texts, which `numbered` turns into numbers."""
    _refuse_missing(table, name)
    column = table.rows.column(name)
    if not is_numeric(column):
        return np.array([str(value) for value in column.to_pylist()])
    return class_column(column, name, table.place)


def groups(table: Table, name: str | None) -> NDArray[Any] | None:
    """Return who each row belongs to; None without such a column."""
    if name is None:
        return None
    _refuse_missing(table, name)
    return np.array([str(value) for value in table.rows.column(name).to_pylist()])


def _refuse_missing(table: Table, name: str) -> None:
    column = table.rows.column(name)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise ConfigError(
            f"{table.place(row)} has nothing in its column {name}: fill it in, or leave the row out.",
            tell=True,
        )
