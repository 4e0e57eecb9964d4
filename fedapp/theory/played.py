"""Runs that are played in this process, so that all that passes between clients and server can be looked at.

The strategy and the clients are the real ones; only Flower's messages are left out. Lemmas speak of local models, of
vectors before and after quantization, and of control variates, none of which a run's results hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedapp.building import make_strategy
from fedapp.config import LocalWork, RunConfig
from fedapp.problems import make_problem
from fedapp.problems.protocols import Objective
from fedapp.problems.quadratic import Quadratic
from fedapp.randomness import Generator, sample_cohort
from fedapp.registry import find_compressor
from fedapp.strategy import FederatedStrategy
from fedapp.theory.fits import Values

FAR = 1e30  # a model this far away has diverged; float32 norms still hold it


@dataclass
class Visit:
    """What one client did in one round."""

    points: list[Values] = field(default_factory=list)  # where mini-batch gradients were asked for
    gradients: list[Values] = field(default_factory=list)  # that were returned there
    plain: list[Values] = field(default_factory=list)  # vectors before compression
    sent: list[Values] = field(default_factory=list)  # the same as the server sees them

    def path(self, steps: int) -> Values:
        """Return the local models y_0, y_1, ..., of which each step's first gradient was taken."""
        return np.array(self.points).reshape(steps, -1, len(self.points[0]))[:, 0]


class Watched:
    """A client's f_i that notes what it is asked for."""

    def __init__(self, objective: Objective, visit: Visit) -> None:
        self._own, self._visit = objective, visit
        self.num_examples, self.layout = objective.num_examples, objective.layout
        self.buffers = objective.buffers

    def batches(self, work: LocalWork, rng: Generator) -> Iterator[Any]:
        """Yield the client's own mini-batches."""
        return self._own.batches(work, rng)

    def loss_gradient(self, y: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        """Note the point and the gradient."""
        loss, gradient = self._own.loss_gradient(y, batch)
        self._visit.points.append(y.numpy().copy())
        self._visit.gradients.append(gradient.numpy().copy())
        return loss, gradient

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return G_i(y)."""
        return self._own.full_gradient(y)

    def evaluate(self, y: Tensor) -> tuple[dict[str, float], int]:
        """Return the objective's own metrics."""
        return self._own.evaluate(y)


class WatchedCompressor:
    """A compressor that notes what goes in and what comes out."""

    def __init__(self, compressor: Any, visit: Visit) -> None:
        self._own, self._visit = compressor, visit

    def __getattr__(self, name: str) -> Any:
        """Return what the compressor itself has."""
        return getattr(self._own, name)

    def transmit(self, vector: NDArray[Any], rng: Generator) -> tuple[bytes, NDArray[Any]]:
        """Note the vector and Q(vector)."""
        payload, seen = self._own.transmit(vector, rng)
        self._visit.plain.append(vector.astype(np.float64))
        self._visit.sent.append(seen.astype(np.float64))
        return payload, seen


@dataclass(frozen=True)
class Played:
    """One round: the model before and after it, and what each client of it did."""

    number: int
    lr: float
    before: Values
    after: Values
    visits: dict[int, Visit]
    strategy: FederatedStrategy[Any]
    states: dict[int, dict[str, Tensor]]  # the clients' states after the round


def play(config: RunConfig) -> Iterator[Played]:
    """Play a run on quadratics round by round; end where the model is no longer finite."""
    problem = quadratic_of(config)
    strategy = make_strategy(config, problem)
    compressor = find_compressor(config, problem.layout.pieces)
    states: dict[int, dict[str, Tensor]] = {client: {} for client in range(config.num_clients)}
    for number in range(1, config.num_rounds + 1):
        strategy.ledger.begin(number, 0)
        cohort = sample_cohort(
            range(config.num_clients), config.clients_per_round, config.seed, number
        )
        strategy.on_cohort(cohort, number, 0)
        shared, before = strategy.broadcast(), strategy.x.copy()
        visits = {client: Visit() for client in cohort}
        updates = []
        for client, visit in visits.items():
            watched: Any = WatchedCompressor(compressor, visit) if compressor else None
            trainee = strategy.algorithm.client(
                Watched(problem.objective(client), visit), config, client,
                states[client], watched, number,
            )  # fmt: skip
            update = trainee.train(shared | strategy.per_client(client), strategy.buffers)
            updates.append(replace(update, arrays=update.arrays | update.decoded))
        strategy.ledger.accept(updates)
        strategy.lr = config.lr_at(number)
        strategy.aggregate(updates)
        if not (np.abs(strategy.x) < FAR).all():
            return
        yield Played(number, strategy.lr, before, strategy.x.copy(), visits, strategy, states)


def quadratic_of(config: RunConfig) -> Quadratic:
    """Return the quadratics of a config."""
    problem = make_problem(config)
    assert isinstance(problem, Quadratic)
    torch.set_num_threads(1)
    return problem
