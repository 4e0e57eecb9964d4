"""What a round sends and how long it would take: bytes, nominal bits, the simulated clock. Pure functions.

The simulated clock is that of FedPAQ's section 5. A round takes r * bits / bandwidth + max over its clients of (shift + Exp) per sample it trains on.
Only the ratio of sending a model to training on a sample matters, so that mean is one second. The
bits are those of the bytes really sent, or those that the papers count. With `time.downlink` what the server sends
counts too: over the same channel, one client after the other, since each gets its own copy. Training counts for the clients
whose updates arrived, and only their local steps: full gradients, where a method needs some, are free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fedapp import wire
from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.figures import human_bytes
from fedapp.models.layout import Piece
from fedapp.randomness import generator

BITS_PER_NUMBER = 32
SHIFT = EXPONENTIAL = 0.5
Pieces = tuple[Piece, ...]  # that a vector is made of


@dataclass(frozen=True)
class Upload:
    """What a client sends: vectors by name, all made of the same tensors, and the model's buffers."""

    names: tuple[str, ...]
    compressor: Compressor | None
    dtype: np.dtype[Any]
    buffers: tuple[np.dtype[Any], wire.Shape]

    @lru_cache(maxsize=64)  # noqa: B019 - strategies are few, and live as long as their run
    def spec(self, pieces: Pieces) -> wire.Spec:
        """Return what the server expects of vectors that are made of these tensors."""
        count, codec = _count(pieces), self._codec(pieces)
        sent = wire.Compressed(codec, count, self.dtype) if codec else (self.dtype, (count,))
        return {**dict.fromkeys(self.names, sent), "buffers": self.buffers}

    def nominal_bits(self, pieces: Pieces) -> int:
        """Return the bits of the vectors as the papers count them."""
        count, codec = _count(pieces), self._codec(pieces)
        vector = codec.nominal_bits(count) if codec else 8 * self.dtype.itemsize * count
        return len(self.names) * int(vector)

    def in_words(self, cohort: Sequence[Pieces], beside: str) -> str:
        """Say what leaves a node; `cohort` has what each client of a round sends."""
        counts = sorted({_count(pieces) for pieces in cohort})
        numbers = " to ".join(f"{count:,}" for count in (counts[0], counts[-1])[: len(counts)])
        bits = max(self.nominal_bits(pieces) for pieces in cohort) // len(self.names)
        how = f"compressed by {self.compressor.name}, " if self.compressor else ""
        sent = [f"{name} ({numbers} numbers, {how}{human_bytes(bits / 8)})" for name in self.names]
        dtype, (size,) = self.buffers
        if size:
            sent.append(f"buffers ({size:,} numbers, {human_bytes(size * dtype.itemsize)})")
        return f"A client sends {', '.join(sent)}, {beside}; raw data never leave a node."

    def _codec(self, pieces: Pieces) -> Compressor | None:
        return self.compressor.for_pieces(pieces) if self.compressor else None


def _count(pieces: Pieces) -> int:
    return sum(piece.size for piece in pieces)


def round_costs(
    config: RunConfig,
    round_: int,
    updates: Sequence[wire.Update],
    nominal: int,
    sent: int,
    size: int,
    down: int,
) -> dict[str, int | float]:
    """Return nominal bits and simulated seconds of a round.

    `nominal` are the bits of the updates that are used, `sent` the bytes that arrived, `size` the model's, `down` the
    bytes that the server sent.
    """
    work = config.local_work
    trained = {update.client: work.samples(update.num_examples) for update in updates}
    training = training_seconds(config, round_, trained)
    # The papers, which leave the downlink out, have no nominal bits for it.
    down_bits = 8 * down if config.time.downlink else 0
    return {
        "uplink_bits_nominal": nominal,
        "simulated_seconds": training + sending_seconds(config, 8 * sent + down_bits, size),
        "simulated_seconds_nominal": training + sending_seconds(config, nominal + down_bits, size),
    }


def training_seconds(config: RunConfig, round_: int, samples: Mapping[int, int]) -> float:
    """Return how long the slowest client takes over the samples that it trains on."""

    def seconds(client: int, count: int) -> float:
        draw = generator(config.seed, "time", round_, client).exponential(EXPONENTIAL)
        return count * (SHIFT + draw)

    return max((seconds(c, n) for c, n in samples.items()), default=0.0)


def sending_seconds(config: RunConfig, bits: float, num_parameters: int) -> float:
    """Return how long bits of all clients take, one client after the other, as over one shared channel."""
    bandwidth = BITS_PER_NUMBER * num_parameters / max(config.time.comm_comp_ratio, 1e-12)
    return bits / bandwidth
