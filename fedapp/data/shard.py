"""A node's own data: a shard that only this node sees, instead of a part of a shared data set.

`data-dir` in a node's config is a directory that holds `<dataset>/train-*.parquet`. If the node hosts several
clients, its samples are dealt to them at random. What all must agree on (the images' shape, how many classes
there are, how pixels are normalised) comes from the server, with each invitation.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedapp.config import RunConfig
from fedapp.data.cache import ImageData, load_source
from fedapp.data.facts import Facts
from fedapp.data.partitions import Partition
from fedapp.data.sources import parquet_source
from fedapp.errors import ConfigError
from fedapp.files import existing_directory
from fedapp.randomness import generator

log = logging.getLogger("flwr")
FAR = 8.0  # how far apart the spreads of a node's pixels and the run's may be without a warning


@dataclass(frozen=True)
class Shard:
    """Where a node's data are, the clients that hold them, and the server's facts about the images."""

    data_dir: str
    clients: range
    facts: Facts


def load_shard(shard: Shard, config: RunConfig) -> tuple[ImageData, Partition]:
    """Load a node's data and divide them among its clients."""
    name, facts = config.dataset, shard.facts
    if not Path(shard.data_dir).expanduser().is_absolute():
        raise ConfigError(f"A node's data-dir = {shard.data_dir!r} should be a full path.")
    directory = existing_directory("The node's data-dir", shard.data_dir) / name
    data = load_source(name, parquet_source(name, directory, "train"))
    if (shape := data.train_images.shape[1:]) != facts.shape:
        raise ConfigError(
            f"The images in {directory} have the shape {shape}, and the run's have {facts.shape}: "
            "make them equal."
        )
    lowest, highest = int(data.train_labels.min()), int(data.train_labels.max())
    if lowest < 0 or highest >= facts.num_classes:
        raise ConfigError(
            f"The labels in {directory} go from {lowest} to {highest}, and the run's from 0 to "
            f"{facts.num_classes - 1}: make them fit."
        )
    _compare_pixels(data, facts, directory)
    samples, clients = len(data.train_labels), len(shard.clients)
    if samples < clients:
        raise ConfigError(
            f"{directory} holds {samples} samples for the {clients} clients of this node: give it more "
            "samples, or the run more nodes."
        )
    order = np.arange(samples)
    if clients > 1:
        order = generator(config.seed, "shard", 0, shard.clients[0]).permutation(order)
    sizes = np.zeros(config.num_clients, np.int64)
    sizes[list(shard.clients)] = [len(part) for part in np.array_split(order, clients)]
    normalised = replace(
        data, num_classes=facts.num_classes, mean=list(facts.mean), std=list(facts.std)
    )
    return normalised, Partition(order, np.cumsum([0, *sizes]))


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
