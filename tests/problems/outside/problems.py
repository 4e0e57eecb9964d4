"""Problems with several inputs, whole numbers as inputs, and their own losses and metrics; and broken ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp import Problem, RunConfig
from fedapp.problems.problem import Batch, Data


class TwoInputs(nn.Module):
    """A network of words and numbers, which predicts a price."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(20, 4)
        self.out = nn.Sequential(nn.Linear(4 + 3, 6), nn.Dropout(0.2), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, words: Tensor, numbers: Tensor) -> Tensor:
        return self.out(torch.cat([self.words(words), numbers], 1))[:, 0]  # type: ignore[no-any-return]


def samples(client: int, count: int) -> tuple[Any, Any, Tensor]:
    """Draw a client's words, numbers and prices; types are as users have them."""
    rng = np.random.default_rng(client)
    words, numbers = rng.integers(0, 20, (count, 5)), rng.standard_normal((count, 3))
    return words, numbers.tolist(), torch.tensor(numbers.sum(1) + words[:, 0] / 10)


class Prices(Problem):
    """Regression with two inputs."""

    def __init__(self, config: RunConfig) -> None:
        self.seed = config.seed

    def model(self) -> nn.Module:
        return TwoInputs()

    def client_data(self, client: int) -> Data:
        return samples(client, 10 + client)

    def test_data(self) -> Data:
        return samples(99, 30)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.mse_loss(outputs, batch[-1])

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Any]:
        away = (outputs - batch[-1]).double()
        return {"loss": (away**2).sum().item(), "worst": away.abs().max().item()}

    def combine(self, parts: Sequence[dict[str, Any]], count: int) -> dict[str, float]:
        loss = sum(part["loss"] for part in parts) / count
        return {"loss": loss, "rmse": loss**0.5, "worst": max(part["worst"] for part in parts)}


class Words(Problem):
    """Classification of sequences of whole numbers; nothing but what must be written."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(30, 3))

    def client_data(self, client: int) -> Data:
        words = np.random.default_rng(client).integers(0, 20, (12, 5))
        return words, words[:, 0] % 3


class Unequal(Words):
    def client_data(self, client: int) -> Data:
        return np.zeros((4, 5), np.int64), np.zeros(3, np.int64)


class Empty(Words):
    def client_data(self, client: int) -> Data:
        return np.zeros((0, 5), np.int64), np.zeros(0, np.int64)


class BrokenData(Words):
    def client_data(self, client: int) -> Data:
        raise FileNotFoundError("my file")


class BrokenLoss(Prices):
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        raise ValueError("my loss")


class BrokenMetrics(Prices):
    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Any]:
        raise ZeroDivisionError("my metrics")


class BrokenTest(Words):
    def test_data(self) -> Data:
        raise OSError("my test data")


class BrokenModel(Prices):
    def model(self) -> nn.Module:
        raise KeyError("my model")


class BrokenForward(Prices):
    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        raise IndexError("my outputs")


class BrokenMaker(Prices):
    def __init__(self, config: RunConfig) -> None:
        raise AttributeError("my problem")


NUMBER = 3
