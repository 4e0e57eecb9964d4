"""Which of Flower's grids a run has, without importing them: the SuperLink's database comes along, and takes a second."""

import sys
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid, InMemoryGrid

_HTTP = "flwr.superlink.grid.http_grid"
_MEMORY = "flwr.superlink.grid.inmemory_grid"


def is_deployed(grid: object) -> "TypeGuard[HttpGrid]":
    """Tell whether a SuperLink carries the messages to nodes of a real federation."""
    return _HTTP in sys.modules and isinstance(grid, sys.modules[_HTTP].HttpGrid)


def is_simulated(grid: object) -> "TypeGuard[InMemoryGrid]":
    """Tell whether Flower's simulation carries the messages."""
    return _MEMORY in sys.modules and isinstance(grid, sys.modules[_MEMORY].InMemoryGrid)
