"""Partial training: which parameters of a network are trained, by their names or with LoRA."""

import re

from torch import nn

from fedapp.errors import ConfigError
from fedapp.models.keys import LoraKeys
from fedapp.models.lora import add_lora
from fedapp.models.networks import head_of


def select(network: nn.Module, trainable: str, lora: LoraKeys) -> None:
    """Freeze what is not to be trained; with LoRA, add its factors, which torch's generator draws.

    What the network itself has frozen stays frozen. With LoRA, the head is trained beside the factors, or instead of it
    the parameters that `trainable` chooses.
    """
    if not trainable and not lora.rank:
        return
    head = head_of(network)
    named = [
        pair for pair in network.named_parameters(remove_duplicate=False) if pair[1].requires_grad
    ]
    if trainable:
        chosen = {id(p) for name, p in named if re.search(trainable, name)}
    else:
        chosen = {id(p) for p in head.parameters() if p.requires_grad} if head else set()
    if not chosen and not lora.rank:
        more = ", ..." if len(named) > 5 else ""
        raise ConfigError(
            f"trainable = {trainable!r} is not found in the name of any parameter that can be trained: choose among "
            f"{', '.join(name for name, _ in named[:5])}{more}."
        )
    for parameter in network.parameters():
        parameter.requires_grad_(id(parameter) in chosen)
    if lora.rank:
        add_lora(network, lora, head)
