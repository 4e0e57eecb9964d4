"""Mini-batches of a client's samples."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

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
