"""The way from a client to the server: noise, what error feedback remembers, compression.

Error feedback: Karimireddy et al., Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML 2019. EF21:
see `feedback.py`.
"""

import numpy as np
import torch
from torch import Tensor

from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.feedback import EF21
from fedapp.models.layout import Piece
from fedapp.privacy import NodePrivacy
from fedapp.randomness import generator
from fedapp.wire import Arrays


class Uplink:
    """What one client sends in one round."""

    def __init__(
        self,
        config: RunConfig,
        round_: int,
        client: int,
        state: dict[str, Tensor],  # error feedback keeps here what compression lost
        compressor: Compressor | None,  # None: vectors are sent as they are
        privacy: NodePrivacy,
    ) -> None:
        self.config, self.round, self.client = config, round_, client
        self.state, self.compressor, self.privacy = state, compressor, privacy
        self._errors = self._squares = 0.0  # sums over what was compressed
        self.arrays: Arrays = {}  # what has been sent, by name: vectors, or payloads as bytes
        self.decoded: Arrays = {}  # what the server will decode of payloads

    def send(self, name: str, vector: Tensor, feedback: bool = True) -> Tensor:
        """Send a vector as `name`; return it as the server will see it: Q(vector).

        Without `feedback`, error feedback leaves the vector alone: a client that keeps what the server has received,
        and sends the difference to it, finds in its next difference what was lost.
        """
        # Noise comes first, so that everything behind it sees only what is private.
        vector = self.privacy.privatized(vector, self.round, self.client)
        if self.compressor is None:
            self.arrays[name] = vector.detach().cpu().numpy()
            return vector
        rule = self.config.error_feedback if feedback else False
        if rule == EF21:
            known = self.state.get(f"known.{name}", torch.zeros_like(vector))
            self.state[f"known.{name}"] = known = known + self._compress(name, vector - known)
            return known
        if rule and f"error.{name}" in self.state:
            vector = vector + self.state[f"error.{name}"]
        sent = self._compress(name, vector)
        if rule:
            self.state[f"error.{name}"] = vector - sent
        return sent

    def _compress(self, name: str, vector: Tensor) -> Tensor:
        """Compress a vector for the server; return what the server will decode."""
        assert self.compressor
        rng = generator(self.config.seed, f"compress {name}", self.round, self.client)
        numbers = vector.detach().cpu().numpy()
        payload, seen = self.compressor.transmit(numbers, rng)
        exact = numbers.astype(np.float64)
        self._squares += float(np.einsum("i,i->", exact, exact))
        exact -= seen
        self._errors += float(np.einsum("i,i->", exact, exact))
        self.arrays[name] = np.frombuffer(payload, np.uint8)
        decoded = torch.from_numpy(seen).to(vector)
        self.decoded[name] = decoded.cpu().numpy()
        return decoded

    @property
    def nmse(self) -> float | None:
        """Return |Q(v) - v|^2 / |v|^2 over all that was sent; None if nothing was compressed."""
        return self._errors / self._squares if self._squares else None

    def for_pieces(self, pieces: tuple[Piece, ...]) -> "Uplink":
        """Return an uplink for vectors that are made of other tensors."""
        compressor = self.compressor.for_pieces(pieces) if self.compressor else None
        return Uplink(self.config, self.round, self.client, self.state, compressor, self.privacy)
