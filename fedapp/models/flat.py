"""A network whose trainable parameters are one vector, its gradients another.

The update rules are then plain vector arithmetic. To train at some point, bind the network to
that vector: nothing is copied.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedapp.models.networks import Network, statistics


class FlatModel:
    """One network that can be bound to any parameter vector."""

    def __init__(self, module: Network) -> None:
        self.module = module
        self._parameters = list(module.parameters())
        self.sizes = [p.numel() for p in self._parameters]
        self.size = sum(self.sizes)
        vector = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.gradient = torch.zeros_like(vector)
        for parameter, piece in self._pieces(self.gradient):
            parameter.grad = piece
        self.bind(vector)
        self.buffers = self._flatten_buffers(vector)

    def _pieces(self, vector: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        pieces = vector.split(self.sizes)
        return [(p, piece.view(p.shape)) for p, piece in zip(self._parameters, pieces, strict=True)]

    def bind(self, vector: Tensor) -> None:
        """Make `vector` the network's parameters; later changes of it are the network's."""
        if getattr(self, "vector", None) is vector:
            return
        for parameter, piece in self._pieces(vector):
            parameter.data = piece
        self.vector = vector

    def _flatten_buffers(self, like: Tensor) -> Tensor:
        owners = statistics(self.module)
        tensors = [buffers[name] for buffers, name in owners]
        flat = torch.cat([like.new_empty(0), *(t.reshape(-1) for t in tensors)])
        pieces = flat.split([t.numel() for t in tensors])
        for (buffers, name), tensor, piece in zip(owners, tensors, pieces, strict=True):
            buffers[name] = piece.view(tensor.shape)
        return flat

    def loss_gradient(
        self,
        vector: Tensor,
        inputs: Tensor,
        labels: Tensor,
        loss: Callable[[Any, Tensor, Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return a loss at `vector`, the mean cross-entropy unless another is given, and its gradient.

        The gradient is one buffer that the next call overwrites: clone it to keep it.
        """
        self.bind(vector)
        if not self.module.training:
            self.module.train()
        self.gradient.zero_()
        value = (loss or _cross_entropy)(self.module, inputs, labels)
        value.backward()
        return value.detach(), self.gradient


def _cross_entropy(module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(module(inputs), labels)
