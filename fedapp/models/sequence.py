"""Networks that read tokens: a bag of words, a GRU, and a small causal transformer.

Each is blocks and a head. `per_token` tells a network that answers at every token, for predicting the next one, from one
that answers once, for a whole text. Token 0 of a text stands for no word, and comes before the words.
"""

import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.data.facts import Facts
from fedapp.errors import ConfigError
from fedapp.models.networks import Network
from fedapp.names import did_you_mean

EMBEDDING = 32  # the GRU's
LAYERS, HEADS = 2, 4  # the transformer's


class Bag(nn.Module):
    """The mean of the embeddings of a text's words."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return one vector for each text; zeros for one without words."""
        return F.embedding_bag(tokens, self.embedding.weight, mode="mean", padding_idx=0)


class Recurrent(nn.Module):
    """A GRU over embeddings: its states, or its last state."""

    def __init__(self, inputs: int, width: int, per_token: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, width, batch_first=True)
        self.per_token = per_token

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, length, width), or (n, width)."""
        states: Tensor = self.gru(inputs)[0]
        return states if self.per_token else states[:, -1]


class Places(nn.Module):
    """Embeddings of tokens and of their places."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (n, length, width)."""
        return self.tokens(tokens) + self.places[: tokens.shape[1]]  # type: ignore[no-any-return]


class Attention(nn.Module):
    """A transformer layer with normalisation first; no place sees a later one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, length, width)."""
        n, length, width = inputs.shape
        mixed = self.mixed(self.norm1(inputs)).view(n, length, 3, HEADS, width // HEADS)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.out(seen.transpose(1, 2).reshape(n, length, width))
        outputs: Tensor = inputs + self.back(F.gelu(self.wide(self.norm2(inputs))))
        return outputs


class Last(nn.Module):
    """The last place of a sequence."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, width)."""
        return inputs[:, -1]


def bag(facts: Facts, width: int, per_token: bool) -> Network:
    """Build a bag of words; the order of the words does not matter."""
    if per_token:
        raise ConfigError(
            'model = "bag" does not know the order of characters: choose gru or transformer.'
        )
    return Network([Bag(facts.vocabulary, width)], _head(facts, width), whole_levels=True)


def gru(facts: Facts, width: int, per_token: bool) -> Network:
    """Build an embedding and a GRU."""
    padding = None if per_token else 0
    embedding = nn.Embedding(facts.vocabulary, EMBEDDING, padding_idx=padding)
    blocks = [embedding, Recurrent(EMBEDDING, width, per_token)]
    return Network(blocks, _head(facts, width), whole_levels=True)


def transformer(facts: Facts, width: int, per_token: bool) -> Network:
    """Build a causal transformer; a text is judged by what its last word has seen."""
    if width % HEADS:
        raise ConfigError(f"A transformer's width {width} should be a multiple of {HEADS}.")
    layers: list[nn.Module] = [Attention(width) for _ in range(LAYERS)]
    last = [nn.LayerNorm(width)] if per_token else [nn.LayerNorm(width), Last()]
    layers[-1] = nn.Sequential(layers[-1], *last)
    first = Places(facts.vocabulary, facts.shape[0], width)
    return Network([first, *layers], _head(facts, width), whole_levels=True)


def _head(facts: Facts, width: int) -> nn.Linear:
    return nn.Linear(width, facts.num_classes)


# The networks by name, with their usual widths; "gru-64" sets another.
SEQUENCES: dict[str, tuple[Callable[[Facts, int, bool], Network], int]] = {
    "bag": (bag, 64),
    "gru": (gru, 128),
    "transformer": (transformer, 64),
}


def sequence_network(name: str, facts: Facts, per_token: bool) -> Network:
    """Build a network for tokens by name, such as gru or gru-64."""
    match = re.fullmatch(r"([a-z]+)(?:-([1-9]\d{0,4}))?", name)
    if match is None or match[1] not in SEQUENCES:
        near = did_you_mean(name, SEQUENCES)
        raise ConfigError(
            f"model = {name!r} does not read tokens{near}: choose {', '.join(SEQUENCES)}, or one with its width, such as "
            "gru-64."
        )
    build, width = SEQUENCES[match[1]]
    return build(facts, int(match[2] or width), per_token)
