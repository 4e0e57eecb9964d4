"""A run's figures for TensorBoard, in `tensorboard/` of the run's directory."""

import math
from pathlib import Path
from typing import Any

from fedapp.errors import ConfigError
from fedapp.figures import FIGURES


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


class TensorBoardLog:
    """The figures of each round, and what was sent up to it.

    `round/<figure>` is a figure as in `rounds.jsonl`; one that a round does not have, or that is
    not finite, is left out. `total/uplink_bytes` and `total/downlink_bytes` add up over the rounds.
    """

    def __init__(self, directory: Path) -> None:
        self._writer = writer_type()(str(directory / "tensorboard"))
        self._totals = dict.fromkeys((f.name for f in FIGURES.values() if f.unit == "bytes"), 0)

    def round(self, record: dict[str, Any]) -> None:
        """Add a round; it can be seen at once."""
        step = record["round"]
        for name, value in record.items():
            if name != "round" and isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(f"round/{name}", value, step)
        for name in self._totals:
            self._totals[name] += record.get(name) or 0
            self._writer.add_scalar(f"total/{name}", self._totals[name], step)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
