"""Ctrl-C and SIGTERM: a run on an engine of ours ends after the round under way, with a checkpoint to continue from.

A checkpoint in the middle of a round would hold half of it. So the first signal waits for the round's end, and a second
one ends the run at once, with the rounds so far. Batch systems and containers follow SIGTERM by SIGKILL some
seconds later, so it does not wait for long.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from fedapp.observers import Observer
from fedapp.rounds_file import Record

log = logging.getLogger("flwr")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 5.0  # seconds after SIGTERM


class RunInterruptedError(KeyboardInterrupt):
    """A run was interrupted after a round; `resumable` says whether it can continue from there.

    `preset` is the file that it was read from, if there is one.
    """

    def __init__(
        self,
        directory: Path,
        round_: int,
        planned: int,
        resumable: bool,
        preset: Path | None = None,
    ) -> None:
        super().__init__(directory, round_, planned, resumable, preset)
        self.directory, self.round, self.planned = directory, round_, planned
        self.resumable, self.preset = resumable, preset

    def of(self, preset: Path | None) -> "RunInterruptedError":
        """Return the same, of a run that was read from a file."""
        return RunInterruptedError(self.directory, self.round, self.planned, self.resumable, preset)

    def __str__(self) -> str:
        """Say how far the run is, and whether it can continue."""
        saved = "with a checkpoint" if self.resumable else "without a checkpoint"
        return f"Interrupted after round {self.round} of {self.planned}, {saved}"


class Interruption(Observer):
    """Ends a run after a round if a signal asks for it; `save` writes a checkpoint, or returns False if it cannot."""

    def __init__(self, directory: Path, planned: int, save: Callable[[int], bool]) -> None:
        self._directory, self._planned, self._save = directory, planned, save
        self._requested = False
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def on_start(self) -> None:
        """Take the signals over; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def on_round(self, record: Record) -> None:
        """End the run, if that was asked for."""
        if not self._requested:
            return
        round_ = int(record["round"])
        resumable = round_ < self._planned and self._save(round_)
        raise RunInterruptedError(self._directory, round_, self._planned, resumable)

    def on_end(self, error: BaseException | None) -> None:
        """Give the signals back."""
        if self._timer:
            self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        if number == signal.SIGTERM:
            self._timer = threading.Timer(GRACE, os.kill, (os.getpid(), signal.SIGINT))
            self._timer.daemon = True
            self._timer.start()
        log.warning("Stopping after this round; press Ctrl-C again to stop at once")
