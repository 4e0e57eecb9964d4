"""What a network holds beside the vector that is trained and the statistics that travel with it.

These are frozen parameters, and buffers that are not statistics: integers, masks, counters. They are the same on the
server and on all nodes, which a digest verifies. Buffers that a state dict leaves out (`persistent=False`) are not
part of the digest, but are restored like the others.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedapp.errors import ConfigError
from fedapp.files import arrays_digest
from fedapp.models.flat import FlatModel

Buffers = dict[str, Tensor | None]


class FrozenPart:
    """The frozen parameters and constant buffers of a network, by their names in its state dict."""

    def __init__(self, model: FlatModel) -> None:
        module, trained = model.module, set(model.names)
        self._module = module
        self._parameters = {n: p for n, p in module.named_parameters() if n not in trained}
        self._constants: dict[str, _Constant] = {}
        self._hidden: list[_Constant] = []  # not in a state dict
        self._made = _held_by(module)
        known = {id(view) for view in model.statistics}
        for prefix, owner in module.named_modules():
            for name, buffer in owner._buffers.items():
                if buffer is None or id(buffer) in known:
                    continue
                if name in owner._non_persistent_buffers_set:
                    self._hidden.append(_Constant(buffer))
                else:
                    known.add(id(buffer))
                    place = f"{prefix}.{name}" if prefix else name
                    self._constants[place] = _Constant(buffer)
        self._digest = ""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return its tensors as arrays."""
        tensors = {name: p.detach() for name, p in self._parameters.items()}
        tensors |= {name: constant.value for name, constant in self._constants.items()}
        return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}

    @property
    def digest(self) -> str:
        """What all copies have in common; empty if nothing is frozen."""
        if not self._digest and (self._parameters or self._constants):
            self._digest = arrays_digest(self.arrays(), {})
        return self._digest

    def restore(self) -> None:
        """Undo what a forward pass has changed of the buffers that are not statistics, such as counters and caches."""
        _put_back(self._made)
        for constant in (*self._constants.values(), *self._hidden):
            constant.restore()

    @contextmanager
    def as_made(self) -> Iterator[None]:
        """Restore for a while; afterwards the buffers are what they were before."""
        held = _held_by(self._module)
        constants = (*self._constants.values(), *self._hidden)
        changed = [(c.tensor, c.tensor.clone()) for c in constants if c.has_changed]
        self.restore()
        try:
            yield
        finally:
            _put_back(held)
            for tensor, value in changed:
                tensor.copy_(value)

    @torch.no_grad()
    def adopt(self, arrays: Mapping[str, NDArray[Any]], digest: str) -> None:
        """Take over another copy's tensors; raise ConfigError if they are not those, or do not fit."""
        own = self.arrays()
        fits = own.keys() == arrays.keys() and all(
            arrays[name].dtype == array.dtype and arrays[name].size == array.size
            for name, array in own.items()
        )
        if not fits:
            raise ConfigError(
                "The server's frozen parameters do not fit the network of this node: install the same version of the "
                "app, and of the model, on both.",
                tell=True,
            )
        if arrays_digest({n: arrays[n].reshape(own[n].shape) for n in own}, {}) != digest:
            raise ConfigError(
                "The frozen parameters that came from the server are not those that it named.",
                tell=True,
            )
        for name, parameter in self._parameters.items():
            parameter.copy_(_tensor_like(parameter, arrays[name]))
        for name, constant in self._constants.items():
            constant.set(_tensor_like(constant.value, arrays[name]))
        self._digest = digest


def _tensor_like(tensor: Tensor, array: NDArray[Any]) -> Tensor:
    return torch.tensor(array, device=tensor.device).view(tensor.shape)


class _Constant:
    """A tensor that is a buffer but not a statistic, and its value."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.value = tensor, tensor.detach().clone()
        self._version = tensor._version

    @property
    def has_changed(self) -> bool:
        """Whether anything was written to the tensor since its value was set."""
        return self.tensor._version != self._version

    def set(self, value: Tensor) -> None:
        """Give the buffer a value."""
        self.value = value
        self.tensor.copy_(value)
        self._version = self.tensor._version

    def restore(self) -> None:
        """Give the buffer its value again, if it has changed."""
        if self.has_changed:
            self.set(self.value)


def _held_by(module: nn.Module) -> list[tuple[Buffers, Buffers]]:
    """Return the buffers of each module, and a copy that stays as it is when the module assigns others."""
    return [(owner._buffers, dict(owner._buffers)) for owner in module.modules()]


def _put_back(held: list[tuple[Buffers, Buffers]]) -> None:
    """Let modules hold the tensors that they held, and no others."""
    for buffers, before in held:
        same = buffers.keys() == before.keys()
        if not same or any(buffers[name] is not tensor for name, tensor in before.items()):
            buffers.clear()
            buffers.update(before)


def frozen_part_of(problem: object) -> FrozenPart | None:
    """Return what a problem's network holds beside its vector; None if the problem is not a network."""
    return getattr(problem, "frozen_part", None)
