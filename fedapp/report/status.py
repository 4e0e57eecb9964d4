"""How far a run is: complete, running, interrupted, failed or diverged. Decided here for every table and picture."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import shorten
from typing import Any

from filelock import FileLock, Timeout

from fedapp.manifest import DIVERGED, LOCK
from fedapp.names import one_line
from fedapp.progress import failure_of, has_ended

LONGEST_REASON = 60  # characters, for legends of pictures


class State(StrEnum):
    """What can be said of a run from its directory."""

    COMPLETE = "complete"  # all rounds are there, or its target is reached
    RUNNING = "running"  # a process is at work on it
    INTERRUPTED = "interrupted"  # rounds are missing, and nobody is at work on it
    FAILED = "failed"  # an error ended it
    DIVERGED = "diverged"  # its model was no longer finite


@dataclass(frozen=True)
class Status:
    """A run's state, how many of its rounds are done, and the error that ended it, if one did."""

    state: State = State.COMPLETE
    done: int = 0
    planned: int = 0
    reason: str = ""

    @property
    def complete(self) -> bool:
        """Whether the run has all the rounds that its config asks for."""
        return self.state is State.COMPLETE

    @property
    def text(self) -> str:
        """The state in words, for example "interrupted after 3 of 50 rounds"."""
        if self.complete:
            return str(self.state)
        between = ", " if self.state is State.RUNNING else " after "
        text = f"{self.state}{between}{self.done} of {self.planned} rounds"
        reason = one_line(shorten(self.reason.rstrip("."), LONGEST_REASON, placeholder=" ..."))
        return f"{text}: {reason}" if reason else text


def status_of(
    directory: Path, config: Mapping[str, Any], rounds: Sequence[dict[str, Any]]
) -> Status:
    """Return the status of the run in a directory, from its config and rounds."""
    planned = int(config["num-rounds"])
    done = int(rounds[-1]["round"]) if rounds else 0
    if has_ended(rounds, planned, float(config["target-accuracy"])):
        return Status(State.COMPLETE, done, planned)
    if (directory / DIVERGED).is_file():
        return Status(State.DIVERGED, done, planned)
    if reason := failure_of(directory):
        return Status(State.FAILED, done, planned, reason)
    state = State.RUNNING if is_held(directory) else State.INTERRUPTED
    return Status(state, done, planned)


def is_held(directory: Path) -> bool:
    """Tell whether a process is at work on a run's directory, which it has locked."""
    if sys.platform == "win32":
        try:
            with FileLock(directory / LOCK, timeout=0):
                return False
        except Timeout:
            return True
    import fcntl

    try:
        lock = os.open(directory / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        # Shared, so that two readers do not take each other for the run.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(lock)
    return False
