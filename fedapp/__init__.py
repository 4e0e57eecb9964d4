"""fedapp: communication-efficient federated learning as a Flower app.

What is exported here is the public API, documented and kept stable; everything else may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedapp.algorithm import Algorithm as Algorithm
    from fedapp.algorithm import Needs as Needs
    from fedapp.api import RunResult as RunResult
    from fedapp.api import SweepResult as SweepResult
    from fedapp.api import run as run
    from fedapp.api import sweep as sweep
    from fedapp.building import make_strategy as make_strategy
    from fedapp.client import Client as Client
    from fedapp.client_app import make_client_app as make_client_app
    from fedapp.compression import Compressor as Compressor
    from fedapp.config import RunConfig as RunConfig
    from fedapp.data import Facts as Facts
    from fedapp.engine import InlineGrid as InlineGrid
    from fedapp.problems import make_problem as make_problem
    from fedapp.problems.problem import Problem as Problem
    from fedapp.problems.problem import Rows as Rows
    from fedapp.problems.protocols import Objective as Objective
    from fedapp.strategy import FederatedStrategy as FederatedStrategy
    from fedapp.tables import Table as Table
    from fedapp.wire import Update as Update

    __version__: str

# Imported when they are first used: torch takes seconds, and much needs no torch.
_PLACES = {
    "Algorithm": "fedapp.algorithm",
    "Client": "fedapp.client",
    "Compressor": "fedapp.compression",
    "Facts": "fedapp.data",
    "FederatedStrategy": "fedapp.strategy",
    "InlineGrid": "fedapp.engine",
    "Needs": "fedapp.algorithm",
    "Objective": "fedapp.problems.protocols",
    "Problem": "fedapp.problems.problem",
    "Rows": "fedapp.problems.problem",
    "RunConfig": "fedapp.config",
    "RunResult": "fedapp.api",
    "SweepResult": "fedapp.api",
    "Table": "fedapp.tables",
    "Update": "fedapp.wire",
    "make_client_app": "fedapp.client_app",
    "make_problem": "fedapp.problems",
    "make_strategy": "fedapp.building",
    "run": "fedapp.api",
    "sweep": "fedapp.api",
}
__all__ = sorted([*_PLACES, "__version__"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("fedapp")
    except PackageNotFoundError:  # run from a bundle that Flower unpacked
        return "unpacked"


def __dir__() -> list[str]:
    return __all__
