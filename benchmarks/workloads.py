"""What the speed benchmarks train: models by name, and random images.

This module needs nothing but NumPy, so that every peer's environment can use it.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

SAMPLES, BATCH, STEPS, CLASSES, LR = 500, 50, 10, 10, 0.05
DISTINCT = 20  # clients whose data a process holds; more only costs memory
WARM_UP = 2  # first rounds that do not count


@dataclass(frozen=True)
class Workload:
    """A model, the shape of its images, how many clients there are and are sampled, and rounds."""

    name: str
    model: str
    shape: tuple[int, int, int]
    num_clients: int
    cohort: int
    rounds: int  # measured in a block


MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("mlp, 10 of 100", "mlp-200-200", MNIST, 100, 10, 40),
        Workload("mlp, 100 of 1000", "mlp-200-200", MNIST, 1000, 100, 8),
        Workload("logreg, 100 of 1000", "logreg", MNIST, 1000, 100, 16),
        Workload("lenet5, 10 of 100", "lenet5", CIFAR, 100, 10, 3),
        Workload("logreg, 2 of 4", "logreg", MNIST, 4, 2, 2),  # for tests
    )
}
QUICK = ("mlp, 10 of 100",)
MEASURED = tuple(WORKLOADS)[:-1]


@lru_cache(maxsize=DISTINCT)
def _images(shape: tuple[int, ...], seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((SAMPLES, *shape), np.float32)
    return images, rng.integers(0, CLASSES, SAMPLES)


def client_data(workload: Workload, client: int) -> tuple[Any, Any]:
    """Return a client's images and labels as arrays in memory; every 20th client has the same."""
    return _images(workload.shape, client % DISTINCT)
