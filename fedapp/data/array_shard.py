"""A node's own tables or texts, and the data set of a server that has none (see `shard.py`)."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedapp.config import RunConfig
from fedapp.data import columns
from fedapp.data.arrays import ArrayData, Decoder, load_tables
from fedapp.data.facts import Facts
from fedapp.data.files import Table, find_tables
from fedapp.data.parts import Part
from fedapp.data.shard import Shard, own_directory
from fedapp.errors import ConfigError


def arrays_without_samples(facts: Facts | None) -> ArrayData:
    """Return the data set of a server that has none."""
    if facts is None:
        raise ConfigError("A server without data needs facts about them: set facts.")
    part = Part(np.zeros((0, *facts.shape)), np.zeros(0))
    return ArrayData("", facts, part, part)


def load_array_shard(shard: Shard, config: RunConfig, decoder: Decoder) -> ArrayData:
    """Load a node's tables or texts; if the run's facts are known, refuse data that do not fit them."""
    directory = own_directory(shard)
    source = find_tables(config.dataset, str(directory))
    if decoder.has_features and not config.features:
        raise ConfigError(
            "Nodes with their own tables must read the same columns in the same order: set features to their names."
        )
    data = load_tables(source, config, _strict(decoder))
    if not len(data.train):
        raise ConfigError(f"{directory} holds no training samples of {config.dataset}: give some.")
    return _fitted(data, shard.facts, directory) if shard.facts else data


def _strict(decoder: Decoder) -> Decoder:
    """Return a decoder that refuses classes that are words, which every node would number in its own way."""
    if not decoder.has_classes:
        return decoder

    def decode(train: Table | None, test: Table | None, config: RunConfig) -> tuple[Part, Part]:
        for table in filter(None, (train, test)):
            target = columns.target_column(table, config.target)
            if not columns.is_numeric(table.rows.column(target)):
                raise ConfigError(
                    f"The column {target} of {table.where} holds words, which every node would number in its own way: "
                    "write whole numbers from 0 that mean the same on all nodes."
                )
        return decoder.decode(train, test, config)

    return replace(decoder, name=f"own-{decoder.name}", decode=decode)


def _fitted(data: ArrayData, facts: Facts, directory: Path) -> ArrayData:
    """Return a node's data with the run's facts."""
    own = data.facts
    if (own.shape, own.vocabulary) != (facts.shape, facts.vocabulary):
        raise ConfigError(
            f"The inputs in {directory} have the shape {own.shape}, and the run's have {facts.shape}: make them equal."
        )
    if own.num_classes > facts.num_classes:
        raise ConfigError(
            f"The classes in {directory} go up to {own.num_classes - 1}, and the run's from 0 to "
            f"{facts.num_classes - 1}: make them fit."
        )
    return replace(data, facts=facts)
