"""What every algorithm's client shares: mini-batches, gradients, state, and the wire's order."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor

from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.privacy import private_update
from fedapp.problems.problem import Loss, NetworkObjective, Objective
from fedapp.randomness import generator

State = dict[str, Tensor]


class Client(NumPyClient):
    """One logical client in one round.

    An algorithm names what it sends, and implements `update`. Every vector has the model's size;
    what is sent is compressed on its way. The model's buffers travel beside the vectors, as the
    last array both ways.
    """

    sends: ClassVar[tuple[str, ...]] = ("u",)

    def __init__(
        self,
        objective: Objective,
        config: RunConfig,
        client: int,
        state: State,
        compressor: Compressor | None = None,
    ) -> None:
        self.objective = objective
        self.config = config
        self.options = config.options
        self.client = client
        self.compressor = compressor  # None: vectors are sent as they are
        self.state = state  # what `update` leaves here is there in the client's next round
        self.steps = 0  # tau, as it turned out
        self.losses: list[Tensor] = []
        self._payloads: dict[str, bytes] = {}

    @abstractmethod
    def update(self, *args: Any, **received: Any) -> dict[str, Tensor]:
        """Train from the vectors that the server sent, by their names; return those of `sends`."""

    def batches(self, steps: int = 0) -> Iterator[Any]:
        """Yield this round's mini-batches: one for each of the tau local steps, or of `steps`."""
        rng = generator(self.config.seed, "batches", self.round, self.client)
        work = self.config.local_work
        work = replace(work, steps=steps, epochs=0) if steps else work
        for batch in self.objective.batches(work, rng):
            self.steps += 1
            yield batch

    def remembered(self, *names: str) -> list[Tensor]:
        """Return what the client must have kept; without it, it cannot go on."""
        if missing := [name for name in names if name not in self.state]:
            raise RuntimeError(f"the client's state is lost ({', '.join(missing)})")
        return [self.state[name] for name in names]

    def gradient(self, y: Tensor, batch: Any) -> Tensor:
        """Return g(y), weight decay included; the next call overwrites it."""
        loss, g = self.objective.loss_gradient(y, batch)
        self.losses.append(loss)
        return self._decayed(g, y)

    def gradient_aside(self, y: Tensor, batch: Any) -> Tensor:
        """Return g(y) at a point that is not trained: neither loss nor statistics count."""
        statistics = self.objective.buffers.clone()
        g = self._decayed(self.objective.loss_gradient(y, batch)[1], y)
        self.objective.buffers.copy_(statistics)
        return g

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return G_i(y), weight decay included."""
        return self._decayed(self.objective.full_gradient(y), y)

    def _decayed(self, g: Tensor, y: Tensor) -> Tensor:
        return g.add_(y, alpha=self.config.weight_decay) if self.config.weight_decay else g

    def compressed(self, name: str, vector: Tensor, feedback: bool = True) -> Tensor:
        """Compress what is to be sent as `name`; return it as the server will see it: Q(vector).

        Without `feedback`, error feedback leaves the vector alone: where a client keeps what the
        server has heard, and sends the difference to it, what was lost is in the next difference.
        """
        if self.config.dp.local:  # before anything else, so that all that follows sees only this
            numbers = vector.detach().cpu().numpy()
            private = private_update(numbers, self.config, self.round, self.client)
            vector = torch.from_numpy(private).to(vector)
        if self.compressor is None:
            return vector
        error, feedback = f"error.{name}", feedback and self.config.error_feedback
        if feedback and error in self.state:
            vector = vector + self.state[error]
        rng = generator(self.config.seed, f"compress {name}", self.round, self.client)
        self._payloads[name], seen = self.compressor.transmit(vector.detach().cpu().numpy(), rng)
        sent = torch.from_numpy(seen).to(vector)
        if feedback:
            self.state[error] = vector - sent
        return sent

    def fit(
        self, parameters: Sequence[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Run one round: arrays in the order of config["names"], then of `sends`; buffers last."""
        self.round = int(config["round"])
        self.lr = self.config.lr_at(self.round)
        device = self.objective.buffers.device
        *received, buffers = (torch.tensor(array, device=device) for array in parameters)
        self.objective.buffers.copy_(buffers)
        sent = self.update(**dict(zip(config["names"].split(), received, strict=True)))
        arrays = [self._array(name, sent[name]) for name in self.sends]
        # The buffers are the model's own, which the next client overwrites.
        arrays.append(self.objective.buffers.clone().cpu().numpy())
        if self.config.dp.local:  # neither how much data it has nor how well it fits them
            return arrays, self.config.batch_size or 1, {"steps": 0, "train-loss": 0.0}
        metrics = {
            "steps": self.steps,
            "train-loss": float(torch.stack(self.losses).mean()) if self.losses else 0.0,
        }
        return arrays, self.objective.num_examples, metrics

    def _array(self, name: str, vector: Tensor) -> NDArray[Any]:
        if name not in self._payloads:
            vector = self.compressed(name, vector)
        if self.compressor is None:
            return vector.detach().cpu().numpy()
        return np.frombuffer(self._payloads[name], np.uint8)


class NetworkClient(Client):
    """A client whose loss looks into the network."""

    objective: NetworkObjective

    def gradient(self, y: Tensor, batch: Any, loss: Loss | None = None) -> Tensor:
        """Return the gradient of `loss`; without one, of the cross-entropy."""
        value, g = self.objective.loss_gradient(y, batch, loss)
        self.losses.append(value)
        return self._decayed(g, y)
