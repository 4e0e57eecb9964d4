"""What a federation minimises: the interface that every problem gives to clients and server."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor

from fedapp.config import LocalWork
from fedapp.data import ImageFacts
from fedapp.models.layout import Layout
from fedapp.models.networks import Network
from fedapp.randomness import Generator

Vector = NDArray[Any]
Loss = Callable[[Network, Tensor, Tensor], Tensor]  # of a network, its inputs and their labels


class Objective(Protocol):
    """One client's f_i."""

    num_examples: int
    layout: Layout
    buffers: Tensor  # the model's statistics, which training changes; may be empty

    def batches(self, work: LocalWork, rng: Generator) -> Iterator[Any]:
        """Yield the mini-batches of a round, one for each local step."""

    def loss_gradient(self, y: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the mini-batch loss at y, and its gradient in a buffer that is reused."""

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return G_i(y), the gradient over all of the client's data; the buffers do not change."""


class NetworkObjective(Objective, Protocol):
    """An f_i that is a network's loss, for methods that look into the network."""

    def loss_gradient(
        self, y: Tensor, batch: Any, loss: Loss | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a loss at y, the cross-entropy unless another is given, and its gradient."""

    def representation(self, y: Tensor, batch: Any) -> Tensor:
        """Return the input of the classifier, with the network at y; the buffers do not change."""

    def frozen(self, x: Tensor) -> Network:
        """Return a second network, at x, whose parameters have no gradients."""


class Start(Protocol):
    """Where the server begins."""

    @property
    def layout(self) -> Layout:
        """How the vector x is divided into tensors and layers."""

    @property
    def facts(self) -> ImageFacts | None:
        """What nodes with their own data must know about the images; None if there are none."""

    def initial(self) -> tuple[Vector, Vector]:
        """Return the common starting point x, and the buffers: what is not trained."""


class Problem(Start, Protocol):
    """All of it: every client's objective, the start, and the evaluation."""

    def objective(self, client: int) -> Objective:
        """Return f_i."""

    def evaluate(self, x: Vector, buffers: Vector) -> dict[str, float]:
        """Return the metrics of a model for `rounds.jsonl`."""

    def named_tensors(self, x: Vector, buffers: Vector) -> dict[str, NDArray[Any]]:
        """Return x and the buffers as named tensors, for `model.safetensors`."""
