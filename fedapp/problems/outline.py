"""A problem's size without its data: all that a strategy needs to be made, for dry runs."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedapp.models.layout import Layout
from fedapp.problems.protocols import Vector


@dataclass(frozen=True)
class Outline:
    """A starting point of the right size and type, where all numbers are 0."""

    layout: Layout
    num_buffers: int
    dtype: str
    facts: None = None  # there are no images

    def initial(self) -> tuple[Vector, Vector]:
        """Return zeros, the same arrays every time."""
        return _zeros(self.layout.size, self.dtype), _zeros(self.num_buffers, self.dtype)


@lru_cache
def _zeros(count: int, dtype: str) -> Vector:
    zeros: Vector = np.zeros(count, dtype)
    return zeros
