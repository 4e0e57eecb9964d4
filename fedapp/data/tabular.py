"""Tables of numbers: features, and a target that is a number or a class."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data import columns
from fedapp.data.arrays import Decoder
from fedapp.data.facts import Facts
from fedapp.data.files import Table
from fedapp.data.parts import Part, both_splits, num_classes_of
from fedapp.data.samples import MOST_CLASSES
from fedapp.errors import ConfigError


def _embedded(loader: str) -> Callable[[], tuple[Table, Table]]:
    """Return a function that reads a table of scikit-learn's; a fifth of it is the test split."""

    def read() -> tuple[Table, Table]:
        import pyarrow as pa
        from sklearn import datasets
        from sklearn.model_selection import train_test_split

        frame = getattr(datasets, loader)(as_frame=True).frame
        classes = frame["target"] if frame["target"].dtype.kind == "i" else None
        train, test = train_test_split(frame, test_size=0.2, stratify=classes, random_state=0)
        first, second = (
            Table(pa.Table.from_pandas(part.sort_index(), preserve_index=False), loader)
            for part in (train, test)
        )
        return first, second

    return read


def _features(train: Table | None, test: Table | None, config: RunConfig) -> list[str]:
    """Return the columns to predict from, which both splits must have."""
    table = train or test
    assert table is not None
    target = columns.target_column(table, config.target)
    group = columns.find_column(table, "group", config.group, columns.GROUP_COLUMNS)
    names = columns.feature_columns(table, config.features, target, group)
    for other in (train, test):
        missing = [n for n in (*names, target) if other and n not in other.rows.column_names]
        if other and missing:
            raise ConfigError(
                f"{other.where} lacks the columns {', '.join(missing)}: give both splits the same ones.",
                f"{other.where} lacks columns that the other split has: give both the same ones.",
            )
    return names


def _decode(
    train: Table | None,
    test: Table | None,
    config: RunConfig,
    whole: bool,
    targets: Callable[[Table, str], NDArray[Any]],
) -> tuple[Part, Part]:
    names = _features(train, test, config)

    def part(table: Table | None, grouped: bool) -> Part | None:
        if table is None:
            return None
        target = columns.target_column(table, config.target)
        inputs = np.stack([columns.numbers(table, name) for name in names], axis=1)
        group = None
        if grouped:
            group = columns.find_column(table, "group", config.group, columns.GROUP_COLUMNS)
        return Part(inputs, targets(table, target), columns.groups(table, group))

    return both_splits(part(train, True), part(test, False), whole)


def _checked(train: Part, test: Part, config: RunConfig) -> tuple[Part, Part]:
    """Return given arrays as tables of finite numbers."""
    for part in (train, test):
        shape = part.inputs.shape
        if len(shape) != 2 or part.inputs.dtype.kind not in "fiub" or part.targets.ndim != 1:
            raise ConfigError(
                f"dataset = {config.dataset!r} has inputs of the shape {shape} and targets of the shape "
                f"{part.targets.shape}: a table has (n, features) numbers and n targets."
            )
        wrong = np.argwhere(~np.isfinite(part.inputs))
        if len(wrong):
            row, column = wrong[0]
            raise ConfigError(
                f"dataset = {config.dataset!r} has {part.inputs[row, column]} in row {row}, column {column}: give finite "
                "numbers.",
                f"dataset = {config.dataset!r} has a number that is not finite in row {row}, column {column}.",
            )
    return (
        replace(train, inputs=train.inputs.astype(np.float64)),
        replace(test, inputs=test.inputs.astype(np.float64)),
    )


def _checked_numbers(train: Part, test: Part, config: RunConfig) -> tuple[Part, Part]:
    parts = _checked(train, test, config)
    if not all(np.isfinite(part.targets.astype(np.float64)).all() for part in parts):
        raise ConfigError(f"dataset = {config.dataset!r} has targets that are not finite.")
    first, second = (replace(p, targets=p.targets.astype(np.float64)) for p in parts)
    return first, second


def checked_classes(train: Part, test: Part, config: RunConfig) -> tuple[Part, Part]:
    """Return given samples whose targets are classes."""
    for part in (train, test):
        if not _are_classes(part.targets):
            raise ConfigError(
                f"dataset = {config.dataset!r} has targets that are not classes: give whole numbers from 0 to at most "
                f"{MOST_CLASSES - 1}, one for each sample."
            )
    first, second = (replace(p, targets=p.targets.astype(np.int64)) for p in (train, test))
    return first, second


def _are_classes(targets: NDArray[Any]) -> bool:
    if targets.ndim != 1 or targets.dtype.kind not in "iubf":
        return False
    whole = targets.dtype.kind != "f" or bool((targets % 1 == 0).all())
    return whole and bool(((targets >= 0) & (targets < MOST_CLASSES)).all())


def _facts(train: Part, test: Part, config: RunConfig) -> Facts:
    inputs = train.inputs if len(train) else test.inputs
    std = inputs.std(0)
    return Facts(
        (inputs.shape[1],),
        num_classes_of((train, test)),
        tuple(inputs.mean(0).tolist()),
        tuple(np.where(std > 0, std, 1.0).tolist()),
    )


def _facts_of_numbers(train: Part, test: Part, config: RunConfig) -> Facts:
    targets = train.targets if len(train) else test.targets
    return replace(
        _facts(train, test, config),
        num_classes=0,
        target_mean=float(targets.mean()),
        target_std=float(targets.std()) or 1.0,
    )


REGRESSION = Decoder(
    name="regression",
    embedded={"diabetes": _embedded("load_diabetes")},
    decode=lambda train, test, config, whole: _decode(train, test, config, whole, columns.numbers),
    check=_checked_numbers,
    facts=_facts_of_numbers,
    settings=lambda config: (),
    has_features=True,
)
CLASSES = Decoder(
    name="classes",
    embedded={n: _embedded(f"load_{n}") for n in ("breast_cancer", "wine")},
    decode=lambda train, test, config, whole: _decode(train, test, config, whole, columns.classes),
    check=lambda train, test, config: checked_classes(*_checked(train, test, config), config),
    facts=_facts,
    settings=lambda config: (),
    has_features=True,
)
