"""Data sets that users bring: `dataset = "package.module:name"`.

It names a function, of the run's config or of nothing, that returns train and test. Each is a tuple of inputs and targets
(and groups), a Hugging Face `Dataset`, a pandas DataFrame or an Arrow table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedapp.config import RunConfig
from fedapp.data.columns import TEXT_COLUMNS
from fedapp.data.files import TESTS, Table
from fedapp.data.parts import Part
from fedapp.data.samples import IMAGE_COLUMNS
from fedapp.doors import call_with, find_object, times_given, user_code
from fedapp.errors import ConfigError
from fedapp.files import brief


@dataclass(frozen=True)
class Given:
    """What the user's function returned: arrays, or tables; without a test split, a tenth is held out."""

    train: Part | Table
    test: Part | Table | None


def given_data(config: RunConfig) -> Given:
    """Return the data that the config's data set names; a process asks the user's function once."""
    return _given_data(config, times_given())


@lru_cache(maxsize=1)
def _given_data(config: RunConfig, times: int) -> Given:
    name = config.dataset
    found: Any = find_object("dataset", name)
    if callable(found):
        with user_code("dataset", name, "loading the data"):
            found = call_with(found, config)
    train, test = _splits(found, name)
    given = Given(
        _split(train, name, "train"), None if test is None else _split(test, name, "test")
    )
    if given.test is not None and isinstance(given.train, Table) != isinstance(given.test, Table):
        raise ConfigError(
            f"dataset = {name!r} returns train and test of different kinds: return both as arrays, or both as tables."
        )
    return given


def _splits(found: Any, name: str) -> tuple[Any, Any]:
    """Return what stands for train and for test."""
    if isinstance(found, Mapping) and "train" in found:  # a DatasetDict is one, too
        return found["train"], next((found[split] for split in TESTS if split in found), None)
    if _is_table(found):
        return found, None
    if isinstance(found, tuple | list) and len(found) in (2, 3):
        if len(found) == 2 and all(_is_table(s) or isinstance(s, tuple) for s in found):
            return found[0], found[1]
        return found, None  # inputs and targets, perhaps groups
    raise ConfigError(
        f"dataset = {name!r} gives {type(found).__name__}: return (train, test), each of them (inputs, targets) or a "
        "Hugging Face Dataset."
    )


def _is_table(split: Any) -> bool:
    import pyarrow as pa
    from datasets import Dataset
    from pandas import DataFrame  # type: ignore[import-untyped]

    return isinstance(split, Dataset | DataFrame | pa.Table)


def _split(split: Any, name: str, which: str) -> Part | Table:
    import pyarrow as pa
    from datasets import Dataset
    from pandas import DataFrame

    where = f"the {which} split of {name}"
    if isinstance(split, Dataset):
        return Table(split.with_format("arrow")[:], where)
    if isinstance(split, DataFrame):
        return Table(pa.Table.from_pandas(split, preserve_index=False), where)
    if isinstance(split, pa.Table):
        return Table(split, where)
    if not isinstance(split, tuple | list) or len(split) not in (2, 3):
        raise ConfigError(
            f"dataset = {name!r} returns {type(split).__name__} as its {which} split: return (inputs, targets), "
            "(inputs, targets, groups) or a Hugging Face Dataset."
        )
    try:
        arrays = [np.asarray(array) for array in split]
    except ValueError as error:
        raise ConfigError(
            f"dataset = {name!r}: {where} cannot be made into arrays ({brief(error)}): return NumPy arrays."
        ) from None
    lengths = {len(array) if array.ndim else 0 for array in arrays}
    if len(lengths) != 1 or not arrays[0].size:
        raise ConfigError(
            f"dataset = {name!r}: the arrays of {where} have the shapes {[a.shape for a in arrays]}: give each the same "
            "number of rows, at least one."
        )
    return Part(arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None)


def problem_of(given: Given, config: RunConfig) -> str:
    """Return the name of the problem that given data are for, by their shapes and types."""
    train = given.train
    if isinstance(train, Table):
        columns = train.rows.column_names
        if any(column in columns for column in IMAGE_COLUMNS):
            return "classification"
        if any(column in columns for column in TEXT_COLUMNS):
            return "text-classification"
        return _kind_of_table(train, config)
    kind, dims = train.inputs.dtype.kind, train.inputs.ndim
    if dims in (3, 4):
        return "classification"
    if kind in "UO" or (dims == 2 and kind in "iu"):
        return "text-classification"
    if dims == 2 and kind in "fb":
        return "tabular-regression" if train.targets.dtype.kind == "f" else "tabular-classification"
    raise ConfigError(
        f"dataset = {config.dataset!r} has inputs of the shape {train.inputs.shape} and type {train.inputs.dtype}: return "
        "images (n, channels, height, width), a table of numbers (n, features) or tokens (n, length), or set problem."
    )


def _kind_of_table(table: Table, config: RunConfig) -> str:
    import pyarrow as pa

    from fedapp.data.columns import target_column

    kind = table.rows.column(target_column(table, config.target)).type
    return "tabular-regression" if pa.types.is_floating(kind) else "tabular-classification"
