"""Networks by torch.compile, and what its errors mean."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn

from fedapp.errors import ConfigError, UserCodeError
from fedapp.files import brief


def compiled(module: nn.Module) -> nn.Module:
    """Return a network that is compiled anew for every shape of its inputs; its parameters are the network's own."""
    if torch.are_deterministic_algorithms_enabled():  # then the compiler is to choose such, too
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.compiler.reset()  # torch gives up on a class of networks that it has compiled several times
    return cast(nn.Module, torch.compile(module, dynamic=False))


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Turn what goes wrong with compiling, also a user's network, into a sentence."""
    try:
        yield
    except (RuntimeError, UserCodeError) as error:
        from torch._dynamo.exc import TorchDynamoException
        from torch._inductor.exc import InvalidCxxCompiler

        cause = error.__cause__ if isinstance(error, UserCodeError) else error
        if not isinstance(cause, TorchDynamoException):
            raise
        if isinstance(getattr(cause, "inner_exception", None), InvalidCxxCompiler):
            raise ConfigError(
                "compile = true needs a C++ compiler where clients train, and torch finds none that works: install g++, "
                "or set compile = false.",
                tell=True,
            ) from None
        raise ConfigError(
            f"compile = true: torch cannot compile the network ({brief(cause)}): set compile = false."
        ) from None
