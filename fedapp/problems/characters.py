"""The prediction of the next character, at every place of a window of text."""

from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.data import texts
from fedapp.models.sequence import sequence_network
from fedapp.problems.problem import Batch
from fedapp.problems.text import Text


class Characters(Text):
    """Windows of characters, and the same windows one character later."""

    decoder = texts.CHARACTERS

    def network(self, name: str) -> nn.Module:
        """Return a network that answers at every character."""
        return sequence_network(name, self.facts, per_token=True)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy over all characters."""
        return F.cross_entropy(outputs.flatten(0, 1), batch[-1].flatten())
