"""A node's own data: a shard that only this node sees, instead of a part of a shared data set.

`data-dir` in a node's config is a directory that holds `<dataset>/train-*.parquet`. If the node hosts several
clients, its samples are dealt to them at random; so are those of its `test-*.parquet`, if there are any, which its
clients are evaluated on. What all must agree on (the images' shape, how many classes
there are, how pixels are normalised) comes from the server, with each invitation.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedapp.config import RunConfig
from fedapp.data.cache import ImageData, load_source
from fedapp.data.dividing import Partition
from fedapp.data.facts import Facts
from fedapp.data.partitions import deal
from fedapp.data.sources import parquet_source
from fedapp.errors import ConfigError
from fedapp.files import existing_directory

log = logging.getLogger("flwr")
FAR = 8.0  # how far apart the spreads of a node's pixels and the run's may be without a warning


@dataclass(frozen=True)
class Shard:
    """What one side of a federation has of the data, if it is not the data set that the config names.

    A node with its own data has a directory, clients that hold its samples, and the run's facts; None: they are not
    agreed on yet, and the facts of its own data count. A server without data has facts alone, and no directory.
    """

    data_dir: str
    clients: range
    facts: Facts | None


def without_samples(facts: Facts | None) -> ImageData:
    """Return the data set of a server that has none: images of the right shape, but not a single one."""
    if facts is None or len(facts.shape) != 3 or len(facts.mean) != facts.shape[0]:
        raise ConfigError(
            "Images have a shape of channels, height and width, and a mean and std for each channel: the facts are "
            f"{facts}."
        )
    images, labels = np.zeros((0, *facts.shape), np.uint8), np.zeros(0, np.int64)
    scale = {"mean": list(facts.mean), "std": list(facts.std)}
    return ImageData("", images, labels, images, labels, None, facts.num_classes, **scale)


def load_shard(shard: Shard, config: RunConfig) -> tuple[ImageData, Partition]:
    """Load a node's data and divide its training samples among its clients."""
    name = config.dataset
    directory = own_directory(shard) / name
    data = load_source(name, parquet_source(name, directory, "train"))
    if shard.facts:
        data = _fitted(data, shard.facts, directory)
    samples = len(data.train_labels)
    demand_samples(samples, shard, str(directory))
    return data, deal(samples, shard.clients, config, "shard")


def own_directory(shard: Shard) -> Path:
    """Return the directory of a node's own data, or say what is wrong with it."""
    if not Path(shard.data_dir).expanduser().is_absolute():
        raise ConfigError(
            f"A node's data-dir = {shard.data_dir!r} should be a full path.", tell=True
        )
    return existing_directory("The node's data-dir", shard.data_dir)


def demand_samples(samples: int, shard: Shard, where: str) -> None:
    """Raise ConfigError if a node has fewer training samples than clients."""
    if samples < (clients := len(shard.clients)):
        raise ConfigError(
            f"{where} holds {samples} samples for the {clients} clients of this node: give it more "
            "samples, or the run more nodes.",
            tell=True,
        )


def held_out_of(data: ImageData, shard: Shard, config: RunConfig) -> Partition | None:
    """Divide a node's test samples among its clients, which are evaluated on them; None if it has none."""
    if not (samples := len(data.test_labels)):
        return None
    return deal(samples, shard.clients, config, "test shard")


def _fitted(data: ImageData, facts: Facts, directory: Path) -> ImageData:
    """Return a node's data with the run's classes and normalisation; refuse data that do not fit."""
    for images in (data.train_images, data.test_images):
        if (shape := images.shape[1:]) != facts.shape:
            raise ConfigError(
                f"The images in {directory} have the shape {shape}, and the run's have {facts.shape}: "
                "make them equal.",
                tell=True,
            )
    labels = np.concatenate([data.train_labels, data.test_labels])
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= facts.num_classes:
        raise ConfigError(
            f"The labels in {directory} go from {lowest} to {highest}, and the run's from 0 to "
            f"{facts.num_classes - 1}: make them fit.",
            f"The labels in {directory} are not all from 0 to {facts.num_classes - 1}, as the run's are: make them fit.",
        )
    _compare_pixels(data, facts, directory)
    return replace(data, num_classes=facts.num_classes, mean=list(facts.mean), std=list(facts.std))


def _compare_pixels(data: ImageData, facts: Facts, directory: Path) -> None:
    """Warn if pixels are on another scale than the run's, whose mean and spread normalise them."""
    for own, theirs in zip(data.std, facts.std, strict=True):
        if not theirs / FAR <= own <= theirs * FAR:
            log.warning(
                "The pixels in %s have a standard deviation of %.3g, and the run's have %.3g: check that they "
                "are on the same scale (8 bits, or all of 16)",
                directory,
                own,
                theirs,
            )
            return
