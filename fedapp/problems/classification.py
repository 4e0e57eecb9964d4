"""Image classification: a network, a data set, and its partition over the clients."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedapp.config import RunConfig
from fedapp.data import (
    Divided,
    ImageData,
    Partition,
    Shard,
    configured_images,
    held_out_of,
    image_shape,
    load_partition,
    load_shard,
    validation_rows,
    without_samples,
)
from fedapp.data.facts import Facts
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.models.keys import LoraKeys, VitKeys
from fedapp.models.layout import Layout
from fedapp.models.networks import layout_of, make_network, statistics
from fedapp.models.outside import outside_model, seeded
from fedapp.models.partial import select
from fedapp.problems.measures import ClassMeasures
from fedapp.problems.network import NetworkProblem
from fedapp.problems.outline import Outline, server_shard
from fedapp.problems.problem import Batch, Problem, Rows
from fedapp.randomness import torch_seed
from fedapp.wire.facts import facts_from_text


class Images(Problem):
    """Images and their classes; the data are memory-mapped."""

    def __init__(self, config: RunConfig, shard: Shard | None = None) -> None:
        self.config = config
        self.data: ImageData
        self.partition: Partition | None  # None: the nodes have their own data
        self.held_out: Partition | None = None  # a node's own test images, dealt to its clients
        self.validation = np.zeros(0, np.int64)  # the training images that nobody trains on
        if shard and shard.data_dir:
            self.data, self.partition = load_shard(shard, config)
            self.held_out = held_out_of(self.data, shard, config)
        elif shard:  # a server without data
            self.data, self.partition = without_samples(shard.facts), None
        else:
            self.data = configured_images(config)
            there = len(self.data.train_labels)
            self.partition = load_partition(self.data, config) if there else None
            self.validation = validation_rows(self.data, config)
        self.facts: Facts = self.data.facts
        self._measures = ClassMeasures(config.metrics)
        device = torch.device(config.device)
        self._mean = torch.tensor(self.data.mean, device=device).view(-1, 1, 1)
        self._scale = 1 / torch.tensor(self.data.std, device=device).view(-1, 1, 1)
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        data = self.data
        self._train = tuple(map(torch.from_numpy, (data.train_images, data.train_labels)))
        self._test = tuple(map(torch.from_numpy, (data.test_images, data.test_labels)))

    def model(self) -> nn.Module:
        """Return the config's network."""
        config, facts = self.config, self.facts
        if is_outside(config.model):
            return outside_model(config.model, facts)
        return make_network(
            config.model,
            self.data.image_shape,
            facts.num_classes,
            config.norm,
            torch_seed(config.seed, "model"),
            config.table(VitKeys).image_size,
            config.table(VitKeys).weights,
        )

    def client_data(self, client: int) -> Rows:
        """Return a client's images."""
        return Rows(self._train, self.held()[client])

    def client_test_data(self, client: int) -> Rows | None:
        """Return a client's part of its node's own test images, if there are any."""
        return None if self.held_out is None else Rows(self._test, self.held_out[client])

    def test_data(self) -> Sequence[Tensor] | None:
        """Return the test images."""
        return self._test if len(self._test[1]) else None

    def validation_data(self) -> Rows:
        """Return the images that `valid-share` holds out."""
        return Rows(self._train, self.validation)

    def held(self) -> Partition:
        """Return the partition; raise a ConfigError if there is no training data."""
        if self.partition is None:
            raise ConfigError(
                "There is nothing to train on: give data-dir a train-*.parquet, or every node a data-dir "
                "of its own."
            )
        return self.partition

    def prepare(self, batch: Batch) -> Batch:
        """Return normalised pixels, channels last: LeNet-5 trains a fifth faster that way."""
        images, labels = batch
        # A copy even of floats: what follows is in place, and must not reach the data.
        numbers = images.to(dtype=self._dtype, memory_format=torch.channels_last, copy=True)
        return numbers.sub_(self._mean).mul_(self._scale), labels

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Any]:
        """Return what the metrics need of a batch."""
        return self._measures.of_batch(outputs, batch[-1])

    def combine(self, parts: Sequence[dict[str, Any]], count: int) -> dict[str, float]:
        """Return the metrics of all batches."""
        return self._measures.combined(parts, count)


class Classification(NetworkProblem):
    """The training of a network on images."""

    problem: Images

    def __init__(self, config: RunConfig, shard: Shard | None = None) -> None:
        super().__init__(Images(config, shard), config)

    @property
    def data(self) -> ImageData:
        """The images of all clients, and the test images."""
        return self.problem.data

    @property
    def partition(self) -> Partition | None:
        """Who holds which samples."""
        return self.problem.partition

    def held(self) -> Partition:
        """Return the partition; raise a ConfigError if there is no training data."""
        return self.problem.held()

    def _training_loss(self) -> float:
        """Return the mean loss over all the clients' samples, a batch of all of them at a time."""
        partition = self.held()
        if self.config.test_share or not isinstance(partition, Divided):
            return super()._training_loss()
        return self.measure(self.problem._train, partition.indices)["loss"]


def outline(config: RunConfig) -> Outline:
    """Return the size of the config's network, which gets no memory; if the network or the data are the user's, make it."""
    if is_outside(config.model) or is_outside(config.dataset):
        with seeded(torch_seed(config.seed, "model")):
            network = Images(config, server_shard(config)).model()
        select(network, config.trainable, config.lora)
        return Outline(layout_of(network, config.model), _num_buffers(network), config.dtype)
    layout, num_buffers = _measure_network(
        config.dataset,
        config.data_dir,
        config.model,
        config.norm,
        config.table(VitKeys).image_size,
        config.trainable,
        config.lora,
        facts_from_text(config.facts) if config.facts else None,
    )
    return Outline(layout, num_buffers, config.dtype)


@lru_cache
def _measure_network(
    dataset: str,
    data_dir: str,
    model: str,
    norm: str,
    image_size: int,
    trainable: str,
    lora: LoraKeys,
    facts: Facts | None = None,
) -> tuple[Layout, int]:
    """Return a network's layout, and the length of its statistics."""
    if facts:
        shape, num_classes = without_samples(facts).image_shape, facts.num_classes
    else:
        shape, num_classes = image_shape(dataset, data_dir)
    with torch.device("meta"):
        network = make_network(model, shape, num_classes, norm, 0, image_size)
    select(network, trainable, lora)
    return layout_of(network, model), _num_buffers(network)


def _num_buffers(network: nn.Module) -> int:
    return sum(buffers[name].numel() for buffers, name in statistics(network))
