"""Data sets of inputs and targets that are not images: tables, texts, sequences; decoded once, then memory-mapped."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data.cache import build_once, cache_dir, mapped
from fedapp.data.facts import Facts
from fedapp.data.files import DECODER, Table, TableSource, find_tables
from fedapp.data.outside import Given, given_data
from fedapp.data.parts import Part, numbered
from fedapp.doors import is_outside
from fedapp.errors import ConfigError

TENTHS = 10  # into which targets that are numbers are divided, for partitions


@dataclass(frozen=True)
class ArrayData:
    """Inputs and targets, one row for each sample, and the groups (writers, speakers, ...) of the training samples."""

    key: str
    facts: Facts
    train: Part
    test: Part

    @property
    def writers(self) -> NDArray[Any] | None:
        """The group of each training sample."""
        return self.train.groups

    @cached_property
    def train_labels(self) -> NDArray[np.int64]:
        """What partitions divide by: the class, the tenth of a number, or the group of a sequence."""
        targets = self.train.targets
        if targets.ndim > 1:
            groups = self.train.groups
            return np.zeros(len(targets), np.int64) if groups is None else np.asarray(groups)
        if self.facts.num_classes:
            return np.asarray(targets)
        if not len(targets):
            return np.zeros(0, np.int64)
        borders = np.quantile(targets, np.arange(1, TENTHS) / TENTHS)
        return np.unique(np.searchsorted(borders, targets), return_inverse=True)[1]

    @property
    def num_classes(self) -> int:
        """The number of values of `train_labels`."""
        if self.facts.num_classes and self.train.targets.ndim == 1:
            return self.facts.num_classes
        return int(self.train_labels.max(initial=0)) + 1


@dataclass(frozen=True)
class Decoder:
    """How a problem makes samples of tables or arrays.

    `decode` takes the tables of train and test and, last, whether nothing may be held out if there is no test split.
    `settings` are the config's values that decide the outcome: part of the cache's key.
    """

    name: str
    embedded: dict[str, Callable[[], tuple[Table | None, Table | None]]]
    decode: Callable[[Table | None, Table | None, RunConfig, bool], tuple[Part, Part]]
    check: Callable[[Part, Part, RunConfig], tuple[Part, Part]]  # checks arrays that a user gives
    facts: Callable[[Part, Part, RunConfig], Facts]
    settings: Callable[[RunConfig], tuple[object, ...]]
    per_token: bool = False  # there is a target for each token of an input
    has_features: bool = False  # it reads several columns, whose order matters


def load_arrays(config: RunConfig, decoder: Decoder) -> ArrayData:
    """Load the config's data set, decoding it if no process has done so before."""
    if is_outside(config.dataset):
        return _given(given_data(config), config, decoder)
    if config.dataset in decoder.embedded and not config.data_dir:
        source = TableSource(config.dataset, decoder.embedded[config.dataset])
    else:
        source = find_tables(config.dataset, config.data_dir)
    return load_tables(source, config, decoder)


def load_tables(
    source: TableSource, config: RunConfig, decoder: Decoder, whole: bool = False
) -> ArrayData:
    """Load the data set of a source, decoding it if no process has done so before.

    Without a test split, a tenth is held out, unless the `whole` is to be trained on.
    """
    settings = (config.features, config.target, config.group, whole, *decoder.settings(config))
    content = repr((DECODER, source.key, decoder.name, settings))
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    key = f"{decoder.name}-{source.key}-{digest}"

    def build(directory: Path) -> None:
        train, test = decoder.decode(*source.read(), config, whole)
        _write(directory, train, test, decoder.facts(train, test, config))

    return _read(build_once(cache_dir() / "data" / key, build), key)


def _given(given: Given, config: RunConfig, decoder: Decoder) -> ArrayData:
    """Return data of the user's function, which are not kept on disk; partitions are, by the digest of the labels."""
    tables = [part for part in (given.train, given.test) if isinstance(part, Table)]
    if tables:
        train, test = decoder.decode(
            tables[0], tables[1] if len(tables) > 1 else None, config, False
        )
    else:
        first = cast(Part, given.train)
        second = cast(Part | None, given.test)
        if second is None:
            first, second = first.hold_out()
        train, test = decoder.check(*numbered(first, second), config)
    return ArrayData(f"given-{train.digest()}", decoder.facts(train, test, config), train, test)


def _write(directory: Path, train: Part, test: Part, facts: Facts) -> None:
    for prefix, part in (("train", train), ("test", test)):
        np.save(directory / f"{prefix}_inputs.npy", part.inputs)
        np.save(directory / f"{prefix}_targets.npy", part.targets)
    if train.groups is not None:
        np.save(directory / "groups.npy", train.groups)
    about = asdict(facts) | {"classes": train.classes}
    (directory / "facts.json").write_text(json.dumps(about))


def _read(directory: Path, key: str) -> ArrayData:
    try:
        values = json.loads((directory / "facts.json").read_text())
        lists = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        facts = Facts(**{f.name: (values | lists)[f.name] for f in fields(Facts)})
        classes = tuple(map(str, lists["classes"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{directory / 'facts.json'} cannot be read ({error}): remove {directory}, and it is made anew."
        ) from None
    path = directory / "groups.npy"
    groups = mapped(path) if path.exists() else None
    train, test = (
        Part(
            mapped(directory / f"{prefix}_inputs.npy"),
            mapped(directory / f"{prefix}_targets.npy"),
            groups if prefix == "train" else None,
            classes,
        )
        for prefix in ("train", "test")
    )
    return ArrayData(key, facts, train, test)
