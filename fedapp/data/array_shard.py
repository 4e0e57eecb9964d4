"""A node's own table or texts, in place of a part of a shared data set; see `shard.py` for images."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedapp.config import RunConfig
from fedapp.data.arrays import ArrayData, Decoder, load_tables
from fedapp.data.facts import Facts
from fedapp.data.files import directory_source
from fedapp.data.parts import Part, num_classes_of
from fedapp.data.shard import Shard, demand_samples, own_directory
from fedapp.errors import ConfigError


def load_array_shard(shard: Shard, config: RunConfig, decoder: Decoder) -> ArrayData:
    """Load a node's data, all of which it trains on unless it has a test split of its own."""
    directory = own_directory(shard)
    if decoder.has_features and not config.features:
        raise ConfigError(
            "Nodes with their own tables must read the same columns in the same order: set features to their names.",
            tell=True,
        )
    source = directory_source(config.dataset, directory)
    data = load_tables(source, config, decoder, whole=True)
    if data.train.classes:
        raise ConfigError(
            f"The classes of {config.dataset} in {directory} are words, and every node would number them by its own: write "
            "whole numbers from 0.",
            tell=True,
        )
    demand_samples(len(data.train), shard, f"{config.dataset} in {directory}")
    return _fitted(data, shard.facts, directory) if shard.facts else data


def _fitted(data: ArrayData, facts: Facts, directory: Path) -> ArrayData:
    """Return a node's data with the run's classes and scale; refuse data that do not fit."""
    own = data.facts
    for what, mine, theirs in (
        ("inputs of the shape", own.shape, facts.shape),
        ("tokens, in number", own.vocabulary, facts.vocabulary),
        ("classes to predict", own.num_classes > 0, facts.num_classes > 0),
    ):
        if mine != theirs:
            raise ConfigError(
                f"The data in {directory} have {what} {mine}, and the run's have {theirs}: make them equal.",
                tell=True,
            )
    if own.num_classes and num_classes_of((data.train, data.test)) > facts.num_classes:
        raise ConfigError(
            f"The data in {directory} have {own.num_classes} classes, and the run's have {facts.num_classes}: make them fit.",
            f"The data in {directory} have more classes than the run's {facts.num_classes}: make them fit.",
        )
    return replace(data, facts=facts)


def without_rows(facts: Facts, per_token: bool) -> ArrayData:
    """Return the data set of a server that has none: rows of the right shape, but not a single one."""
    inputs = np.zeros((0, *facts.shape))
    targets = np.zeros(
        (0, *facts.shape) if per_token else 0, np.int64 if facts.num_classes else float
    )
    empty = Part(inputs, targets)
    return ArrayData("", facts, empty, empty)
