"""Networks that users bring: any torch.nn.Module."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedapp.data.facts import Facts
from fedapp.doors import call_with, find_object, user_code
from fedapp.errors import ConfigError


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generator for a while, and leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        if _has_cuda():
            torch.manual_seed(seed)
        else:  # the same for the CPU; torch.manual_seed would format a traceback for each kind of device that is not there
            torch.default_generator.manual_seed(seed)
        yield


@cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()


def outside_model(name: str, facts: Facts | None) -> nn.Module:
    """Return a new network from what `model` names: a function of the facts, a class, or a network, which is copied."""
    found: Any = find_object("model", name)
    if isinstance(found, nn.Module):
        with user_code("model", name, "copying it"):
            return copy.deepcopy(checked(found, f"model = {name!r}"))
    if not callable(found):
        raise ConfigError(
            f"model = {name!r} is neither a torch.nn.Module nor a function that returns one."
        )
    with user_code("model", name, "making the network"):
        module = call_with(found, facts)
    return checked(module, f"model = {name!r}")


def checked(module: object, what: str) -> nn.Module:
    """Return a network that can be trained here, or say why it cannot."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{what} returned {type(module).__name__}: return a torch.nn.Module.")
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise ConfigError(
                f"{what} has a parameter without a shape, {name}: give layers their sizes, or pass a sample through the network before returning it."
            )
        if not parameter.is_floating_point():
            raise ConfigError(
                f"{what} has a parameter {name} of type {parameter.dtype}: use real floating-point parameters."
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(
            f"{what} has nothing to train: set requires_grad of the parameters that clients train."
        )
    return module
