"""Image classification: a network, a data set, and its partition over the clients."""

import copy
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedapp.config import LocalWork, RunConfig
from fedapp.data import (
    ImageData,
    Partition,
    Shard,
    image_shape,
    load_images,
    load_partition,
    load_shard,
)
from fedapp.data.augmentation import Augmented, augmented_batches
from fedapp.errors import ConfigError
from fedapp.models.flat import FlatModel
from fedapp.models.keys import VitKeys
from fedapp.models.layout import Layout
from fedapp.models.networks import Network, layout_of, make_network
from fedapp.problems.batches import shuffled_batches
from fedapp.problems.outline import Outline
from fedapp.problems.problem import Loss, Vector
from fedapp.randomness import Generator, torch_seed

EVALUATION_BATCH = 1000
Batch = NDArray[np.int64] | Augmented


class Classification:
    """One network for all the clients of this process; the data are memory-mapped."""

    def __init__(self, config: RunConfig, shard: Shard | None = None) -> None:
        self.device = torch.device(config.device)
        self.data: ImageData
        self.partition: Partition | None  # None: the nodes have their own data
        if shard:
            self.data, self.partition = load_shard(shard, config)
        else:
            self.data = load_images(config.dataset, config.data_dir)
            there = len(self.data.train_labels)
            self.partition = load_partition(self.data, config) if there else None
        self.facts = self.data.facts
        shape = self.facts.shape
        seed = torch_seed(config.seed, "model")
        network = make_network(
            config.model,
            shape,
            self.data.num_classes,
            config.norm,
            seed,
            config.table(VitKeys).image_size,
            config.table(VitKeys).weights,
        )
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self.model = FlatModel(network.to(self.device, self.dtype))
        if self.model.buffers.numel() and config.batch_size == 1:
            raise ConfigError("batch-size = 1 does not go with batch norm: set norm to group.")
        self.layout = layout_of(network, config.model)
        self._initial = tuple(
            v.cpu().numpy().copy() for v in (self.model.vector, self.model.buffers)
        )
        self._mean = torch.tensor(self.data.mean, device=self.device).view(-1, 1, 1)
        self._scale = 1 / torch.tensor(self.data.std, device=self.device).view(-1, 1, 1)
        self._eval_train = config.eval_train
        self.augmentation = config.augmentation
        self._gathered: tuple[Any, Any, Any] = (None, None, None)  # the last batch
        self._train = torch.from_numpy(self.data.train_images)
        self._train_labels = torch.from_numpy(self.data.train_labels)

    @cached_property
    def second(self) -> FlatModel:
        """A second network like the first, whose parameters have no gradients."""
        network = copy.deepcopy(self.model.module)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        return FlatModel(network)

    def initial(self) -> tuple[Vector, Vector]:
        """Return the network's initial weights and statistics."""
        x, buffers = self._initial
        return x.copy(), buffers.copy()

    def objective(self, client: int) -> "ClientImages":
        """Return the loss over a client's images."""
        return ClientImages(self, self.held()[client])

    def held(self) -> Partition:
        """Return the partition; raise a ConfigError if there is no training data."""
        if self.partition is None:
            raise ConfigError(
                "There is nothing to train on: give data-dir a train-*.parquet, or every node a data-dir "
                "of its own."
            )
        return self.partition

    def prepare(self, images: Tensor) -> Tensor:
        """Return normalised pixels, channels last: LeNet-5 trains a fifth faster that way."""
        # A copy even of floats: what follows is in place, and must not reach the data.
        numbers = images.to(self.device, self.dtype, memory_format=torch.channels_last, copy=True)
        return numbers.sub_(self._mean).mul_(self._scale)

    def training_batch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gather training samples by their indices; several gradients on one batch gather it once."""
        if batch is not self._gathered[0]:
            chosen = torch.from_numpy(batch.indices if isinstance(batch, Augmented) else batch)
            images = self._train.index_select(0, chosen)  # several times as fast as indexing
            images = self.prepare(batch.augment(images) if isinstance(batch, Augmented) else images)
            labels = self._train_labels.index_select(0, chosen).to(self.device)
            self._gathered = batch, images, labels
        return self._gathered[1], self._gathered[2]

    def _load(self, x: Vector, buffers: Vector) -> None:
        self.model.bind(torch.tensor(x, device=self.device))
        self.model.buffers.copy_(torch.tensor(buffers))

    def evaluate(self, x: Vector, buffers: Vector) -> dict[str, float]:
        """Return loss and accuracy on the test set and, with eval-train, f(x): the loss on the clients' samples."""
        self._load(x, buffers)
        self.model.module.eval()
        images, labels = map(torch.from_numpy, (self.data.test_images, self.data.test_labels))
        loss, accuracy = self._measure(
            zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True)
        )
        figures = {"test_loss": loss, "test_accuracy": accuracy}
        if self._eval_train:
            held = torch.from_numpy(self.held().indices).split(EVALUATION_BATCH)
            figures["objective"], _ = self._measure(
                (self._train.index_select(0, some), self._train_labels.index_select(0, some))
                for some in held
            )
        return figures

    @torch.no_grad()
    def _measure(self, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[float, float]:
        """Return the mean loss and the accuracy over batches of samples."""
        loss, correct, count = 0.0, 0, 0
        for images, labels in batches:
            logits, true = self.model.module(self.prepare(images)), labels.to(self.device)
            loss += F.cross_entropy(logits, true, reduction="sum").item()
            correct += int((logits.argmax(1) == true).sum())
            count += len(true)
        return loss / count, correct / count

    def named_tensors(self, x: Vector, buffers: Vector) -> dict[str, NDArray[Any]]:
        """Return the network's state dict; counters, which each process has for itself, are zero."""
        self._load(x, buffers)
        state = self.model.module.state_dict()
        return {
            name: tensor.cpu().numpy() * (1 if tensor.is_floating_point() else 0)
            for name, tensor in state.items()
        }


def outline(config: RunConfig) -> Outline:
    """Return the size of the config's network, which gets no memory."""
    layout, num_buffers = _measure_network(
        config.dataset, config.data_dir, config.model, config.norm, config.table(VitKeys).image_size
    )
    return Outline(layout, num_buffers, config.dtype)


@lru_cache
def _measure_network(
    dataset: str, data_dir: str, model: str, norm: str, image_size: int
) -> tuple[Layout, int]:
    """Return a network's layout, and the length of its statistics."""
    shape, num_classes = image_shape(dataset, data_dir)
    with torch.device("meta"):
        network = make_network(model, shape, num_classes, norm, 0, image_size)
    num_buffers = sum(b.numel() for b in network.buffers() if b.is_floating_point())
    return layout_of(network, model), num_buffers


class ClientImages:
    """f_i: the mean cross-entropy over one client's images."""

    def __init__(self, problem: Classification, indices: NDArray[np.int64]) -> None:
        self.problem = problem
        self.indices = indices
        self.num_examples = len(indices)
        self.layout = problem.layout
        self.buffers = problem.model.buffers

    def batches(self, work: LocalWork, rng: Generator) -> Iterator[Any]:
        """Go through the data in a new order each pass."""
        batches = shuffled_batches(self.indices, work, rng)
        return augmented_batches(batches, self.problem.augmentation, rng)

    def loss_gradient(
        self, y: Tensor, batch: Batch, loss: Loss | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return loss and gradient on a batch of sample indices."""
        return self.problem.model.loss_gradient(y, *self.problem.training_batch(batch), loss)

    @torch.no_grad()
    def representation(self, y: Tensor, batch: Batch) -> Tensor:
        """Return the input of the classifier for a batch, with the network at y."""
        statistics, model = self.buffers.clone(), self.problem.model
        model.bind(y)
        model.module.train()
        z = model.module.representation(self.problem.training_batch(batch)[0])
        self.buffers.copy_(statistics)
        return z

    def frozen(self, x: Tensor) -> Network:
        """Return the problem's second network, at x, with the statistics that came with it."""
        frozen = self.problem.second
        frozen.bind(x)
        frozen.buffers.copy_(self.buffers)
        frozen.module.train()
        return frozen.module

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return the gradient over all images, a batch at a time."""
        statistics = self.buffers.clone()
        total = torch.zeros_like(y)
        for start in range(0, self.num_examples, EVALUATION_BATCH):
            batch = self.indices[start : start + EVALUATION_BATCH]
            total.add_(self.loss_gradient(y, batch)[1], alpha=len(batch) / self.num_examples)
        self.buffers.copy_(statistics)
        return total
