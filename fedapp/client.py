"""What every algorithm's client shares: mini-batches, gradients, state, and the wire's order."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor

from fedapp.config import RunConfig
from fedapp.models.problem import Objective
from fedapp.randomness import generator

State = dict[str, Tensor]


class Client(NumPyClient):
    """One logical client in one round.

    An algorithm names what it receives and sends, and implements `update`. Every vector has the
    model's size; the model's buffers travel beside them, as the last array both ways.
    """

    receives: ClassVar[tuple[str, ...]] = ("x",)
    sends: ClassVar[tuple[str, ...]] = ("u",)

    def __init__(self, objective: Objective, config: RunConfig, client: int, state: State) -> None:
        self.objective = objective
        self.config = config
        self.options = config.options
        self.client = client
        self.state = state  # what `update` leaves here is there in the client's next round
        self.steps = 0  # tau, as it turned out
        self.losses: list[Tensor] = []

    @abstractmethod
    def update(self, *received: Tensor) -> dict[str, Tensor]:
        """Train from the vectors of `receives`; return those of `sends`."""

    def batches(self) -> Iterator[Any]:
        """Yield this round's mini-batches: one for each of the tau local steps."""
        rng = generator(self.config.seed, "batches", self.round, self.client)
        for batch in self.objective.batches(self.config.local_work, rng):
            self.steps += 1
            yield batch

    def gradient(self, y: Tensor, batch: Any) -> Tensor:
        """Return g(y), weight decay included; the next call overwrites it."""
        loss, g = self.objective.loss_gradient(y, batch)
        self.losses.append(loss)
        return g.add_(y, alpha=self.config.weight_decay) if self.config.weight_decay else g

    def fit(
        self, parameters: Sequence[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Run one round: arrays in the order of `receives`, then of `sends`, buffers last."""
        self.round = int(config["round"])
        self.lr = self.config.lr_at(self.round)
        device = self.objective.buffers.device
        *received, buffers = (torch.tensor(array, device=device) for array in parameters)
        self.objective.buffers.copy_(buffers)
        sent = self.update(*received)
        # The buffers are the model's own, which the next client overwrites.
        vectors = [*(sent[name] for name in self.sends), self.objective.buffers.clone()]
        metrics = {
            "steps": self.steps,
            "train-loss": float(torch.stack(self.losses).mean()) if self.losses else 0.0,
        }
        return [_array(v) for v in vectors], self.objective.num_examples, metrics


def _array(vector: Tensor) -> NDArray[np.float32]:
    return vector.detach().cpu().numpy()
