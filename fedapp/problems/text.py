"""The classification of texts, which are read as hashed words."""

from torch import nn

from fedapp.config import RunConfig
from fedapp.data import Shard, texts
from fedapp.models.sequence import sequence_network
from fedapp.problems.arrays import ArrayProblem
from fedapp.problems.measures import ClassMeasures
from fedapp.problems.problem import Batch


class Text(ArrayProblem):
    """Texts as rows of tokens, and their classes."""

    decoder = texts.WORDS

    def __init__(self, config: RunConfig, shard: Shard | None = None) -> None:
        super().__init__(config, shard)
        self.measures = ClassMeasures(config.metrics)

    def network(self, name: str) -> nn.Module:
        """Return a network that answers once for each text."""
        return sequence_network(name, self.facts, per_token=False)

    def prepare(self, batch: Batch) -> Batch:
        """Return tokens and classes in the type that embeddings and losses take."""
        return batch[0].long(), batch[1].long()
