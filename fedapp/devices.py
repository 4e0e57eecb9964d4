"""The device that this process computes on: which one, with which settings, and what to say when its memory is full.

Every process chooses for itself: a server without a GPU goes with nodes that have one. A Ray worker sees only the GPU
that Ray gave it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedapp.errors import ConfigError, UserCodeError


class GpuMemoryError(RuntimeError):
    """The memory of a GPU is full."""

    told = property(str)  # quotes no data


def choose_device(wanted: str, gpus: int) -> str:
    """Return the device that a value of `device` means in a process that sees some GPUs."""
    if wanted == "auto":
        return "cuda" if gpus else "cpu"
    kind, _, index = wanted.partition(":")
    if kind == "cuda" and int(index or 0) >= gpus:
        seen = f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "no GPU"
        raise ConfigError(
            f'device = "{wanted}" is not there, since this process sees {seen}: use "cpu" or "auto", or give the process '
            "a GPU.",
            tell=True,
        )
    return wanted


def find_device(wanted: str) -> torch.device:
    """Return the device that `device` means here; a GPU is set up to give the same bits every time."""
    if wanted == "cpu":
        return torch.device(wanted)
    device = torch.device(choose_device(wanted, _visible_gpus()))
    try:
        torch.empty(0, device=device)
    except RuntimeError:
        raise ConfigError(
            f'device = "{wanted}" is not there: use "cpu" or "auto".', tell=True
        ) from None
    if device.type == "cuda":
        make_gpus_repeatable()
    return device


def _visible_gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def make_gpus_repeatable() -> None:
    """Let GPUs use algorithms that give the same bits every time, and float32 where float32 is asked for.

    Torch warns where an operation has no such algorithm.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    # Not use_deterministic_algorithms, which imports the compiler.
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.benchmark = False  # which would choose algorithms by their speed
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def full_memory_as(kind: type[Exception]) -> Iterator[None]:
    """Turn the error of a GPU whose memory is full, also in a user's network, into a sentence."""
    try:
        yield
    except (torch.OutOfMemoryError, UserCodeError) as error:
        cause = error.__cause__ if isinstance(error, UserCodeError) else error
        if not isinstance(cause, torch.OutOfMemoryError):
            raise
        raise kind(
            "The memory of the GPU is full: lower --workers-per-gpu (in Flower's simulation, raise "
            "client-resources-num-gpus) or batch-size."
        ) from error
