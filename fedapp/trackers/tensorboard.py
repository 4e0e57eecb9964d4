"""TensorBoard: a run's figures in `tensorboard/` of its directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.trackers.tracker import TrackedRun, Tracker, missing


class TensorBoardTracker(Tracker):
    """Writes event files; what a resumed run repeats replaces what was there."""

    name, title = "tensorboard", "TensorBoard"

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise missing(self.name, "tensorboard") from None
        self._writer_type: Any = SummaryWriter
        self._writer: Any = None
        self._done = 0

    def start(self, run: TrackedRun) -> str:
        """Open a file of events."""
        directory = run.directory / "tensorboard"
        self._done = run.done if directory.is_dir() else 0
        # The config is shown as text; rounds after `done` that an earlier process logged are dropped.
        self._writer = self._writer_type(
            str(directory), purge_step=run.done + 1 if run.done else None
        )
        rows = "\n".join(f"| {key} | {value} |" for key, value in run.config.items())
        self._writer.add_text("config", f"| key | value |\n|---|---|\n{rows}", 0)
        return directory.name

    def last_round(self) -> int:
        """Return the last round of the process before."""
        return self._done

    def place(self) -> str:
        """Return the directory for `tensorboard --logdir`."""
        return str(self._writer.log_dir)

    def log(self, round_: int, figures: Mapping[str, float]) -> None:
        """Add a round; it can be seen at once."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def finish(self, files: Mapping[str, Path], complete: bool) -> None:
        """Close the file; TensorBoard keeps no files, and the run's directory has them."""
        self._writer.close()
