"""A problem's size without its data: all that a strategy needs to be made, for dry runs."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedapp.config import RunConfig
from fedapp.data import Facts, Shard
from fedapp.models.layout import Layout
from fedapp.problems.protocols import FederatedProblem, Vector
from fedapp.wire.facts import facts_from_text


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


def server_shard(config: RunConfig) -> Shard | None:
    """Return what stands in for the data of a server that has none; None if it has some, or nobody has said what they are like."""
    if config.server_data or not config.facts:
        return None
    return Shard("", range(0), facts_from_text(config.facts))


def outline_of(problem: FederatedProblem, dtype: str) -> Outline:
    """Return the outline of a problem that was made for that, where nothing else knows its size."""
    return Outline(problem.layout, problem.initial()[1].size, dtype, problem.facts)
