"""Weights & Biases: config, figures, model and report of a run.

W&B's own variables apply: WANDB_MODE (`offline` writes to the run's directory only), WANDB_PROJECT, WANDB_ENTITY,
WANDB_BASE_URL.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.trackers.tracker import TrackedRun, Tracker, missing

PROJECT = "fedapp"  # unless WANDB_PROJECT names another


class WandbTracker(Tracker):
    """One W&B run; a run that resumes continues it."""

    name, title = "wandb", "Weights & Biases"

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError:
            raise missing(self.name, "wandb") from None
        self._wandb = wandb
        self._run: Any = None
        self._done = 0

    def start(self, run: TrackedRun) -> str:
        """Start a W&B run in this process, without a part in its output or in other W&B runs of the process."""
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=run.known_as or None,
            resume="allow",
            config=dict(run.config),
            dir=str(run.directory),
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True),
        )
        self._done = run.done if run.known_as else 0
        return str(self._run.id)

    def last_round(self) -> int:
        """Return the last round that W&B holds; offline, that of the process before."""
        return max(int(self._run.step) - 1, self._done)

    def place(self) -> str:
        """Return the run's page; offline, the directory for `wandb sync`."""
        return str(Path(self._run.dir).parent if self._run.offline else self._run.url)

    def log(self, round_: int, figures: Mapping[str, float]) -> None:
        """Log a round as a step."""
        self._run.log(dict(figures), step=round_)

    def finish(self, files: Mapping[str, Path], complete: bool) -> None:
        """Save the files as artifacts, and end the W&B run: finished, or failed."""
        for kind, path in files.items():
            artifact = self._wandb.Artifact(f"{kind}-{self._run.id}", type=kind)
            artifact.add_file(str(path))
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if complete else 1)
