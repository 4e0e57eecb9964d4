"""A problem's size without its data: all that a strategy needs to be made, for dry runs."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedapp.data.facts import Facts
from fedapp.models.layout import Layout
from fedapp.problems.protocols import FederatedProblem, Vector


@dataclass(frozen=True)
class Outline:
    """A starting point of the right size and type, where all numbers are 0."""

    layout: Layout
    num_buffers: int
    dtype: str
    facts: Facts | None = None

    def initial(self) -> tuple[Vector, Vector]:
        """Return zeros, the same arrays every time."""
        return _zeros(self.layout.size, self.dtype), _zeros(self.num_buffers, self.dtype)


@lru_cache
def _zeros(count: int, dtype: str) -> Vector:
    zeros: Vector = np.zeros(count, dtype)
    return zeros


def outline_of(problem: FederatedProblem, dtype: str) -> Outline:
    """Return the outline of a problem that was made for that, where nothing else knows its size."""
    return Outline(problem.layout, problem.initial()[1].size, dtype, problem.facts)
