"""The networks. Each is a sequence of blocks, whose output is the representation, and a head."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedapp.errors import ConfigError
from fedapp.models.layout import Layout
from fedapp.names import did_you_mean
from fedapp.problems.kinds import MODELS

Shape = tuple[int, int, int]


class Network(nn.Module):
    """Blocks with their own parameters, then a linear classifier."""

    def __init__(
        self, blocks: list[nn.Module], head: nn.Linear, whole_levels: bool = False
    ) -> None:
        super().__init__()
        self.whole_levels = whole_levels  # a block is one layer, which is not cut
        self.blocks = nn.Sequential(*blocks)
        self.head = head

    def representation(self, inputs: Tensor) -> Tensor:
        """Return what the classifier sees."""
        return self.blocks(inputs)  # type: ignore[no-any-return]

    @property
    def levels(self) -> list[nn.Module]:
        """The blocks and the classifier, in order."""
        return [*self.blocks, self.head]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        return self.head(self.representation(inputs))  # type: ignore[no-any-return]


class PadTo(nn.Module):
    """Pad images with zeros to a square of the given side."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        """Pad all sides as evenly as possible."""
        rows, columns = self.side - images.shape[-2], self.side - images.shape[-1]
        if rows == columns == 0:
            return images
        return F.pad(images, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


def mlp(shape: Shape, num_classes: int, widths: list[int]) -> Network:
    """Build fully connected ReLU layers and a classifier; without widths, softmax regression."""
    blocks: list[nn.Module] = []
    inputs = shape[0] * shape[1] * shape[2]
    for width in widths:
        first = [] if blocks else [nn.Flatten()]
        blocks.append(nn.Sequential(*first, nn.Linear(inputs, width), nn.ReLU()))
        inputs = width
    return Network(blocks or [nn.Flatten()], nn.Linear(inputs, num_classes))


def lenet5(shape: Shape, num_classes: int) -> Network:
    """LeNet-5 with 64 channels (FedBCGD, table 1); smaller images are padded to 32x32."""
    channels, height, width = shape
    if max(height, width) > 32:
        raise ConfigError(f'model = "lenet5" takes images of up to 32x32, not {height}x{width}.')
    return Network(
        [
            nn.Sequential(PadTo(32), nn.Conv2d(channels, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            nn.Sequential(nn.Linear(1600, 384), nn.ReLU()),
            nn.Sequential(nn.Linear(384, 192), nn.ReLU()),
        ],
        nn.Linear(192, num_classes),
    )


class Residual(nn.Module):
    """Two 3x3 convolutions around which the input is carried, subsampled and zero-padded."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = make_norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = make_norm(norm, outputs)
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the convolutions' output to the input."""
        outputs = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(inputs)))))
        return F.relu(outputs + self.carried(inputs))

    def carried(self, inputs: Tensor) -> Tensor:
        """Subsample the input, and pad its channels with zeros."""
        carried = inputs[:, :, :: self.stride, :: self.stride]
        if not self.added:
            return carried
        return F.pad(carried, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2))


def make_norm(norm: str, channels: int) -> nn.Module:
    """Return a normalisation over batches, or over groups of 8 channels."""
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(channels // 8, channels)


def _stem(channels: int, outputs: int, norm: str) -> nn.Module:
    convolution = nn.Conv2d(channels, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, make_norm(norm, outputs), nn.ReLU())


def resnet20(shape: Shape, num_classes: int, norm: str) -> Network:
    """ResNet-20 for small images (He et al., section 4.2): 3 x 3 blocks of 16, 32, 64 channels."""
    blocks: list[nn.Module] = [_stem(shape[0], 16, norm)]
    inputs = 16
    for outputs in (16, 32, 64):
        for _ in range(3):
            blocks.append(Residual(inputs, outputs, 1 if outputs == inputs else 2, norm))
            inputs = outputs
    blocks[-1] = nn.Sequential(blocks[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(blocks, nn.Linear(64, num_classes))


# The channels of VGG's 3x3 convolutions, "pool" between them, and the widths of its linear layers.
VGG: dict[str, tuple[str, tuple[int, ...]]] = {
    "vgg11": ("64 pool 128 pool 256 256 pool 512 512 pool 512 512", (1024, 1024)),
    "vgg19": (
        "64 64 pool 128 128 pool 256 256 256 256 pool 512 512 512 512 pool 512 512 512 512",
        (512, 256),
    ),
}


def vgg(name: str, shape: Shape, num_classes: int) -> Network:
    """VGG-11 or VGG-19 for small images (FedBCGD, tables 2 and 4), without normalisation.

    Images of 28x28 are padded to 32x32, which four poolings bring to 2x2; larger ones are averaged to that.
    """
    channels, height, width = shape
    if min(height, width) < 16:
        raise ConfigError(f'model = "{name}" takes images from 16x16, not {height}x{width}.')
    convolutions, widths = VGG[name]
    layers: list[list[nn.Module]] = []
    for word in convolutions.split():
        if word == "pool":
            layers[-1].append(nn.MaxPool2d(2))
        else:
            layers.append([nn.Conv2d(channels, int(word), 3, padding=1), nn.ReLU()])
            channels = int(word)
    if max(height, width) <= 32:
        layers[0].insert(0, PadTo(32))
    layers[-1] += [nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    inputs = 2048
    for outputs in widths:
        layers.append([nn.Linear(inputs, outputs), nn.ReLU()])
        inputs = outputs
    network = Network([nn.Sequential(*some) for some in layers], nn.Linear(inputs, num_classes))
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):  # so that signals keep their size
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            nn.init.zeros_(module.bias)  # type: ignore[arg-type]
    return network


class Shortcut(Residual):
    """Two 3x3 convolutions, around which the input is carried through a 1x1 one where its shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__(inputs, outputs, stride, norm)
        if stride != 1 or inputs != outputs:
            self.carry: nn.Module = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), make_norm(norm, outputs)
            )
        else:
            self.carry = nn.Identity()

    def carried(self, inputs: Tensor) -> Tensor:
        """Project the input."""
        return self.carry(inputs)  # type: ignore[no-any-return]


def resnet18(shape: Shape, num_classes: int, norm: str) -> Network:
    """ResNet-18 with a stem for small images: a 3x3 convolution, and no pooling before the blocks."""
    blocks: list[nn.Module] = [_stem(shape[0], 64, norm)]
    inputs = 64
    for outputs in (64, 128, 256, 512):
        for first in (True, False):
            stride = 2 if first and outputs > 64 else 1
            blocks.append(Shortcut(inputs, outputs, stride, norm))
            inputs = outputs
    blocks[-1] = nn.Sequential(blocks[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Network(blocks, nn.Linear(512, num_classes))


def layout_of(network: nn.Module, model: str = "") -> Layout:
    """Return how a network's trained parameters are laid out.

    A layer begins with a convolution or a linear map, and normalisation goes with what it follows.
    """
    if not isinstance(network, Network):
        return _layout_of_any(network, model)
    head = _trained_size(network.head)
    if network.whole_levels:
        layers = [_trained_size(block) for block in network.blocks]
    else:
        layers = []
        for module in network.blocks.modules():
            own = _trained_size(module, recurse=False)
            if isinstance(module, nn.Conv2d | nn.Linear) or not layers:
                layers.append(0)
            layers[-1] += own
    trained = [p for p in network.parameters() if p.requires_grad]
    tensors = tuple(p.numel() for p in trained)
    whole = all(p.requires_grad for p in network.parameters())  # tables of blocks are for that
    kept = tuple(size for size in layers if size)
    name, variances = model if whole else "", _variances(network)
    return Layout(tensors, kept, head, name, variances, True, _columns(trained))


def _columns(parameters: Sequence[nn.Parameter]) -> tuple[int, ...]:
    """Return how long a row of each tensor is, as a matrix with a row for every output; a vector is one row."""
    return tuple(p.numel() // (len(p) if p.ndim > 1 else 1) for p in parameters)


def _trained_size(module: nn.Module, recurse: bool = True) -> int:
    return sum(p.numel() for p in module.parameters(recurse) if p.requires_grad)


def head_of(network: nn.Module) -> nn.Module | None:
    """Return a network's classifier: its `head`, or its last layer if that is linear; None if it has neither."""
    if isinstance(head := getattr(network, "head", None), nn.Module):
        return head
    owners = [m for m in network.modules() if next(m.parameters(recurse=False), None) is not None]
    return owners[-1] if owners and isinstance(owners[-1], nn.Linear) else None


def _layout_of_any(network: nn.Module, model: str) -> Layout:
    """Return the layout of any module: its layers are the modules that own matrices.

    The last one is the head if it is linear, not the only one, and trained.
    """
    owners = {id(p): m for m in network.modules() for p in m.parameters(recurse=False)}
    trained = [p for p in network.parameters() if p.requires_grad]
    layers: list[int] = []
    last: nn.Module | None = None
    for parameter in trained:
        owner = owners[id(parameter)]
        begins = parameter.ndim > 1 and owner is not last
        if begins or not layers:
            layers.append(0)
            last = owner
        layers[-1] += parameter.numel()
    classifier = head_of(network)
    inside = classifier is not None and any(last is module for module in classifier.modules())
    is_head = inside and isinstance(last, nn.Linear)
    head = layers.pop() if is_head and len(layers) > 1 else 0
    tensors = tuple(p.numel() for p in trained)
    levels, columns = _has_levels(network), _columns(trained)
    return Layout(tensors, tuple(layers), head, model, _variances(network), levels, columns)


def _has_levels(network: nn.Module) -> bool:
    """Tell whether methods that look into a network find there what they need."""
    return all(hasattr(network, name) for name in ("levels", "representation", "head"))


def statistics(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Return the buffers that travel, in order, as their owners' dict and name.

    Counters such as BatchNorm's num_batches_tracked are not statistics and are not sent; nor are tables that a state
    dict leaves out, or that hold infinite numbers, such as masks. A buffer that two modules share is sent once.
    """
    found: dict[int, tuple[dict[str, Any], str]] = {}
    for owner in module.modules():
        for name, buffer in owner._buffers.items():
            if buffer is None or name in owner._non_persistent_buffers_set:
                continue
            if buffer.is_floating_point() and (buffer.is_meta or bool(buffer.isfinite().all())):
                found.setdefault(id(buffer), (owner._buffers, name))
    return list(found.values())


def _variances(network: nn.Module) -> tuple[tuple[int, int], ...]:
    """Return where in the vector of all statistics the variances are."""
    places, start = [], 0
    for buffers, name in statistics(network):
        end = start + buffers[name].numel()
        if name == "running_var":
            places.append((start, end))
        start = end
    return tuple(places)


@dataclass(frozen=True)
class Options:
    """What the networks are built from; each uses only some of it."""

    shape: Shape
    num_classes: int
    norm: str
    image_size: int
    weights: str


def _vit_base(options: Options) -> Network:
    from fedapp.models.vit import vit_base

    return vit_base(options.shape, options.num_classes, options.image_size, options.weights)


# The networks by name; `make_network` also builds "mlp-<width>-<width>-...".
NETWORKS: dict[str, Callable[[Options], Network]] = {
    "logreg": lambda o: mlp(o.shape, o.num_classes, []),
    "lenet5": lambda o: lenet5(o.shape, o.num_classes),
    "vgg11": lambda o: vgg("vgg11", o.shape, o.num_classes),
    "vgg19": lambda o: vgg("vgg19", o.shape, o.num_classes),
    "resnet18": lambda o: resnet18(o.shape, o.num_classes, o.norm),
    "resnet20": lambda o: resnet20(o.shape, o.num_classes, o.norm),
    "vit-base": _vit_base,
}


def make_network(
    name: str,
    shape: Shape,
    num_classes: int,
    norm: str,
    seed: int,
    image_size: int = 224,
    weights: str = "",
) -> Network:
    """Build a network by name; its initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in NETWORKS:
            return NETWORKS[name](Options(shape, num_classes, norm, image_size, weights))
        if re.fullmatch(r"mlp(-[1-9]\d{0,5})+", name):
            return mlp(shape, num_classes, [int(width) for width in name.split("-")[1:]])
    near = did_you_mean(name, [*NETWORKS, "mlp-200", *MODELS])
    raise ConfigError(
        f"model = {name!r} is not known{near}: choose {', '.join(NETWORKS)}, mlp with its hidden widths, "
        "such as mlp-200-200, or for two classes "
        f"{' or '.join(MODELS)}."
    )
