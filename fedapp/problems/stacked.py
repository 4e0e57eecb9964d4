"""Gradients of several clients at once: their points are the rows of one matrix, their products one batched product.

A client's bits must not depend on who is computed beside it, nor on its place among them, because clients train on any
node or worker. So:

- clients share a product only if it has the same shape for them, which depends on their own batch alone (`padded_size`);
- every matrix begins at a cache line, because BLAS adds in another order where it does not;
- functions that are not rounded exactly are computed on whole vector registers, or row by row.

`tests/problems/test_stacked.py` checks that this is enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.errors import ConfigError
from fedapp.models.networks import Network
from fedapp.problems.classification import Images
from fedapp.problems.erm import LinearERM
from fedapp.problems.network import NetworkProblem
from fedapp.problems.problem import Indices, Problem
from fedapp.problems.quadratic import ClientQuadratic, Quadratic
from fedapp.problems.tabular import RegressionTable, Table

CACHE_LINE = 16  # numbers of float32
REGISTERS = 64  # numbers: whole vector registers, also where a loop takes several at a time
Answer = tuple[Tensor, Tensor]  # a loss and its gradient, or those of several clients


class Asked(NamedTuple):
    """A gradient that a client waits for."""

    objective: Any
    y: Tensor
    batch: Any


class Stacked(Protocol):
    """The clients' objectives as one function of all their points."""

    def shape(self, asked: Asked) -> object:
        """Return what must be equal for gradients to be computed together."""

    def gradients(self, Y: Tensor, asked: Sequence[Asked]) -> Answer:
        """Return the losses (G,) and gradients (G, d) at the rows of Y; all that is asked has one shape."""


def stack(problem: object, batch_size: int) -> Stacked:
    """Return the clients' objectives of a problem as one; raise ConfigError if that is not written for it."""
    match problem:
        case Quadratic():
            return StackedQuadratics()
        case LinearERM():
            return StackedRisks(problem, batch_size)
        case NetworkProblem():
            return StackedNetwork(problem, batch_size)
    raise _unknown("this problem is none")


def serve(stacked: Stacked, asked: Sequence[Asked]) -> list[Answer]:
    """Return loss and gradient of each that is asked, those of one shape computed together."""
    shapes: dict[object, list[int]] = {}
    for place, one in enumerate(asked):
        shapes.setdefault(stacked.shape(one), []).append(place)
    answers: list[Any] = [None] * len(asked)
    for places in shapes.values():
        alike = [asked[place] for place in places]
        losses, gradients = stacked.gradients(torch.stack([one.y for one in alike]), alike)
        for place, loss, gradient in zip(places, losses.unbind(), gradients.unbind(), strict=True):
            answers[place] = loss, gradient
    return answers


def padded_size(count: int, batch_size: int) -> int:
    """Return how many rows a batch of `count` is computed with: whole batches as they are.

    Short ones get rows that count nothing, up to 2^k or 3/4 of it, so that clients with a little more or less data share a
    product.
    """
    if count == batch_size:
        return count
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 else power


def _padded_rows(asked: Sequence[Asked], size: int, like: Tensor) -> tuple[Indices, Tensor]:
    """Return the rows (G * size,) of batches, and what each counts in its client's mean (G, size)."""
    counts = [len(one.batch) for one in asked]
    rows = np.empty((len(asked), size), np.int64)
    weights = np.zeros((len(asked), size))
    for place, (one, count) in enumerate(zip(asked, counts, strict=True)):
        rows[place, :count], rows[place, count:] = one.batch, one.batch[0]
        weights[place, :count] = 1 / count
    return rows.reshape(-1), torch.from_numpy(weights).to(like)


def _empty(like: Tensor, *shape: int, multiple: int = CACHE_LINE) -> Tensor:
    """Return memory for numbers of each client, which begin at a cache line."""
    numbers = prod(shape[1:])
    return like.new_empty((shape[0], -(-numbers // multiple) * multiple))[:, :numbers].view(shape)


def _aligned(tensor: Tensor) -> Tensor:
    """Return the matrix of each client, copied to a cache line if it does not begin at one."""
    begins = tensor.is_contiguous() and tensor[0].numel() % CACHE_LINE == 0
    if begins and tensor.data_ptr() % (4 * CACHE_LINE) == 0:
        return tensor
    return _empty(tensor, *tensor.shape).copy_(tensor)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of each client's two matrices."""
    shape = len(a), a.shape[1], b.shape[2]
    if len(a) == 1 and 1 in (*a.shape[1:], b.shape[2]):  # torch would take BLAS's vector routines
        return _product(a.expand(2, -1, -1), b.expand(2, -1, -1))[:1]
    return torch.bmm(a, b, out=_empty(a, *shape))


def _elementwise(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Return a function of every number, computed on whole registers: what is left over is computed in another way."""
    count = rows.shape[1]
    whole = F.pad(rows, (0, -count % REGISTERS))
    return function(whole)[:, :count]


class StackedQuadratics:
    """Quadratics: f_i(y) = 1/2 (y - b_i)' A_i (y - b_i)."""

    def __init__(self) -> None:
        self._last: tuple[list[ClientQuadratic], Tensor, Tensor] | None = None

    def shape(self, asked: Asked) -> object:
        """Return the same for all."""
        return None

    def gradients(self, Y: Tensor, asked: Sequence[Asked]) -> Answer:
        """Return f_i(y) and A_i (y - b_i) + noise."""
        A, b = self._constants([one.objective for one in asked])
        away = Y - b
        slope = _product(A, _aligned(away.unsqueeze(2))).squeeze(2)
        losses = 0.5 * (away * slope).sum(1)
        return losses, slope + torch.stack([one.batch for one in asked])

    def _constants(self, objectives: list[ClientQuadratic]) -> tuple[Tensor, Tensor]:
        """Return A_i and b_i; from step to step the clients are the same."""
        if not self._last or self._last[0] != objectives:
            A = _aligned(torch.stack([f.A for f in objectives]))
            self._last = objectives, A, torch.stack([f.b for f in objectives])
        return self._last[1], self._last[2]


class StackedRisks:
    """Linear classifiers: see `LinearERM`."""

    def __init__(self, problem: LinearERM, batch_size: int) -> None:
        self.problem, self.batch_size = problem, batch_size

    def shape(self, asked: Asked) -> object:
        """Return the number of rows."""
        return padded_size(len(asked.batch), self.batch_size)

    def gradients(self, Y: Tensor, asked: Sequence[Asked]) -> Answer:
        """Return each client's mean loss on its batch, with the regulariser, and its gradient."""
        problem, G = self.problem, len(asked)
        indices, weights = _padded_rows(asked, padded_size(len(asked[0].batch), self.batch_size), Y)
        chosen = torch.from_numpy(indices)
        rows = _aligned(problem.rows.index_select(0, chosen).view(G, *weights.shape[1:], -1))
        signs = problem.signs.index_select(0, chosen).view_as(weights)
        margin = signs * _product(rows, _aligned(Y.unsqueeze(2))).squeeze(2)
        wrong = _elementwise(torch.sigmoid, -margin)
        if problem.convex:
            losses, slopes = _elementwise(F.softplus, -margin), -signs * wrong
        else:
            losses, slopes = wrong, -signs * wrong * (1 - wrong)
        decayed = problem.decay * Y
        slope = _product(rows.transpose(1, 2), _aligned((weights * slopes).unsqueeze(2)))
        return (weights * losses).sum(1) + 0.5 * (decayed * Y).sum(1), slope.squeeze(2) + decayed


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Answer:
    """Return each sample's loss (G, B) from outputs (G, B, classes), and its derivative by these."""
    targets = targets.unsqueeze(2)
    losses = -torch.log_softmax(outputs, 2).gather(2, targets).squeeze(2)
    slopes = torch.softmax(outputs, 2)
    return losses, slopes.scatter_add_(2, targets, slopes.new_full((), -1.0).expand_as(targets))


def _squared_error(outputs: Tensor, targets: Tensor) -> Answer:
    """Return each sample's loss (G, B) from outputs (G, B, 1), and its derivative by these."""
    away = outputs - targets.unsqueeze(2)
    return (away * away).squeeze(2), 2 * away


def _loss(problem: Problem) -> Callable[[Tensor, Tensor], Answer]:
    """Return how a problem's loss is computed for several clients; raise ConfigError for what a user has written."""
    own, known = type(problem), (Problem, Images, Table, RegressionTable)
    for name in ("prepare", "predict", "loss"):
        if getattr(own, name) not in [getattr(kind, name) for kind in known]:
            raise _unknown(f"this problem has a `{name}` of its own")
    return _squared_error if own.loss is RegressionTable.loss else _cross_entropy


@dataclass(frozen=True)
class _Layer:
    """Where in the vector a linear layer lies: its weights, then its biases."""

    begin: int
    middle: int
    end: int
    width: int


class StackedNetwork:
    """Linear layers with ReLU between them, under cross-entropy or the squared error."""

    def __init__(self, problem: NetworkProblem, batch_size: int) -> None:
        self.problem, self.batch_size = problem, batch_size
        self.layers = _layers(problem)
        self.loss = _loss(problem.problem)

    def shape(self, asked: Asked) -> object:
        """Return the number of rows, and of which tensors they are."""
        return padded_size(len(asked.batch), self.batch_size), id(asked.objective.arrays)

    def gradients(self, Y: Tensor, asked: Sequence[Asked]) -> Answer:
        """Return each client's mean loss on its batch, and its gradient."""
        rows, weights = _padded_rows(asked, padded_size(len(asked[0].batch), self.batch_size), Y)
        inputs, targets = self.problem.gather(asked[0].objective.arrays, rows)
        activity, inner = _aligned(inputs.reshape(*weights.shape, -1)), []
        for layer in self.layers:
            W = _aligned(Y[:, layer.begin : layer.middle].view(len(Y), layer.width, -1))
            inner.append((activity, W))
            activity = _product(activity, W.transpose(1, 2))
            activity.add_(Y[:, None, layer.middle : layer.end])
            if layer is not self.layers[-1]:
                activity.relu_()
        losses, slopes = self.loss(activity, targets.view_as(weights))
        slopes = _aligned(slopes * weights.unsqueeze(2))
        pieces: list[Tensor] = []  # the gradient's pieces, as they lie in the vector
        for activity, W in reversed(inner):
            pieces[:0] = [_product(slopes.transpose(1, 2), activity).flatten(1), slopes.sum(1)]
            if activity is not inner[0][0]:
                slopes = _product(slopes, W).mul_(activity > 0)
        return (weights * losses).sum(1), torch.cat(pieces, 1)


def _layers(problem: NetworkProblem) -> list[_Layer]:
    """Return where the layers of a network lie; raise ConfigError if it has others than linear ones with ReLU."""
    # What these contain, they apply in its order; any other module may do something else with its parts.
    containers = (Network, nn.Sequential, nn.Flatten)
    modules = [m for _, m in problem.model.module.named_modules(remove_duplicate=False)]
    layers = [m for m in modules if type(m) not in containers]
    linear = [m for m in layers if isinstance(m, nn.Linear)]
    if [type(m) for m in layers] != _alternating(len(linear)):
        raise _unknown("this one has others")
    sizes = [size for layer in linear for size in (layer.weight.numel(), layer.out_features)]
    if sizes != problem.model.sizes:
        raise _unknown("of this one, some parameters are missing, shared or not trained")
    cuts = pairwise(list(accumulate(sizes, initial=0))[::2])
    return [
        _Layer(begin, end - layer.out_features, end, layer.out_features)
        for (begin, end), layer in zip(cuts, linear, strict=True)
    ]


def _alternating(count: int) -> list[type[nn.Module]]:
    """Return the types of `count` linear layers with ReLU between them."""
    types: list[type[nn.Module]] = [nn.Linear, nn.ReLU]
    return (types * count)[:-1]


def _unknown(why: str) -> ConfigError:
    return ConfigError(
        f"vectorize trains linear layers with ReLU between them, all of them, by cross-entropy or squared error, and {why}: "
        "set vectorize = 0."
    )
