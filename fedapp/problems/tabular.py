"""Tables of numbers: predict a number (regression) or a class; features are standardised by the training set's scale."""

import re

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.config import RunConfig
from fedapp.data import Shard, tabular
from fedapp.errors import ConfigError
from fedapp.models.networks import make_network
from fedapp.problems.arrays import ArrayProblem
from fedapp.problems.measures import ClassMeasures, NumberMeasures
from fedapp.problems.problem import Batch
from fedapp.randomness import torch_seed


class Table(ArrayProblem):
    """A table whose target is a class."""

    decoder = tabular.CLASSES

    def __init__(self, config: RunConfig, shard: Shard | None = None) -> None:
        super().__init__(config, shard)
        dtype: torch.dtype = getattr(torch, config.dtype)
        device = torch.device(config.device)
        self._mean = torch.tensor(self.facts.mean, dtype=torch.float64)
        self._scale = 1 / torch.tensor(self.facts.std, dtype=torch.float64)
        self._mean, self._scale = (t.to(device, dtype) for t in (self._mean, self._scale))
        self.measures: ClassMeasures | NumberMeasures = ClassMeasures(config.metrics)

    def network(self, name: str) -> nn.Module:
        """Return softmax regression, linear regression or a perceptron."""
        if not re.fullmatch(r"logreg|mlp(-\d+)+", name):
            raise ConfigError(
                f"model = {name!r} does not read tables: choose logreg, mlp with its hidden widths, such as mlp-64-64, or "
                "package.module:name."
            )
        shape = (self.facts.shape[0], 1, 1)
        seed = torch_seed(self.config.seed, "model")
        return make_network(name, shape, self.facts.num_classes or 1, self.config.norm, seed)

    def prepare(self, batch: Batch) -> Batch:
        """Return standardised features."""
        features, targets = batch
        return (features - self._mean) * self._scale, targets


class RegressionTable(Table):
    """A table whose target is a number: the loss is the mean squared error in standard deviations of the target."""

    decoder = tabular.REGRESSION

    def __init__(self, config: RunConfig, shard: Shard | None = None) -> None:
        super().__init__(config, shard)
        self.measures = NumberMeasures(config.metrics, self.facts.target_std)

    def prepare(self, batch: Batch) -> Batch:
        """Return standardised features and targets."""
        features, targets = super().prepare(batch)
        return features, (targets - self.facts.target_mean) / self.facts.target_std

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return one number for each sample."""
        return _one_each(model(batch[0]), len(batch[0]))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared error."""
        return F.mse_loss(_one_each(outputs, len(batch[0])), batch[-1])


def _one_each(outputs: Tensor, count: int) -> Tensor:
    """Return outputs (n, 1) or (n,) as (n,)."""
    if outputs.shape not in ((count,), (count, 1)):
        raise ConfigError(
            f"The network gives outputs of the shape {tuple(outputs.shape)} for {count} samples, and a number is "
            f"predicted: give ({count}, 1)."
        )
    return outputs.view(count)
