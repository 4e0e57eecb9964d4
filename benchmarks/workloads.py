"""What the speed benchmarks train: plain PyTorch models on random images.

This module needs nothing but torch, so that a peer's environment can use it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

SAMPLES, BATCH, STEPS, CLASSES, LR = 500, 50, 10, 10, 0.05
DISTINCT = 20  # clients' data that a process holds; more only costs memory


@dataclass(frozen=True)
class Workload:
    """A model, the shape of its images, and how many clients there are and are sampled."""

    name: str
    model: str
    shape: tuple[int, int, int]
    num_clients: int
    cohort: int


MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mlp, 10 of 100", "mlp-200-200", MNIST, 100, 10),
        Workload("mlp, 100 of 1000", "mlp-200-200", MNIST, 1000, 100),
        Workload("lenet5, 10 of 100", "lenet5", CIFAR, 100, 10),
        Workload("logreg, 100 of 1000", "logreg", MNIST, 1000, 100),
    )
}


def plain_model(workload: Workload) -> nn.Module:
    """Return the model as anybody would write it."""
    match workload.model:
        case "mlp-200-200":
            return nn.Sequential(
                nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(),
                nn.Linear(200, CLASSES),
            )  # fmt: skip
        case "logreg":
            return nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))
        case _:
            return nn.Sequential(
                nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(),
                nn.Linear(192, CLASSES),
            )  # fmt: skip


def client_data(workload: Workload, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's images and labels: some of a few, in memory."""
    generator = torch.Generator().manual_seed(client % DISTINCT)
    images = torch.randn(SAMPLES, *workload.shape, generator=generator)
    return images, torch.randint(CLASSES, (SAMPLES,), generator=generator)


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Train one client: the local steps, and nothing else."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    order = torch.randperm(SAMPLES)
    for step in range(STEPS):
        batch = order[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
