"""A network whose trainable parameters are one vector, its gradients another.

The update rules are then plain vector arithmetic. To train at some point, bind the network to
that vector: nothing is copied.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedapp.errors import ConfigError
from fedapp.models.networks import statistics


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return a tensor that was computed in half precision as float32; others as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class FlatModel:
    """One network that can be bound to any parameter vector.

    `names` are the parameters of the vector; by default, all that are trained. A tied parameter is in it once.
    """

    def __init__(self, module: nn.Module, names: Sequence[str] | None = None) -> None:
        self.module = module
        own = dict(module.named_parameters())
        self.names = list(names or (name for name, p in own.items() if p.requires_grad))
        self._parameters = [own[name] for name in self.names]
        self.sizes = [p.numel() for p in self._parameters]
        self.size = sum(self.sizes)
        vector = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self.gradient = torch.zeros_like(vector)
        self._gradients = self._pieces(self.gradient)
        for parameter, piece in self._gradients:
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
        self._statistics = []
        for (buffers, name), tensor, piece in zip(owners, tensors, pieces, strict=True):
            view = piece.view(tensor.shape)
            for owner in self.module.modules():  # two modules may share it
                shared = [other for other, held in owner._buffers.items() if held is tensor]
                owner._buffers.update(dict.fromkeys(shared, view))
            self._statistics.append((buffers, name, view))
        return flat

    @property
    def statistics(self) -> list[Tensor]:
        """The buffers that travel, as views of one vector."""
        return [view for _, _, view in self._statistics]

    def loss_gradient(
        self, vector: Tensor, batch: Any, loss: Callable[[Any, Any], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return a loss of the network at `vector` on a batch, and its gradient.

        The gradient is one buffer that the next call overwrites: clone it to keep it.
        """
        self.bind(vector)
        if not self.module.training:
            self.module.train()
        self.gradient.zero_()
        value = loss(self.module, batch)
        value.backward()
        self._keep_views()
        return value.detach(), self.gradient

    def _keep_views(self) -> None:
        """Bring back into the vectors what a network has put into other tensors."""
        for buffers, name, piece in self._statistics:
            if (assigned := buffers[name]) is not piece:  # not changed in place
                buffers[name] = piece
                try:
                    piece.copy_(assigned)
                except (RuntimeError, TypeError):
                    raise ConfigError(
                        f"The network assigns to its buffer {name!r}, of the shape {tuple(piece.shape)}, something "
                        "that does not fit: keep its shape, or register it with persistent=False."
                    ) from None
        if any(parameter.grad is not piece for parameter, piece in self._gradients):
            raise ConfigError(
                "The network replaces the gradients of its parameters: leave parameter.grad alone."
            )
