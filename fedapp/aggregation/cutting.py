"""The loop of exact sums over long vectors, compiled: one pass instead of one for each operation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.compression.kernels.compiling import compiled


@compiled
def add_two(
    part: NDArray[Any],
    coarse: NDArray[np.float64],
    fine: NDArray[np.float64],
    shift: float,
    next_shift: float,
    times: float,
    over: float,
) -> None:
    """Cut numbers into two slices, and add those."""
    if times == 1.0 and over == 1.0:
        for i in range(len(part)):
            rest = np.float64(part[i])
            cut = (rest + shift) - shift
            coarse[i] += cut
            fine[i] += (rest - cut + next_shift) - next_shift
        return
    for i in range(len(part)):
        rest = np.float64(part[i]) * times / over
        cut = (rest + shift) - shift
        coarse[i] += cut
        fine[i] += (rest - cut + next_shift) - next_shift
