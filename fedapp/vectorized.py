"""Clients that train side by side, so that their gradients are computed at once: the key `vectorize`.

Each client's `update` runs as it is written, in its own greenlet. Where it asks for a mini-batch gradient, it waits until
every other client of its group has asked for one, or is done. Nothing else is shared: clients draw their own batches, may take
different numbers of steps, and fail alone.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet
from torch import Tensor

from fedapp.config import LocalWork, RunConfig
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.problems import kind_of
from fedapp.problems.outline import Outline
from fedapp.problems.protocols import Objective
from fedapp.problems.stacked import Answer, Asked, Stacked, serve, stack
from fedapp.randomness import Generator

T = TypeVar("T")


def check(config: RunConfig, problem: object) -> None:
    """Raise ConfigError if `vectorize` is set, and the gradients cannot be computed at once."""
    if not config.vectorize:
        return
    if config.device != "cpu":
        raise ConfigError(
            f'vectorize is for device = "cpu", not {config.device!r}: set vectorize = 0.'
        )
    if config.precision != "fp32" or config.compile:
        raise ConfigError(
            'vectorize computes in float32, by itself: set vectorize = 0, or precision = "fp32" and compile = false.'
        )
    if config.augmentation != "none":
        raise ConfigError('vectorize does not augment images: set augmentation = "none".')
    ours = kind_of(config).is_network and not is_outside(config.model)
    if ours and not re.fullmatch(r"logreg|mlp(-\d+)+", config.model):
        raise ConfigError(
            f"vectorize trains logreg, mlp-<width>-..., logistic, sigmoid-erm and quadratics, not {config.model}: set "
            "vectorize = 0."
        )
    if not isinstance(problem, Outline):  # a dry run has no network
        stack(problem, config.batch_size)


class Asking:
    """A client's f_i, whose mini-batch gradients are computed with those of its group."""

    def __init__(self, objective: Objective) -> None:
        self._own = objective
        self.num_examples, self.layout = objective.num_examples, objective.layout
        self.buffers = objective.buffers

    def batches(self, work: LocalWork, rng: Generator) -> Iterator[Any]:
        """Yield the client's own mini-batches."""
        return self._own.batches(work, rng)

    def loss_gradient(self, y: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        """Wait for the group, and return loss and gradient."""
        answer: Answer = getcurrent().parent.switch(Asked(self._own, y, batch))
        return answer

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return G_i(y), computed alone: it is long enough."""
        return self._own.full_gradient(y)

    def evaluate(self, y: Tensor) -> tuple[dict[str, float], int]:
        """Return the metrics of the client's own objective."""
        return self._own.evaluate(y)


def in_groups(
    trainings: Mapping[int, Callable[[], T]], config: RunConfig, problem: object
) -> dict[int, Callable[[], T]]:
    """Return for each client a function that trains its whole group, unless that was done, and gives its own result."""
    stacked, clients = stack(problem, config.batch_size), list(trainings)
    grouped: dict[int, Callable[[], T]] = {}
    for start in range(0, len(clients), config.vectorize):
        group = clients[start : start + config.vectorize]
        outcomes = cache(partial(_together, [trainings[client] for client in group], stacked))
        for place, client in enumerate(group):
            grouped[client] = partial(_outcome, outcomes, place)
    return grouped


def _outcome(outcomes: Callable[[], list[Callable[[], T] | None]], place: int) -> T:
    """Return a client's result, which its group then forgets, or raise its error."""
    made = outcomes()
    outcome, made[place] = made[place], None
    assert outcome is not None
    return outcome()


def _together(tasks: Sequence[Callable[[], T]], stacked: Stacked) -> list[Callable[[], T] | None]:
    """Run tasks side by side; return for each what gives its result, or raises its error."""
    outcomes: list[Callable[[], T] | None] = [None] * len(tasks)

    def run(place: int) -> None:
        try:
            result = tasks[place]()
            outcomes[place] = lambda: result
        except Exception as error:
            outcomes[place] = partial(_raise, error)

    running = [greenlet(run) for _ in tasks]
    resume = [partial(one.switch, place) for place, one in enumerate(running)]
    while running:
        asked = [go_on() for go_on in resume]
        waiting = [(one, what) for one, what in zip(running, asked, strict=True) if not one.dead]
        running = [one for one, _ in waiting]
        try:
            answers = serve(stacked, [what for _, what in waiting])
            resume = [partial(one.switch, a) for one, a in zip(running, answers, strict=True)]
        except Exception as error:  # a client's code failed; raised in all of them
            resume = [partial(one.throw, error) for one in running]
    return outcomes


def _raise(error: Exception) -> Any:
    raise error
