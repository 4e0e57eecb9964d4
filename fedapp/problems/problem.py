"""The interface of a problem that a user brings: a network, its clients' samples, a loss and metrics.

Only `model` and `client_data` must be written; the rest is classification by cross-entropy unless it is overridden.
`fedapp/problems/network.py` trains what is described here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from fedapp.data import Facts

Batch = tuple[Tensor, ...]  # the rows of a few samples, one tensor for each array of `Data`
Loss = Callable[[Any, Batch], Tensor]  # takes a network, and a batch of inputs and targets
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Some rows of tensors that clients share."""

    arrays: tuple[Tensor, ...]
    rows: Indices


# Arrays or tensors of equal length, one row for each sample, the last of them the targets; or rows of such.
Data = Sequence[Any] | Rows


class Problem(ABC):
    """What a federation trains a network for.

    The config names a class or a function that takes the run's config (or nothing) and returns a Problem.
    """

    # What nodes with local data must know; None: they cannot have any.
    facts: "Facts | None" = None

    @abstractmethod
    def model(self) -> nn.Module:
        """Return a new network; torch's generator is seeded by the run's seed, so all nodes get the same."""

    @abstractmethod
    def client_data(self, client: int) -> Data:
        """Return a client's samples: its inputs, one array or several, and its targets."""

    def client_test_data(self, client: int) -> Data | None:
        """Return the samples that a client is evaluated on; None: `test-share` of its others, which it then does not train on."""
        return None

    def test_data(self) -> Data | None:
        """Return the server's test samples; None if it has none."""
        return None

    def validation_data(self) -> Rows | None:
        """Return what `valid-share` holds out of a data set that clients divide; None: it is held out of each client's."""
        return None

    def prepare(self, batch: Batch) -> Batch:
        """Turn the rows of some samples into what the network sees; numbers have the run's type already."""
        return batch

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the network's outputs for a batch: by default all arrays but the last are its inputs."""
        outputs: Tensor = model(*batch[:-1])
        return outputs

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of outputs on a batch."""
        return F.cross_entropy(outputs, batch[-1])

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Any]:
        """Return each metric on a batch; by default loss and accuracy, summed over its samples."""
        loss = F.cross_entropy(outputs, batch[-1], reduction="sum")
        correct = (outputs.argmax(1) == batch[-1]).sum()
        return {"loss": loss.item(), "accuracy": int(correct)}

    def combine(self, parts: Sequence[dict[str, Any]], count: int) -> dict[str, float]:
        """Return the metrics of `count` samples from those of their batches; by default sums become means."""
        return {name: sum(part[name] for part in parts) / count for name in parts[0]}
