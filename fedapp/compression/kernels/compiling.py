"""Compilation by numba."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a function when it is first called; cache that on disk if there is a directory for it."""
    try:
        return cast(Function, numba.njit(cache=True)(function))
    except RuntimeError:  # neither beside the file nor in the home directory
        return cast(Function, numba.njit(function))
