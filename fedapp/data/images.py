"""From an encoded image to pixels: every mode of Pillow is decoded correctly, or refused by name.

| mode | pixels |
|---|---|
| 1, L | grey, 0 to 255 |
| LA, La | grey, drawn on white where it is transparent |
| P, RGB, RGBX, CMYK, YCbCr, HSV, LAB | colour, by Pillow's conversion to RGB |
| PA, RGBA, RGBa, and a colour marked as transparent | colour, drawn on white where it is transparent |
| I;16, I;16B, I;16L, I;16N, and I from 0 to 65535 | grey of 16 bits: value / 257 as float32, so white is 255 and no level is lost |
| I outside 0 to 65535, F, any other | refused: nothing says which value is white |
"""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GREY = ("1", "L", "LA", "La")
COLOUR = ("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")
DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I")
DEEPEST = 65535  # white in 16 bits
PER_LEVEL = DEEPEST / 255  # 257

# What was read in a way that its owner should know of; each follows "12 of 40 images".
TRANSPARENT = "have transparent pixels, which are drawn on white"
SHALLOW = "have 16-bit colours, of which 8 bits are used: reduce them yourself to choose which"
FRAMES = "hold several frames, of which the first is used"

Pixels = NDArray[np.uint8] | NDArray[np.float32]


def decode_image(encoded: bytes) -> tuple[Pixels, frozenset[str]]:
    """Return an image's pixels (channels, height, width), and remarks on how they were read."""
    with Image.open(io.BytesIO(encoded)) as image:
        remarks = set()
        if getattr(image, "n_frames", 1) > 1:
            remarks.add(FRAMES)
        if image.mode not in DEEP and any(";16" in str(tile.args) for tile in image.tile):
            remarks.add(SHALLOW)  # Pillow keeps the high byte
        pixels, transparent = pixels_of(image)
        if transparent:
            remarks.add(TRANSPARENT)
        return pixels, frozenset(remarks)


def pixels_of(image: Image.Image) -> tuple[Pixels, bool]:
    """Return an image's pixels, and whether some of them are transparent; refuse a mode without a defined white."""
    if image.mode in DEEP:
        return _deep_pixels(image)
    if image.mode not in (*GREY, *COLOUR):
        raise ValueError(
            f"it has Pillow's mode {image.mode}: save it as 8-bit grey (L), colour (RGB) or 16-bit grey (I;16)"
        )
    target = "L" if image.mode in GREY else "RGB"
    transparent = False
    if image.has_transparency_data:
        image, transparent = _on_white(image)
    values = np.asarray(image if image.mode == target else image.convert(target))
    return (values[None] if values.ndim == 2 else values.transpose(2, 0, 1)), transparent


def _on_white(image: Image.Image) -> tuple[Image.Image, bool]:
    """Draw an image on white; say whether any of the white shows."""
    if image.mode in ("La", "RGBa"):  # these convert to their plain kind only
        image = image.convert(image.mode.upper())
    layers = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    least, _ = layers.getchannel("A").getextrema()
    return Image.alpha_composite(white, layers).convert("RGB"), bool(least < 255)  # type: ignore[operator]


def _deep_pixels(image: Image.Image) -> tuple[Pixels, bool]:
    values: NDArray[Any] = np.asarray(image).astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > DEEPEST:
        raise ValueError(
            f"it has Pillow's mode {image.mode} with values from {low} to {high}, and 16 bits hold 0 to {DEEPEST}: "
            "save it as 8-bit (L) or 16-bit grey (I;16)"
        )
    key = image.info.get("transparency")
    transparent = isinstance(key, int) and bool((values == key).any())
    if transparent:
        values = np.where(values == key, DEEPEST, values)
    return (values / PER_LEVEL).astype(np.float32)[None], transparent


def suspicions(images: Pixels) -> list[str]:
    """Say what makes images useless to train on: all of them alike, or half of them of a single value."""
    count = len(images)
    if count < 2:
        return []
    first = images[0]
    if all(np.array_equal(image, first) for image in images):
        return [f"all {count} images are identical: nothing can be learnt from them"]
    flat = images.reshape(count, -1)
    constant = int((flat.min(1) == flat.max(1)).sum())
    if constant == count:
        return [f"all {count} images are constant, each of one value: check how they were saved"]
    if 2 * constant >= count:
        return [f"{constant} of {count} images are constant, each of one value: check them"]
    return []
