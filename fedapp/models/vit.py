"""ViT-Base with patches of 16x16, torchvision's, as a sequence of blocks and a head."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer, ViT_B_16_Weights, vit_b_16
from torchvision.models.vision_transformer import interpolate_embeddings

from fedapp.errors import ConfigError, MissingWeightsError
from fedapp.models.networks import Network, Shape

PATCH = 16


class Patches(nn.Module):
    """Resize images, cut them into patches, and add the class token and positions."""

    def __init__(self, vit: VisionTransformer, channels: int) -> None:
        super().__init__()
        self.side, self.grey = vit.image_size, channels == 1
        self.conv_proj, self.class_token = vit.conv_proj, vit.class_token
        self.pos_embedding = vit.encoder.pos_embedding

    def forward(self, images: Tensor) -> Tensor:
        """Return a sequence of tokens."""
        images = images.expand(-1, 3, -1, -1) if self.grey else images
        if images.shape[-1] != self.side or images.shape[-2] != self.side:
            images = F.interpolate(images, (self.side, self.side), mode="bilinear")
        tokens = self.conv_proj(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(tokens), -1, -1)
        placed: Tensor = torch.cat([first, tokens], dim=1) + self.pos_embedding
        return placed


class ClassToken(nn.Module):
    """The last block, its normalisation, and the class token alone."""

    def __init__(self, block: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.block, self.norm = block, norm

    def forward(self, tokens: Tensor) -> Tensor:
        """Return what the classifier sees."""
        first: Tensor = self.norm(self.block(tokens))[:, 0]
        return first


def vit_base(shape: Shape, num_classes: int, image_size: int, weights: str) -> Network:
    """ViT-Base for images of any size, which it resizes; from random or from given weights."""
    if image_size % PATCH:
        raise ConfigError(f"vit.image-size = {image_size} must be a multiple of {PATCH}.")
    vit = vit_b_16(weights=None, image_size=image_size)
    if weights:
        _load(vit, _hub_weights() if weights == "imagenet" else file_weights(weights), weights)
    *blocks, last = vit.encoder.layers
    levels = [Patches(vit, shape[0]), *blocks, ClassToken(last, vit.encoder.ln)]
    head = nn.Linear(768, num_classes)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return Network(levels, head, whole_levels=True)


def _load(vit: VisionTransformer, state: dict[str, Any], where: str) -> None:
    """Load all weights except the classifier's, whose classes differ; positions are interpolated."""
    try:
        state = dict(interpolate_embeddings(vit.image_size, PATCH, state))
        body = {name: value for name, value in state.items() if not name.startswith("heads.")}
        missing, unexpected = vit.load_state_dict(body, strict=False)
        wrong = [*unexpected, *(name for name in missing if not name.startswith("heads."))]
        if wrong:
            raise ValueError(f"its parameters are not those of vit_b_16 (see {wrong[0]})")
    except (KeyError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"vit.weights = {where!r} cannot be used: {reason}.") from None


def _hub_weights() -> dict[str, Any]:
    try:
        return dict(ViT_B_16_Weights.IMAGENET1K_V1.get_state_dict(progress=False))
    except Exception as error:  # several libraries raise their own types
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise MissingWeightsError(
            f'vit.weights = "imagenet" cannot be fetched ({reason}): give the path of a file with '
            "torchvision's vit_b_16 weights, or leave it empty to start from random ones."
        ) from None


def file_weights(where: str) -> dict[str, Any]:
    """Read the weights of torchvision's vit_b_16 from a file, as safetensors or without pickled code."""
    path = Path(where).expanduser()
    if not path.is_file():
        raise MissingWeightsError(
            f"vit.weights = '{path}' is not there: give a file with vit_b_16 weights."
        )
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise ConfigError(f"vit.weights = '{path}' cannot be read: {reason}") from None
