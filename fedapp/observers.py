"""Observers of a run: what is called at its start, with its nodes, after each round and at its end.

The loop in rounds.py knows nothing else of what a run shows or saves. To add an observer, derive a class from
`Observer`, override what it needs, and put it in the list that server_app.py makes. Observers are called in the order
of that list.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from numpy.typing import NDArray

from fedapp.errors import DivergedError
from fedapp.hosting import Hosting
from fedapp.rounds_file import Record
from fedapp.run_directory import RunDirectory


class Observer:
    """Does nothing; a subclass overrides what it needs."""

    def on_start(self) -> None:
        """Start: called once, before the nodes are asked."""

    def on_nodes(self, hosting: Hosting, deployed: bool) -> None:
        """Take the nodes that are there: called once, before the first round, also if they are too few for it."""

    def on_round(self, record: Record) -> None:
        """Take a record: called after each round, with its figures."""

    def on_end(self, error: BaseException | None) -> None:
        """Finish: called once, however the run ends; `error` is what ended it early.

        It is called even if `on_start`, or another observer, failed.
        """


@contextmanager
def ending(observers: Sequence[Observer]) -> Iterator[None]:
    """Call `on_end` of all observers when the block ends; one that raises does not keep the others from it."""
    with ExitStack() as stack:
        for observer in reversed(observers):
            stack.push(_end_of(observer))
        yield


def _end_of(observer: Observer) -> Callable[..., None]:
    def end(_type: object, error: BaseException | None, _trace: object) -> None:
        observer.on_end(error)

    return end


class ResultsWriter(Observer):
    """Writes each round to `rounds.jsonl` and, however the run ends, its model; notes why it ended early."""

    def __init__(
        self, directory: RunDirectory, model: Callable[[], dict[str, NDArray[Any]]]
    ) -> None:
        self._directory, self._model = directory, model

    def on_round(self, record: Record) -> None:
        """Append the round."""
        self._directory.write_round(record)

    def on_end(self, error: BaseException | None) -> None:
        """Write the model of the rounds so far."""
        if isinstance(error, DivergedError):
            self._directory.write_divergence(error)
        self._directory.write_failure(error)
        self._directory.write_model(self._model())
