"""Networks that read tokens."""

import pytest
import torch

from fedapp.data.facts import Facts
from fedapp.errors import ConfigError
from fedapp.models.networks import layout_of
from fedapp.models.sequence import Bag, sequence_network

FACTS = Facts((9,), 5, vocabulary=20)


@pytest.mark.parametrize("name", ["gru-8", "transformer-8"])
def test_no_output_depends_on_later_characters(name: str) -> None:
    torch.manual_seed(0)
    network = sequence_network(name, FACTS, per_token=True)
    one = torch.randint(20, (2, 9))
    other = one.clone()
    other[:, 5:] = (one[:, 5:] + 7) % 20
    here, there = network(one), network(other)
    assert here.shape == (2, 9, 5)
    assert torch.equal(here[:, :5], there[:, :5])
    assert not torch.isclose(here[:, 5:], there[:, 5:]).all(-1).any()


@pytest.mark.parametrize("name", ["bag", "gru", "transformer", "gru-12", "bag-6"])
def test_a_text_has_one_output_and_blocks_that_make_up_the_network(name: str) -> None:
    network = sequence_network(name, FACTS, per_token=False)
    tokens = torch.randint(20, (3, 9))
    outputs = network(tokens)
    assert outputs.shape == (3, 5)
    for level in network.levels:
        tokens = level(tokens)
    assert torch.equal(tokens, outputs)
    layout = layout_of(network, name)
    assert layout.has_levels and layout.head == sum(p.numel() for p in network.head.parameters())
    assert sum(layout.layers) + layout.head == layout.size
    assert layout.size == sum(p.numel() for p in network.parameters())


def test_a_bag_does_not_see_padding() -> None:
    network = sequence_network("bag", FACTS, per_token=False)
    words = torch.tensor([[3, 4, 3]])
    padded = torch.tensor([[0, 0, 3, 4, 3]])
    assert torch.allclose(network(words), network(padded))
    mean = network.representation(words)[0]
    (bag,) = network.blocks
    assert isinstance(bag, Bag)
    table = bag.embedding.weight
    assert torch.allclose(mean, (2 * table[3] + table[4]) / 3)


def test_unknown_networks_and_widths_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of 4"):
        sequence_network("transformer-6", FACTS, per_token=True)
    for name in ("gruu", "gru-0", "mlp-3"):
        with pytest.raises(ConfigError, match="does not read tokens"):
            sequence_network(name, FACTS, per_token=True)
