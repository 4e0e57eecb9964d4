"""Networks of all kinds, for images of 8x8: functions and classes, as a user's own module would have them."""

import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedapp.data.facts import Facts

PIXELS, CLASSES = 64, 10


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(PIXELS, PIXELS), nn.Linear(PIXELS, PIXELS)
        self.second.weight = self.first.weight
        self.out = nn.Linear(PIXELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.second(self.first(images.flatten(1)).relu()).relu())  # type: ignore[no-any-return]


def frozen(facts: Facts) -> nn.Module:
    """Return a network whose first layer is not trained."""
    channels, height, width = facts.shape
    body = nn.Linear(channels * height * width, 12)
    for parameter in body.parameters():
        parameter.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(12, facts.num_classes))


class ManyBuffers(nn.Module):
    """Statistics, whole numbers, truth values, and tables that a state dict leaves out."""

    order: Tensor
    kept: Tensor
    table: Tensor
    turn: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(PIXELS, 8),
            nn.BatchNorm1d(8),
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
        )
        self.out = nn.Linear(8, CLASSES)
        self.register_buffer("order", torch.randperm(8))
        self.register_buffer("kept", torch.arange(8) < 6)
        self.register_buffer("table", torch.randn(8), persistent=False)
        self.register_buffer("none", None)
        self.register_buffer(
            "turn", torch.polar(torch.ones(4), torch.arange(4.0)), persistent=False
        )

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.layers(images)[:, self.order] * self.kept + 0 * self.table
        turned = torch.view_as_complex(hidden.float().reshape(-1, 4, 2)) * self.turn
        return self.out(torch.view_as_real(turned).reshape(-1, 8).to(hidden.dtype))  # type: ignore[no-any-return]


class Assigned(nn.Module):
    """A running mean that is assigned, not changed in place."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(PIXELS, CLASSES)
        self.register_buffer("mean", torch.zeros(PIXELS))

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.flatten(1)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * pixels.mean(0).detach()
        return self.out(pixels - self.mean)  # type: ignore[no-any-return]


class Centre(nn.Module):
    """Subtracts a running mean."""

    mean: Tensor

    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(pixels.mean(0).detach(), alpha=0.1)
        return pixels - self.mean


def shared_buffers() -> nn.Module:
    """Return a network two of whose modules have one buffer."""
    mean = torch.zeros(PIXELS)
    layer = nn.Linear(PIXELS, PIXELS)
    return nn.Sequential(
        nn.Flatten(), Centre(mean), layer, Centre(mean), nn.Linear(PIXELS, CLASSES)
    )


class Masked(nn.Module):
    """Attention over the rows of an image, with a mask of -inf."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(PIXELS, CLASSES)
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

    def forward(self, images: Tensor) -> Tensor:
        rows = images[:, 0]
        seen, _ = self.attention(rows, rows, rows, attn_mask=self.mask, need_weights=False)
        return self.out(seen.flatten(1))  # type: ignore[no-any-return]


class Counting(nn.Module):
    """A network that trains differently with every batch that it has seen."""

    seen: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(PIXELS, CLASSES)
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("steps", torch.tensor(0))
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        self.steps = self.steps + 1
        return self.scale * self.out(images.flatten(1)) / (1 + self.steps / 10)  # type: ignore[no-any-return]


class Fading(nn.Module):
    """Buffers that no state dict has, and that training changes in place, assigns and adds."""

    scale: Tensor
    last: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(PIXELS, CLASSES)
        self.register_buffer("scale", torch.ones(1), persistent=False)
        self.register_buffer("last", None, persistent=False)
        self.register_buffer("wide", torch.ones(1).expand(CLASSES), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.scale.mul_(0.9)
        outputs: Tensor = self.out(images.flatten(1)) * self.scale * self.wide
        if self.last is not None:
            outputs = outputs + self.last
        if hasattr(self, "late"):
            outputs = 0.9 * outputs
        if self.training:
            self.last = outputs.detach().mean(0)
            self.register_buffer("late", torch.ones(1), persistent=False)
        return outputs


def cumulative() -> nn.Module:
    """Return a network whose statistics are means over all batches since the start."""
    norm = nn.BatchNorm1d(PIXELS, momentum=None)
    return nn.Sequential(nn.Flatten(), norm, nn.Linear(PIXELS, CLASSES))


def dropout() -> nn.Module:
    """Return a network that draws random numbers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(PIXELS, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, CLASSES)
    )


class Noisy(nn.Module):
    """A network that draws random numbers in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(PIXELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        pixels = images.flatten(1)
        return self.out(pixels + torch.randn_like(pixels))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Reads an image row by row."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.rnn = kind(8, 6, num_layers=2, batch_first=True, dropout=0.2)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        states, _ = self.rnn(images[:, 0])
        return self.out(states[:, -1])  # type: ignore[no-any-return]


def lstm() -> nn.Module:
    return Recurrent(nn.LSTM)


def gru() -> nn.Module:
    return Recurrent(nn.GRU)


def parametrized() -> nn.Module:
    """Return a network whose weights are computed from others."""
    return nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(PIXELS, CLASSES)))


class Embedded(nn.Module):
    """A network with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(PIXELS, 5, sparse=True)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(self.embedding(images.flatten(1).topk(4).indices).mean(1))  # type: ignore[no-any-return]


def _pretrained() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(12)
        norm = nn.BatchNorm1d(PIXELS)
        norm(torch.randn(5, PIXELS))
        return nn.Sequential(nn.Flatten(), norm, nn.Linear(PIXELS, CLASSES))


PRETRAINED = _pretrained()

# What cannot be trained.


class Lazy(nn.Module):
    """A layer whose size is not known yet."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.LazyLinear(CLASSES)


def whole_numbers() -> nn.Module:
    network = nn.Linear(2, 2)
    network.register_parameter("levels", nn.Parameter(torch.tensor([1, 2]), requires_grad=False))
    return network


def complex_numbers() -> nn.Module:
    return nn.Linear(2, 2, dtype=torch.complex64)


def nothing_trained() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


def nothing() -> None:
    return None


NUMBER = 3


class Reshaping(nn.Module):
    """Assigns to a buffer a tensor of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(PIXELS, CLASSES)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.out(images.flatten(1))
        self.mean = outputs.detach().mean(0)
        return outputs


class Zeroing(nn.Module):
    """Discards the gradients that it is given a place for."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(PIXELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        self.zero_grad(set_to_none=True)
        return self.out(images.flatten(1))  # type: ignore[no-any-return]


def broken() -> nn.Module:
    raise KeyError("my factory")


class BrokenForward(nn.Module):
    """Fails as soon as it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(PIXELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(images)  # type: ignore[no-any-return]


class Versioned(nn.Module):
    """A network whose frozen layer is made differently by another version of its library.

    A file in a node's home stands for that version.
    """

    version = 2 if (Path(os.environ.get("FLWR_HOME", "/")) / "other-version").exists() else 1

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(PIXELS, 12)
        nn.init.normal_(self.body.weight, std=0.1 * self.version)
        self.register_buffer("order", torch.randperm(12))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images.flatten(1)).relu()[:, self.order])  # type: ignore[no-any-return]


def three_classes() -> nn.Module:
    """Return a network with too few outputs for digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def normed() -> nn.Module:
    """Return a network that cannot train on a single sample."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
