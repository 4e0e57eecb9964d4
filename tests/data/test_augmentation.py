"""Augmentation against literal loops over images, rows and columns."""

from typing import Any

import numpy as np
import pytest
import torch

from fedapp.data.augmentation import AUGMENTATIONS, Augmented, augment
from fedapp.errors import ConfigError
from fedapp.randomness import generator

SHAPE = (40, 3, 9, 12)
PIXELS = np.random.default_rng(5).integers(1, 256, SHAPE, dtype=np.uint8)


def augmented(kind: str, images: Any = PIXELS, round_: int = 1) -> Any:
    return augment(torch.from_numpy(images), kind, generator(0, "test", round_)).numpy()


@pytest.mark.parametrize("kind", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [SHAPE, (1, 1, 8, 8), (5, 3, 32, 32)])
def test_shapes_stay_and_inputs_are_untouched(kind: str, dtype: Any, shape: Any) -> None:
    images = np.random.default_rng(1).integers(0, 256, shape).astype(dtype)
    before = images.copy()
    result = augmented(kind, images)
    assert result.shape == shape
    np.testing.assert_array_equal(images, before)
    assert result.min() >= 0
    assert result.max() <= 255
    assert result.dtype == (dtype if kind == "crop-flip" else np.float32)


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_draws_come_from_the_generator_alone(kind: str) -> None:
    torch.manual_seed(1)
    first = augmented(kind)
    torch.manual_seed(2)
    np.testing.assert_array_equal(first, augmented(kind))
    assert (first != augmented(kind, round_=2)).any()
    assert len({image.tobytes() for image in augmented(kind, np.repeat(PIXELS[:1], 40, 0))}) > 5


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_all_gradients_on_a_batch_see_the_same_images(kind: str) -> None:
    seed = np.random.SeedSequence(3)
    batch = Augmented(np.arange(len(PIXELS)), kind, seed.spawn(1)[0])
    other = Augmented(batch.rows, kind, seed.spawn(1)[0])
    one, two, three = (b.augment(torch.from_numpy(PIXELS)) for b in (batch, batch, other))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)


@pytest.mark.parametrize("shape", [(4, 7), (4, 8, 8), (4, 1, 1, 8, 8)])
def test_only_images_are_augmented(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ConfigError, match=r'a sample has the shape \(.*: set augmentation = "none"'
    ):
        augmented("crop-flip", np.zeros(shape))


def window_of(result: Any, larger: Any) -> list[tuple[int, int, bool]]:
    """Return where an image is a window of a larger one, and whether it is mirrored."""
    _, height, width = result.shape
    return [
        (top, left, mirrored)
        for top in range(larger.shape[1] - height + 1)
        for left in range(larger.shape[2] - width + 1)
        for mirrored in (False, True)
        if np.array_equal(
            result[:, :, ::-1] if mirrored else result,
            larger[:, top : top + height, left : left + width],
        )
    ]


def test_crops_are_windows_of_the_padded_image_half_of_them_mirrored() -> None:
    images = np.random.default_rng(2).integers(1, 256, (600, 3, 9, 12), dtype=np.uint8)
    found = []
    for result, image in zip(augmented("crop-flip", images), images, strict=True):
        padded = np.zeros((3, 17, 20), np.uint8)
        padded[:, 4:13, 4:16] = image
        (place,) = window_of(result, padded)
        found.append(place)
    tops, lefts, mirrored = zip(*found, strict=True)
    assert set(tops) == set(lefts) == set(range(9))
    for offsets in (tops, lefts):  # 600/9 = 67 each; four standard deviations are 31
        assert min(np.bincount(offsets)) > 35
        assert max(np.bincount(offsets)) < 98
    assert 250 < sum(mirrored) < 350  # four standard deviations


def enlarged(image: Any, size: tuple[int, int]) -> Any:
    """Bilinear interpolation of an image, point by point."""
    result = np.zeros((len(image), *size))
    for row in range(size[0]):
        for column in range(size[1]):
            y = (row + 0.5) * image.shape[1] / size[0] - 0.5
            x = (column + 0.5) * image.shape[2] / size[1] - 0.5
            result[:, row, column] = at(image, y, x)
    return result


def at(image: Any, y: float, x: float) -> Any:
    """Return the colour at a point between pixels; beyond the border, that of the border."""
    y, x = (float(np.clip(v, 0, n - 1)) for v, n in zip((y, x), image.shape[1:], strict=True))
    top, left = int(y), int(x)
    below, right = min(top + 1, image.shape[1] - 1), min(left + 1, image.shape[2] - 1)
    upper = image[:, top, left] * (1 - (x - left)) + image[:, top, right] * (x - left)
    lower = image[:, below, left] * (1 - (x - left)) + image[:, below, right] * (x - left)
    return upper * (1 - (y - top)) + lower * (y - top)


def test_resize_crop_is_a_window_of_the_enlarged_image() -> None:
    """9 and 12 pixels become 10 and 14: two places by three."""
    places = set()
    for result, image in zip(augmented("resize-crop"), PIXELS.astype(float), strict=True):
        larger = enlarged(image, (10, 14))
        fits = [
            (top, left)
            for top in range(2)
            for left in range(3)
            if np.allclose(result, larger[:, top : top + 9, left : left + 12], atol=0.01)
        ]
        assert len(fits) == 1
        places.add(fits[0])
    assert len(places) == 6


def test_random_resized_crops_are_enlarged_parts_of_the_image() -> None:
    """With a colour that says where it is from, every result shows its own part."""
    y, x = np.meshgrid(np.arange(32.0), np.arange(32.0), indexing="ij")
    images = np.repeat(np.stack([y, x, y * 0])[None], 300, 0).astype(np.float32)
    areas, ratios = [], []
    for result in augmented("random-resized-crop", images):
        inner = result[:, 14:18, 14:18]  # away from the border, where colours end
        steps = inner[0, 1, 0] - inner[0, 0, 0], inner[1, 0, 1] - inner[1, 0, 0]
        areas.append(steps[0] * steps[1])
        ratios.append(steps[1] / steps[0])
        for row in range(32):
            for column in (0, 9, 31):
                source = (
                    inner[0, 0, 0] + (row - 14) * steps[0],
                    inner[1, 0, 0] + (column - 14) * steps[1],
                )
                assert min(source) > -0.51
                assert max(source) < 31.51
                expected = at(images[0], *map(float, source))
                np.testing.assert_allclose(result[:, row, column], expected, atol=0.01)
    assert 0.08 - 1e-3 < min(areas) < 0.15
    assert 0.85 < max(areas) < 1 + 1e-3
    assert 0.75 - 1e-3 < min(ratios) < 0.8
    assert 1.25 < max(ratios) < 4 / 3 + 1e-3
