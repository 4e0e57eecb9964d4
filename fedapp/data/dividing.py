"""What a partition is, and what it must know about a data set."""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.errors import ConfigError


class Divisible(Protocol):
    """What partitions need to know about a data set."""

    @property
    def key(self) -> str:
        """What names its content."""

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """The class of each training sample, or what stands for it."""

    @property
    def num_classes(self) -> int:
        """The number of classes."""

    @property
    def writers(self) -> NDArray[Any] | None:
        """Who wrote each training sample."""


class Partition(ABC):
    """Who holds which samples."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of clients."""

    @abstractmethod
    def __getitem__(self, client: int) -> NDArray[np.int64]:
        """Return the indices of a client's samples; none if the client is not one of the partition's."""

    @abstractmethod
    def weights(self, samples: int) -> NDArray[np.float64]:
        """Return what each of all samples counts in the mean over clients of the means over their samples."""

    def class_counts(self, labels: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
        """Return how many samples of each class each client holds (clients x classes)."""
        return np.stack(
            [np.bincount(labels[self[c]], minlength=num_classes) for c in range(len(self))]
        )


def demand_classes(config: RunConfig, there: int) -> None:
    """Raise ConfigError if a client is to hold more classes than there are."""
    if config.classes_per_client > there:
        raise ConfigError(
            f"classes-per-client = {config.classes_per_client} is more than the "
            f"{there} classes of {config.dataset}: choose at most that many."
        )


def writers_of(data: Divisible, config: RunConfig) -> NDArray[Any]:
    """Return who wrote each training sample, or say that nobody knows."""
    if data.writers is None:
        raise ConfigError(
            f'partition = "writer" needs to know who wrote each sample, and '
            f"{config.dataset} does not say: use femnist, or set group to the column that says."
        )
    return data.writers
