"""A run's figures for TensorBoard, in `tensorboard/` of the run's directory."""

import math
from pathlib import Path
from typing import Any

from fedapp.errors import ConfigError
from fedapp.figures import FIGURES
from fedapp.observers import Observer
from fedapp.rounds_file import Record


def writer_type() -> Any:
    """Return TensorBoard's writer, or say how to get it."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "tensorboard = true needs the package: pip install 'fedapp[tensorboard]' "
            "(in a clone: pip install -e '.[tensorboard]'), or set it to false."
        ) from None
    return SummaryWriter


class TensorBoardLog(Observer):
    """Writes the figures of each round, and what was sent up to it.

    `round/<figure>` is a figure as in `rounds.jsonl`; one that a round does not have, or that is
    not finite, is left out. `total/uplink_bytes` and `total/downlink_bytes` add up over the rounds.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "tensorboard"
        self._writer_type = writer_type()
        self._writer: Any = None
        self._totals = dict.fromkeys(
            (f.name for f in FIGURES.values() if f.unit == "bytes" and f.summed), 0
        )

    def on_start(self) -> None:
        """Open the file."""
        self._writer = self._writer_type(str(self._directory))

    def on_round(self, record: Record) -> None:
        """Add a round; it can be seen at once."""
        step = record["round"]
        for name, value in record.items():
            if name != "round" and isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(f"round/{name}", value, step)
        for name in self._totals:
            self._totals[name] += record.get(name) or 0
            self._writer.add_scalar(f"total/{name}", self._totals[name], step)
        self._writer.flush()

    def on_end(self, error: BaseException | None) -> None:
        """Close the file."""
        if self._writer:
            self._writer.close()
