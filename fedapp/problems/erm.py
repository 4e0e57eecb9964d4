"""Regularised empirical risk of a linear classifier, one class against another or the rest.

`logistic`:    log(1 + exp(-b a'x)) + lambda/2 |x|^2, strongly convex;
`sigmoid-erm`: 1/(1 + exp(b a'x)) + lambda/2 |x|^2, not convex (FedBCGD's supplement, section 6.5).

a is an image, scaled to length 1; b is 1 for the positive class and -1 for the others. So each
sample's loss is L-smooth with L = 1/4, or 1/(6 sqrt(3)) for the sigmoid; lambda is a multiple of it.
f is the mean of the clients' f_i, or with `weighting = "examples"` of all the samples' losses.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedapp.config import LocalWork, RunConfig
from fedapp.data import ImageData, configured_images, image_shape, load_partition, validation_rows
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.models.layout import Layout
from fedapp.problems.batches import shuffled_batches
from fedapp.problems.keys import ErmKeys
from fedapp.problems.outline import Outline
from fedapp.problems.protocols import Vector
from fedapp.randomness import Generator

SMOOTHNESS = {"logistic": 1 / 4, "sigmoid-erm": 1 / (6 * 3**0.5)}
NEWTON_STEPS = 100


class LinearERM:
    """All the clients' risks; the samples are rows of one matrix."""

    facts = None  # nodes cannot have their own data: the optimum needs all data on the server

    def __init__(self, config: RunConfig) -> None:
        self.convex = config.model == "logistic"
        self.device, self.dtype = torch.device(config.device), getattr(torch, config.dtype)
        data = _two_sided(configured_images(config), config)
        self.partition = load_partition(data, config)
        self.decay = config.table(ErmKeys).regularization * SMOOTHNESS[config.model]
        positive = config.table(ErmKeys).positive
        self.rows, self.signs = self._tensors(data.train_images, data.train_labels == positive)
        self._test = self._tensors(data.test_images, data.test_labels == positive)
        self._validation = torch.from_numpy(validation_rows(data, config)).to(self.device)
        self.layout = Layout.single(self.rows.shape[1])
        weights = torch.from_numpy(self.partition.weights(len(self.rows))).to(self.dtype)
        if config.weighting == "examples" and not config.samples_per_client:
            weights = (weights > 0).to(self.dtype) / (weights > 0).sum()
        self._weights = weights.to(self.device)

    def _tensors(self, images: NDArray[Any], positive: NDArray[Any]) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(images).flatten(1).to(self.device, self.dtype)
        signs = torch.from_numpy(np.where(positive, 1.0, -1.0))
        return F.normalize(rows), signs.to(self.device, self.dtype)

    def initial(self) -> tuple[Vector, Vector]:
        """Start at zero; there are no buffers."""
        x = np.zeros(self.rows.shape[1], self.rows.new_empty(0).cpu().numpy().dtype)
        return x, x[:0]

    def objective(self, client: int) -> "ClientRisk":
        """Return f_i."""
        return ClientRisk(self, self.partition[client])

    def losses(self, x: Tensor, rows: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
        """Return each sample's loss, and its derivative by a'x."""
        margin = signs * (rows @ x)
        wrong = torch.sigmoid(-margin)
        if self.convex:
            return F.softplus(-margin), -signs * wrong
        return wrong, -signs * wrong * (1 - wrong)

    def loss_gradient(
        self, x: Tensor, rows: Tensor, signs: Tensor, weights: Tensor | float
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted loss of some samples, with the regulariser, and its gradient."""
        losses, slopes = self.losses(x, rows, signs)
        loss = (weights * losses).sum() + 0.5 * self.decay * (x @ x)
        return loss, rows.T @ (weights * slopes) + self.decay * x

    @cached_property
    def lowest(self) -> float:
        """f*, by Newton's method; only for the convex loss."""
        x = torch.zeros(self.rows.shape[1], dtype=torch.float64)
        rows, signs, weights = (t.cpu().double() for t in (self.rows, self.signs, self._weights))
        value, gradient = self.loss_gradient(x, rows, signs, weights)
        for _ in range(NEWTON_STEPS):
            wrong = torch.sigmoid(-signs * (rows @ x))
            hessian = rows.T @ ((weights * wrong * (1 - wrong))[:, None] * rows)
            hessian.diagonal().add_(self.decay)
            step = torch.linalg.solve(hessian, gradient)
            length = 1.0
            while True:
                new = x - length * step
                new_value, new_gradient = self.loss_gradient(new, rows, signs, weights)
                if new_value <= value - 1e-4 * length * (gradient @ step) or length < 1e-8:
                    break
                length /= 2
            ended = bool(value - new_value <= 1e-16 * value)
            x, value, gradient = new, torch.minimum(value, new_value), new_gradient
            if ended:
                break
        return float(value)

    def evaluate(self, x: Vector, buffers: Vector) -> dict[str, float]:
        """Return the figures on the test set, f(x), |grad f(x)|^2 and, if it is known, f(x) - f*."""
        at = torch.tensor(x, device=self.device)
        value, gradient = self.loss_gradient(at, self.rows, self.signs, self._weights)
        figures = {
            **self._measured("test", at, *self._test),
            "objective": float(value),
            "squared_gradient": float(gradient @ gradient),
        }
        if len(held := self._validation):
            figures |= self._measured("valid", at, self.rows[held], self.signs[held])
        return figures | ({"gap": float(value) - self.lowest} if self.convex else {})

    def _measured(self, on: str, at: Tensor, rows: Tensor, signs: Tensor) -> dict[str, float]:
        """Return loss and accuracy on some samples."""
        loss, _ = self.loss_gradient(at, rows, signs, 1 / len(rows))
        right = ((signs * (rows @ at)) > 0).cpu().double().mean()
        return {f"{on}_loss": float(loss), f"{on}_accuracy": float(right)}

    def named_tensors(self, x: Vector, buffers: Vector) -> dict[str, NDArray[Any]]:
        """Return x."""
        return {"x": x}


def outline(config: RunConfig) -> Outline:
    """Return the size of the linear classifier: one weight for each number of an image."""
    if is_outside(config.dataset):
        shape = configured_images(config).image_shape
    else:
        shape, _ = image_shape(config.dataset, config.data_dir)
    return Outline(Layout.single(prod(shape)), 0, config.dtype)


def _two_sided(data: ImageData, config: RunConfig) -> ImageData:
    """Return the samples that take part: all, or those of two classes."""
    keys = config.table(ErmKeys)
    for name, label in (("positive", keys.positive), ("negative", keys.negative)):
        if label >= data.num_classes:
            raise ConfigError(
                f"erm.{name} = {label} is not a class of {config.dataset}: choose at most "
                f"{data.num_classes - 1}."
            )
    if keys.negative < 0:
        return data
    if keys.negative == keys.positive:
        raise ConfigError(
            f"erm.negative = {keys.negative} is erm.positive too: choose another class."
        )
    train, test = (
        np.flatnonzero(np.isin(labels, (keys.positive, keys.negative)))
        for labels in (data.train_labels, data.test_labels)
    )
    return replace(
        data,
        key=f"{data.key}-{keys.positive}-{keys.negative}",
        train_images=data.train_images[train],
        train_labels=data.train_labels[train],
        test_images=data.test_images[test],
        test_labels=data.test_labels[test],
        writers=None if data.writers is None else data.writers[train],
    )


class ClientRisk:
    """f_i: the mean loss over one client's samples, and the regulariser."""

    def __init__(self, problem: LinearERM, indices: NDArray[np.int64]) -> None:
        self.problem = problem
        self.indices = indices
        self.num_examples = len(indices)
        self.layout = problem.layout
        self.buffers = problem.rows.new_empty(0)

    def batches(self, work: LocalWork, rng: Generator) -> Iterator[NDArray[np.int64]]:
        """Go through the data in a new order each pass."""
        return shuffled_batches(self.indices, work, rng)

    def loss_gradient(self, y: Tensor, batch: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return loss and gradient on a batch of sample indices."""
        chosen = torch.from_numpy(batch).to(self.problem.device)
        rows = self.problem.rows.index_select(0, chosen)
        return self.problem.loss_gradient(y, rows, self.problem.signs[chosen], 1 / len(batch))

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return the gradient over all samples."""
        return self.loss_gradient(y, self.indices)[1]

    def evaluate(self, y: Tensor) -> tuple[dict[str, float], int]:
        """Hold nothing out: the optimum is that of all samples."""
        return {}, 0
