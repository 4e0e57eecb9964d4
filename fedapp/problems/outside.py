"""Problems that users bring: any `Problem`, or anything with the methods of a `FederatedProblem`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from fedapp.config import RunConfig
from fedapp.doors import call_with, find_object, user_code
from fedapp.errors import ConfigError
from fedapp.models.outside import checked
from fedapp.problems.network import NetworkProblem
from fedapp.problems.problem import Batch, Data, Problem
from fedapp.problems.protocols import FederatedProblem

METHODS = ("objective", "initial", "evaluate", "named_tensors", "layout")


def outside_problem(config: RunConfig) -> FederatedProblem:
    """Return the problem that the config names: a Problem, a class, or a function that returns one."""
    name = config.problem
    found: Any = find_object("problem", name)
    if not isinstance(found, Problem) and callable(found):
        with user_code("problem", name, "making it"):
            found = call_with(found, config)
    if isinstance(found, Problem):
        return NetworkProblem(_Guarded(found, name), config)
    if all(hasattr(found, method) for method in METHODS):
        if config.valid_share:
            raise ConfigError(
                f"problem = {name!r} evaluates by itself, and valid-share is not known to it: set valid-share = 0."
            )
        ready: FederatedProblem = found
        return ready
    raise ConfigError(
        f"problem = {name!r} gives {type(found).__name__}: return a class derived from fedapp.Problem."
    )


class _Guarded(Problem):
    """A user's problem, whose errors are reported as the user's."""

    def __init__(self, problem: Problem, name: str) -> None:
        self._problem, self._name = problem, name
        self.facts = problem.facts

    def model(self) -> nn.Module:
        """Return the network, checked."""
        with user_code("problem", self._name, "making the network"):
            module = self._problem.model()
        return checked(module, f"problem = {self._name!r}")

    def client_data(self, client: int) -> Data:
        """Return a client's samples."""
        with user_code("problem", self._name, f"loading the data of client {client}"):
            return self._problem.client_data(client)

    def client_test_data(self, client: int) -> Data | None:
        """Return the samples that a client is evaluated on."""
        with user_code("problem", self._name, f"loading the test data of client {client}"):
            return self._problem.client_test_data(client)

    def test_data(self) -> Data | None:
        """Return the test samples."""
        with user_code("problem", self._name, "loading the test data"):
            return self._problem.test_data()

    def prepare(self, batch: Batch) -> Batch:
        """Return what the network sees."""
        with user_code("problem", self._name, "preparing a batch"):
            return self._problem.prepare(batch)

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the network's outputs."""
        with user_code("problem", self._name, "computing the network's outputs"):
            return self._problem.predict(model, batch)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        with user_code("problem", self._name, "computing the loss"):
            return self._problem.loss(outputs, batch)

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Any]:
        """Return the metrics of a batch."""
        with user_code("problem", self._name, "computing metrics"):
            return self._problem.metrics(outputs, batch)

    def combine(self, parts: Sequence[dict[str, Any]], count: int) -> dict[str, float]:
        """Return the metrics of all batches."""
        with user_code("problem", self._name, "combining metrics"):
            return self._problem.combine(parts, count)
