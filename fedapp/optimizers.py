"""The clients' optimizers: from a gradient to the direction of a local step.

A step is y <- y - lr * direction, with the direction of torch.optim's SGD (with momentum, undamped) or Adam. Weight decay
is in the gradient, as in torch.optim, and not apart from it as in AdamW.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedapp.config import OptimizerKeys, RunConfig


class Optimizer:
    """Plain SGD: the direction is the gradient.

    `memory` holds what an optimizer remembers from step to step: a client's own state, or a dictionary for one round.
    """

    names: ClassVar[tuple[str, ...]] = ()  # the vectors that it keeps in `memory`

    def __init__(self, keys: OptimizerKeys, memory: dict[str, Tensor]) -> None:
        self.keys, self.memory = keys, memory
        self.used = False

    def direction(self, g: Tensor) -> Tensor:
        """Return the direction of a step whose gradient is g; the next call may overwrite it."""
        self.used = True
        return self.turned(g, *(self._vector(name, g) for name in self.names))

    def turned(self, g: Tensor, *vectors: Tensor) -> Tensor:
        """Return the direction, and renew the vectors that are kept."""
        return g

    def _vector(self, name: str, like: Tensor) -> Tensor:
        """Return a vector that is kept; at first it is 0."""
        return self.memory.setdefault(f"optimizer.{name}", torch.zeros_like(like))


class Momentum(Optimizer):
    """m <- momentum m + g; the direction is m."""

    names = ("m",)

    def turned(self, g: Tensor, *vectors: Tensor) -> Tensor:
        """Return m."""
        (m,) = vectors
        return m.mul_(self.keys.momentum).add_(g)


class Adam(Optimizer):
    """m <- beta1 m + (1 - beta1) g; v <- beta2 v + (1 - beta2) g^2; the direction is m^ / (sqrt(v^) + eps).

    m^ and v^ are m / (1 - beta1^t) and v / (1 - beta2^t) in step t.
    """

    names = ("m", "v")

    def turned(self, g: Tensor, *vectors: Tensor) -> Tensor:
        """Return m^ / (sqrt(v^) + eps)."""
        (m, v), (b1, b2) = vectors, (self.keys.beta1, self.keys.beta2)
        t = self._count(g)
        m.mul_(b1).add_(g, alpha=1 - b1)
        v.mul_(b2).addcmul_(g, g, value=1 - b2)
        scale = (v / (1 - b2**t)).sqrt_().add_(self.keys.eps)
        return m / (1 - b1**t) / scale

    def _count(self, like: Tensor) -> int:
        """Return the number of this step, the first being 1."""
        before = self.memory.get("optimizer.t")
        t = 1 if before is None else int(before) + 1
        self.memory["optimizer.t"] = like.new_tensor([t], dtype=torch.int64)
        return t


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Optimizer, "momentum": Momentum, "adam": Adam}


def make_optimizer(config: RunConfig, state: dict[str, Tensor]) -> Optimizer:
    """Return a client's optimizer for a round: it goes on from the client's `state`, or begins anew."""
    memory = state if config.keeps_optimizer else {}
    return OPTIMIZERS[config.client_optimizer](config.optimizer, memory)


def clip_(g: Tensor, largest: float) -> Tensor:
    """Shorten g in place to the Euclidean norm `largest` if it is longer, and return it; 0: no limit."""
    if largest and (norm := float(torch.linalg.vector_norm(g, dtype=torch.float64))) > largest:
        g.mul_(largest / norm)
    return g
