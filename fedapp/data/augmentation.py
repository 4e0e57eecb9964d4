"""Augmentation of training images: a pure function of a batch, of what to do, and of a generator.

| kind | what becomes of an image |
|---|---|
| `crop-flip` | padded with 4 black pixels, cropped to its size at random; every second one is mirrored (CIFAR) |
| `resize-crop` | enlarged by 8/7, as from 224 to 256 pixels, then cropped to its size at random (Tiny-ImageNet) |
| `random-resized-crop` | a part with 8 to 100 % of its area and an aspect ratio of 3:4 to 4:3, enlarged to its size (ImageNet) |

All images of a batch are transformed together, and on the CPU: the bits depend on nothing but the generator.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedapp.errors import ConfigError
from fedapp.randomness import Generator

PADDING = 4  # pixels on every side
ENLARGED = 256 / 224
SMALLEST_AREA = 0.08
WIDEST = 4 / 3  # the aspect ratio; the narrowest is the inverse


@dataclass(frozen=True, eq=False)
class Augmented:
    """A mini-batch of samples, and what its augmentation is drawn from: every gradient on it sees the same images."""

    rows: NDArray[np.int64]
    kind: str
    seed: np.random.SeedSequence

    def augment(self, images: Tensor) -> Tensor:
        """Return the samples' images, augmented."""
        return augment(images, self.kind, np.random.default_rng(self.seed))


def augmented_batches(
    batches: Iterator[NDArray[np.int64]], kind: str, rng: Generator
) -> Iterator[Any]:
    """Yield mini-batches of samples with their augmentation; as they are if `kind` is "none".

    `rng` draws the samples. Augmentation draws from descendants of its seed, one for each batch, and leaves it alone.
    """
    if kind == "none":
        return batches
    seed = rng.bit_generator.seed_seq
    assert isinstance(seed, np.random.SeedSequence)
    return (Augmented(rows, kind, seed.spawn(1)[0]) for rows in batches)


def augment(images: Tensor, kind: str, rng: Generator) -> Tensor:
    """Return a batch of images (samples, channels, height, width) after random changes; `kind`: see above."""
    if images.dim() != 4:
        raise ConfigError(
            f'augmentation = "{kind}" is for images (channels, height, width), and a sample has the shape '
            f'{tuple(images.shape[1:])}: set augmentation = "none".'
        )
    return AUGMENTATIONS[kind](images, rng)


def crop_and_flip(images: Tensor, rng: Generator) -> Tensor:
    """Return random windows of the padded images, about half of them mirrored."""
    padded = F.pad(images, (PADDING,) * 4)
    top, left = _corners(padded, images, rng)
    mirrored = torch.from_numpy(rng.random(len(images)) < 0.5)
    return _windows(padded, top, left, images.shape[2:], mirrored)


def resize_and_crop(images: Tensor, rng: Generator) -> Tensor:
    """Return random windows of the enlarged images."""
    size = [round(ENLARGED * side) for side in images.shape[2:]]
    enlarged = F.interpolate(_as_floats(images), size=size, mode="bilinear")
    return _windows(enlarged, *_corners(enlarged, images, rng), images.shape[2:])


def random_resized_crop(images: Tensor, rng: Generator) -> Tensor:
    """Return random parts of the images, each enlarged to the size of the whole."""
    area = rng.uniform(SMALLEST_AREA, 1.0, len(images))
    ratio = np.exp(rng.uniform(-np.log(WIDEST), np.log(WIDEST), len(images)))
    # In units of half an image, of which the centre is 0: how large the part is, and where its centre lies.
    size = np.minimum(np.sqrt(area * np.stack([ratio, 1 / ratio])), 1.0)
    centre = (1 - size) * rng.uniform(-1.0, 1.0, size.shape)
    parts = np.zeros((len(images), 2, 3))
    parts[:, 0, 0], parts[:, 1, 1] = size
    parts[:, :, 2] = centre.T
    pixels = _as_floats(images)
    grid = F.affine_grid(
        torch.from_numpy(parts).to(pixels), list(pixels.shape), align_corners=False
    )
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


AUGMENTATIONS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "crop-flip": crop_and_flip,
    "resize-crop": resize_and_crop,
    "random-resized-crop": random_resized_crop,
}


def _as_floats(images: Tensor) -> Tensor:
    return images if images.is_floating_point() else images.float()


def _corners(larger: Tensor, images: Tensor, rng: Generator) -> tuple[Tensor, Tensor]:
    """Draw the upper left corner of a window for each image."""
    room = [a - b + 1 for a, b in zip(larger.shape[2:], images.shape[2:], strict=True)]
    top, left = (torch.from_numpy(rng.integers(0, places, len(images))) for places in room)
    return top, left


def _windows(
    larger: Tensor, top: Tensor, left: Tensor, size: Any, mirrored: Tensor | None = None
) -> Tensor:
    """Return a window of each image, mirrored from left to right where that is asked for."""
    height, width = size
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    if mirrored is not None:
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    places = rows[:, :, None] * larger.shape[3] + columns[:, None, :]
    places = places.flatten(1)[:, None].expand(-1, larger.shape[1], -1)  # for every channel
    return larger.flatten(2).gather(2, places).view(*larger.shape[:2], height, width)
