"""What a tracker must do."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedapp.errors import ConfigError
from fedapp.tables import Value


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker must know of a run to start."""

    directory: Path
    config: Mapping[str, Value]
    done: int = 0  # the rounds before this process
    known_as: str = ""  # the tracker's id for this run, if it was tracked before

    @property
    def name(self) -> str:
        """The run's name."""
        return self.directory.name


class Tracker(ABC):
    """One tracker and one run; the constructor raises ConfigError if the tracker is not installed."""

    name: ClassVar[str]  # in the config
    title: ClassVar[str]  # in messages

    @abstractmethod
    def start(self, run: TrackedRun) -> str:
        """Start, or continue the run that is `known_as`; return the tracker's id for the run."""

    def last_round(self) -> int:
        """Return the last round that the tracker holds already."""
        return 0

    @abstractmethod
    def place(self) -> str:
        """Return where the user finds the run: a URL, or a directory."""

    @abstractmethod
    def log(self, round_: int, figures: Mapping[str, float]) -> None:
        """Log the figures of a round, all of them finite."""

    @abstractmethod
    def finish(self, files: Mapping[str, Path], complete: bool) -> None:
        """Save files, by what they are ("model", "report"), and end."""


def missing(tracker: str, package: str) -> ConfigError:
    """Return what to say where a tracker's package is not installed."""
    return ConfigError(
        f"tracker = \"{tracker}\" needs the package {package}: pip install 'fedapp[{tracker}]' "
        f"(in a clone: pip install -e '.[{tracker}]'), or take it out of the config."
    )
