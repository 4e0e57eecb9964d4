"""What clients and server ask of every problem, whether it is a network or not; torch is not imported for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from fedapp.config import LocalWork
from fedapp.data import Facts
from fedapp.models.layout import Layout
from fedapp.randomness import Generator

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedapp.problems.problem import Batch, Loss

Vector = NDArray[Any]


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

    def evaluate(self, y: Tensor) -> tuple[dict[str, float], int]:
        """Return the metrics at y on the client's held-out samples, and their number; 0 if it has none."""


class NetworkObjective(Objective, Protocol):
    """An f_i that is a network's loss, for methods that look into the network."""

    def loss_gradient(
        self, y: Tensor, batch: Any, loss: Loss | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a loss at y, the problem's own unless another is given, and its gradient."""

    def criterion(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the problem's loss of a network's outputs."""

    def representation(self, y: Tensor, batch: Any) -> Tensor:
        """Return the input of the classifier, with the network at y; the buffers do not change."""

    def frozen(self, x: Tensor) -> nn.Module:
        """Return a second network, at x, whose parameters have no gradients."""


class Start(Protocol):
    """Where the server begins."""

    @property
    def layout(self) -> Layout:
        """How the vector x is divided into tensors and layers."""

    @property
    def facts(self) -> Facts | None:
        """What nodes with their own data must know about inputs and targets; None if they cannot have any."""

    def initial(self) -> tuple[Vector, Vector]:
        """Return the common starting point x, and the buffers: what is not trained."""


class FederatedProblem(Start, Protocol):
    """All of it: every client's objective, the start, and the evaluation."""

    def objective(self, client: int) -> Objective:
        """Return f_i."""

    def evaluate(self, x: Vector, buffers: Vector) -> dict[str, float]:
        """Return the metrics of a model for `rounds.jsonl`; empty if the server has no test data."""

    def named_tensors(self, x: Vector, buffers: Vector) -> dict[str, NDArray[Any]]:
        """Return x and the buffers as named tensors, for `model.safetensors`."""
