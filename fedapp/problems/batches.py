"""Mini-batches of a client's samples."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.config import LocalWork
from fedapp.randomness import Generator


def shuffled_batches(
    indices: NDArray[np.int64], work: LocalWork, rng: Generator, least: int = 1
) -> Iterator[NDArray[np.int64]]:
    """Go through the samples in a new order each pass; the last batch of a pass may be short.

    It has at least `least` samples, if there are that many: it then begins with some of the batch before.
    """
    count = len(indices)
    size = work.batch(count)
    per_pass = -(-count // size)
    for step in range(work.num_steps(count)):
        if step % per_pass == 0:
            order = rng.permutation(indices)
        start = step % per_pass * size
        yield order[max(min(start, count - least), 0) : start + size]


def take_rows(array: Tensor, rows: Tensor | slice, pinned: bool = False) -> Tensor:
    """Return some rows of an array; in pinned memory, which a GPU reads while the CPU goes on, if that is asked for."""
    if isinstance(rows, slice):
        return array[rows].pin_memory() if pinned else array[rows]
    if not pinned:
        return array.index_select(0, rows)  # several times as fast as indexing
    taken = torch.empty((len(rows), *array.shape[1:]), dtype=array.dtype, pin_memory=True)
    return torch.index_select(array, 0, rows, out=taken)
