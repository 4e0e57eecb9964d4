"""What problems on tables and texts share: their data, how clients hold them, and the network's choice."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedapp.config import RunConfig
from fedapp.data import (
    ArrayData,
    Decoder,
    Partition,
    Shard,
    load_arrays,
    load_partition,
    validation_rows,
)
from fedapp.data.array_shard import load_array_shard, without_rows
from fedapp.data.facts import Facts
from fedapp.data.partitions import deal
from fedapp.data.parts import Part
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.models.outside import outside_model
from fedapp.problems.measures import ClassMeasures, NumberMeasures
from fedapp.problems.problem import Batch, Problem, Rows


class ArrayProblem(Problem):
    """Samples that are rows of arrays; the data are memory-mapped."""

    decoder: ClassVar[Decoder]
    measures: ClassMeasures | NumberMeasures

    def __init__(self, config: RunConfig, shard: Shard | None = None) -> None:
        self.config = config
        self.data: ArrayData
        self.partition: Partition | None = None  # None: there is nothing to train on
        # The test samples' owners; None: they are not the clients'.
        self.held_out: Partition | None = None
        self.validation = np.zeros(0, np.int64)  # the training samples that nobody trains on
        if shard and shard.data_dir:
            self.data = load_array_shard(shard, config, self.decoder)
            self.partition = deal(len(self.data.train), shard.clients, config, "shard")
            if held := len(self.data.test):
                self.held_out = deal(held, shard.clients, config, "test shard")
        elif shard and shard.facts:  # a server without data
            self.data = without_rows(shard.facts, self.decoder.per_token)
        else:
            self.data = load_arrays(config, self.decoder)
            if len(self.data.train):
                self.partition = load_partition(self.data, config)
            self.validation = validation_rows(self.data, config)
        self.facts: Facts = self.data.facts
        self._train, self._test = map(_tensors, (self.data.train, self.data.test))

    def model(self) -> nn.Module:
        """Return the config's network."""
        if is_outside(self.config.model):
            return outside_model(self.config.model, self.facts)
        return self.network(self.config.model)

    @abstractmethod
    def network(self, name: str) -> nn.Module:
        """Return a new network of fedapp's by its name."""

    def client_data(self, client: int) -> Rows:
        """Return a client's samples."""
        if self.partition is None:
            raise ConfigError(
                "There is nothing to train on: give the data set a training split, such as train.csv, or every node a "
                "data-dir of its own."
            )
        return Rows(self._train, self.partition[client])

    def client_test_data(self, client: int) -> Rows | None:
        """Return a client's part of its node's own test samples, if there are any."""
        return None if self.held_out is None else Rows(self._test, self.held_out[client])

    def test_data(self) -> Sequence[Tensor] | None:
        """Return the test samples."""
        return self._test if len(self._test[1]) else None

    def validation_data(self) -> Rows:
        """Return the samples that `valid-share` holds out."""
        return Rows(self._train, self.validation)

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Any]:
        """Return what the metrics need of a batch."""
        return self.measures.of_batch(outputs, batch[-1])

    def combine(self, parts: Sequence[dict[str, Any]], count: int) -> dict[str, float]:
        """Return the metrics of all batches."""
        return self.measures.combined(parts, count)


def _tensors(part: Part) -> tuple[Tensor, Tensor]:
    """Return inputs and targets as tensors; what a user gives may be read-only, which torch does not take."""
    inputs, targets = (np.require(a, requirements=["W"]) for a in (part.inputs, part.targets))
    return torch.from_numpy(inputs), torch.from_numpy(targets)
