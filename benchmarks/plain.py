"""The workloads in plain PyTorch: the model and the local steps as anybody would write them.

This module needs nothing but torch and NumPy, so that a peer's environment can use it.
"""

import torch
from torch import Tensor, nn

from benchmarks.workloads import BATCH, CLASSES, LR, SAMPLES, STEPS, Workload, client_data


def plain_model(workload: Workload) -> nn.Module:
    """Return the model of a workload."""
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


def client_tensors(workload: Workload, client: int) -> tuple[Tensor, Tensor]:
    """Return a client's images and labels; nothing is copied."""
    images, labels = client_data(workload, client)
    return torch.from_numpy(images), torch.from_numpy(labels)


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Train one client: the local steps, and nothing else."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    order = torch.randperm(SAMPLES)
    for step in range(STEPS):
        batch = order[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
