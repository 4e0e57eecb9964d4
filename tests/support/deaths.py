"""Processes that kill themselves at a chosen moment of a run."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from fedapp import files
from fedapp.checkpoint import Checkpoints
from fedapp.strategy import FederatedStrategy


def killed(work: Callable[[], object]) -> None:
    """Do some work in a process of its own, which must end by SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_round(number: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Die when the clients have trained, and kept what they remember, but before the server uses it."""

    def arrange(patch: pytest.MonkeyPatch) -> None:
        aggregate = FederatedStrategy.aggregate_train

        def fatal(self: Any, round_: int, replies: Any) -> Any:
            if round_ == number:
                die()
            return aggregate(self, round_, replies)

        patch.setattr(FederatedStrategy, "aggregate_train", fatal)

    return arrange


def before_checkpoint(number: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Die when a round is written down, but its checkpoint is not."""

    def arrange(patch: pytest.MonkeyPatch) -> None:
        write = Checkpoints.write

        def fatal(self: Any, round_: int, *rest: Any) -> None:
            if round_ == number:
                die()
            write(self, round_, *rest)

        patch.setattr(Checkpoints, "write", fatal)

    return arrange


def within_checkpoint(number: int) -> Callable[[pytest.MonkeyPatch], None]:
    """Die when half of a checkpoint is on disk."""

    def arrange(patch: pytest.MonkeyPatch) -> None:
        save = safetensors.numpy.save_file

        def fatal(arrays: Any, path: Path, metadata: dict[str, str]) -> None:
            save(arrays, path, metadata)
            if metadata.get("round") == str(number):
                with path.open("rb+") as file:
                    file.truncate(path.stat().st_size // 2)
                die()

        patch.setattr(files, "save_file", fatal)

    return arrange
