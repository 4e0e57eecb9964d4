"""The simulated clock of FedPAQ's section 5.

A round takes r * bits / bandwidth + max over its clients of (shift + Exp) per sample it trains on.
Only the ratio of sending a model to training on a sample matters, so that mean is one second. The
bits are those of the bytes really sent, or those that the papers count. Training counts for the clients
whose updates arrived, and only their local steps: full gradients, where a method needs some, are free.
"""

from collections.abc import Mapping

from fedapp.config import RunConfig
from fedapp.randomness import generator

BITS_PER_NUMBER = 32
SHIFT = EXPONENTIAL = 0.5


def training_seconds(config: RunConfig, round_: int, samples: Mapping[int, int]) -> float:
    """Return how long the slowest client takes over the samples that it trains on."""

    def seconds(client: int, count: int) -> float:
        draw = generator(config.seed, "time", round_, client).exponential(EXPONENTIAL)
        return count * (SHIFT + draw)

    return max((seconds(c, n) for c, n in samples.items()), default=0.0)


def sending_seconds(config: RunConfig, bits: float, num_parameters: int) -> float:
    """Return how long the uploads take, one after the other, as over one shared channel."""
    bandwidth = BITS_PER_NUMBER * num_parameters / max(config.time.comm_comp_ratio, 1e-12)
    return bits / bandwidth


def human_bytes(count: float) -> str:
    """Write a number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.0f} TB"
