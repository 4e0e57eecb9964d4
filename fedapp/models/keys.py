"""The config keys of the networks."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from fedapp.tables import Table, full_path

# Those of `networks.py`, for shell completion, which does not wait for torch.
NETWORK_NAMES = ("logreg", "lenet5", "vgg11", "vgg19", "resnet18", "resnet20", "vit-base")


def _regular_expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"should be a regular expression ({error})") from None
    return text


Pattern = Annotated[str, AfterValidator(_regular_expression)]


class LoraKeys(Table):
    """Low-rank adaptation of linear layers."""

    rank: int = Field(
        0,
        ge=0,
        description="LoRA: the network is frozen, and to weights W is added alpha / rank * B A, of which A and B are trained; 0: none",
    )
    alpha: float = Field(16.0, gt=0, description="LoRA: scale of what is added, times rank")
    targets: Pattern = Field(
        "",
        description="LoRA: regular expression, found in the names of the modules that it adapts (linear layers, attention); empty: attention, or without any all linear layers but the head",
    )


class VitKeys(Table):
    """The model vit-base."""

    image_size: int = Field(
        224, ge=16, description='side, a multiple of 16, to which model = "vit-base" resizes images'
    )
    weights: str = Field(
        "",
        description='where it starts: a file (.safetensors or .pth) of torchvision\'s vit_b_16, "imagenet" (fetched), or empty: random',
    )

    @field_validator("weights")
    @classmethod
    def _is_full_path(cls, path: str) -> str:
        return path if path == "imagenet" else str(full_path(path))
