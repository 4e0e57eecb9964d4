"""Images of every mode: read as they are, or refused in a sentence."""

import json
import logging
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedapp.data import Facts, Shard, cache, load_images, load_shard
from fedapp.data.images import pixels_of
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.images import GREY, encoded, load, write

COLOUR = np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=-1)
ALPHA = np.array([[255, 0, 255], [255, 255, 51]], np.uint8)  # opaque, clear, and one fifth
DEEP = np.array([[0, 1, 257], [4095, 65278, 65535]], np.uint16)


def on_white(grey: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Draw GREY's transparent pixels on white, by hand."""
    drawn = grey.astype(float) * ALPHA / 255 + 255 * (1 - ALPHA / 255)
    return np.asarray(drawn.round().astype(np.uint8))


def palette() -> Image.Image:
    """A picture of six colours by number: the colours are COLOUR's, in another order."""
    image = Image.fromarray(np.array([[5, 4, 3], [2, 1, 0]], np.uint8), "P")
    image.putpalette(COLOUR.reshape(-1, 3)[::-1].ravel().tolist())
    return image


CASES: dict[str, tuple[bytes, np.ndarray[Any, Any]]] = {
    "1": (encoded(Image.fromarray(GREY > 127)), np.where(GREY > 127, 255, 0)[None]),
    "L": (encoded(Image.fromarray(GREY)), GREY[None]),
    "LA": (encoded(Image.fromarray(np.dstack([GREY, ALPHA]), "LA")), on_white(GREY)[None]),
    "P": (encoded(palette()), COLOUR.transpose(2, 0, 1)),
    "RGB": (encoded(Image.fromarray(COLOUR)), COLOUR.transpose(2, 0, 1)),
    "RGBA": (
        encoded(Image.fromarray(np.dstack([COLOUR, ALPHA]), "RGBA")),
        np.stack([on_white(COLOUR[..., k]) for k in range(3)]),
    ),
    "RGBX": (
        encoded(Image.fromarray(np.dstack([COLOUR, ALPHA]), "RGBX"), "TIFF"),
        COLOUR.transpose(2, 0, 1),
    ),
    "I;16 PNG": (encoded(Image.fromarray(DEEP)), DEEP[None] / 257),
    "I;16 TIFF": (encoded(Image.fromarray(DEEP), "TIFF"), DEEP[None] / 257),
    "I;16B": (encoded(Image.fromarray(DEEP.astype(">u2")), "TIFF"), DEEP[None] / 257),
    "I": (encoded(Image.fromarray(DEEP.astype(np.int32)), "TIFF"), DEEP[None] / 257),
}


@pytest.mark.parametrize("mode", CASES)
def test_known_pixels(mode: str, tmp_path: Path) -> None:
    file, expected = CASES[mode]
    data = load(tmp_path, [file, file])
    assert data.train_images.dtype == (np.float32 if mode.startswith("I") else np.uint8)
    for image in (*data.train_images, *data.test_images):
        np.testing.assert_allclose(image, expected, rtol=1e-6, atol=0.51 if "A" in mode else 0)


def test_16_bit_grey_keeps_every_level(tmp_path: Path) -> None:
    """A camera of 12 bits writes 0 to 4095 into 16: in 8 bits only 16 levels would be left."""
    levels = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    data = load(tmp_path, [encoded(Image.fromarray(levels))] * 2)
    assert len(np.unique(data.train_images[0])) == 4096
    np.testing.assert_array_equal((data.train_images[0, 0] * 257).round(), levels)
    assert data.mean == pytest.approx([levels.mean() / 257])
    assert data.std == pytest.approx([levels.std() / 257])


def test_colours_of_other_kinds() -> None:
    red = Image.new("RGB", (1, 1), (200, 30, 60))
    for mode in ("YCbCr", "HSV"):
        pixels, _ = pixels_of(red.convert(mode))
        np.testing.assert_allclose(pixels[:, 0, 0], (200, 30, 60), atol=2)
    ink, _ = pixels_of(Image.new("CMYK", (1, 1), (10, 20, 30, 40)))
    np.testing.assert_allclose(ink[:, 0, 0], [(255 - c) * 215 / 255 for c in (10, 20, 30)], atol=1)
    lab, _ = pixels_of(Image.new("LAB", (1, 1), (113, 192, 158)))  # the same red, by its definition
    np.testing.assert_allclose(lab[:, 0, 0], (200, 30, 60), atol=2)
    # Half transparent, stored as half its colour: half of it, and half of white.
    faint, seen = pixels_of(Image.new("RGBA", (1, 1), (200, 30, 60, 128)).convert("RGBa"))
    np.testing.assert_allclose(faint[:, 0, 0], (228, 142, 157), atol=2)
    assert seen
    grey, seen = pixels_of(Image.new("LA", (1, 1), (100, 128)).convert("La"))
    np.testing.assert_allclose(grey, [[[177]]], atol=2)
    assert seen
    numbered, seen = pixels_of(palette().convert("PA"))
    np.testing.assert_array_equal(numbered, COLOUR.transpose(2, 0, 1))
    assert not seen
    for order in ("I;16L", "I;16N"):
        assert pixels_of(Image.new(order, (1, 1), 514))[0] == pytest.approx(2.0)


def test_transparency_is_the_same_however_it_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With an alpha channel, a palette's, or a colour that stands for nothing: white shows."""
    clear = np.array([[255, 0, 255], [255, 255, 255]], np.uint8)
    marked = palette()
    marked.info["transparency"] = 4  # the number of the second pixel
    files = [
        encoded(Image.fromarray(np.dstack([COLOUR, clear]), "RGBA")),
        encoded(marked, transparency=4),
        encoded(Image.fromarray(COLOUR), transparency=tuple(int(v) for v in COLOUR[0, 1])),
    ]
    expected = COLOUR.transpose(2, 0, 1).copy()
    expected[:, 0, 1] = 255
    data = load(tmp_path, files)
    for image in data.train_images:
        np.testing.assert_array_equal(image, expected)
    assert "3 of 3 images have transparent pixels, which are drawn on white" in caplog.text


def test_an_opaque_alpha_channel_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opaque = np.full_like(GREY, 255)
    files = [
        encoded(Image.fromarray(COLOUR)),
        encoded(Image.fromarray(np.dstack([COLOUR, opaque]), "RGBA")),
        encoded(Image.fromarray(np.dstack([GREY, opaque]), "LA")),
    ]
    data = load(tmp_path, files)
    np.testing.assert_array_equal(data.train_images[0], data.train_images[1])
    np.testing.assert_array_equal(data.train_images[2], np.stack([GREY] * 3))
    assert "transparent" not in caplog.text


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (encoded(Image.fromarray(GREY / np.float32(255)), "TIFF"), "has Pillow's mode F: save it"),
        (
            encoded(Image.fromarray(-DEEP.astype(np.int32)), "TIFF"),
            "mode I with values from -65535",
        ),
        (encoded(Image.fromarray(GREY))[:50], "cannot be used"),
        (b"no image", "cannot be used"),
    ],
    ids=["float", "signed", "cut off", "no image"],
)
def test_what_cannot_be_decoded_is_named(file: bytes, said: str, tmp_path: Path) -> None:
    good = encoded(Image.fromarray(GREY))
    with pytest.raises(ConfigError) as told:
        load(tmp_path, [good, good, file])
    assert said in str(told.value)
    assert f"row 2 of {tmp_path}/set/train-0.parquet" in str(told.value)
    assert str(told.value).count("\n") == 0


def test_8_and_16_bits_do_not_mix(tmp_path: Path) -> None:
    grey, deep = encoded(Image.fromarray(GREY)), encoded(Image.fromarray(DEEP))
    with pytest.raises(ConfigError, match="images of 8 bits and of 16 bits"):
        load(tmp_path, [grey, deep])
    write(tmp_path / "two" / "train-0.parquet", [grey], [0])
    write(tmp_path / "two" / "test-0.parquet", [deep], [0])
    with pytest.raises(ConfigError, match="images of 8 bits and of 16 bits"):
        load_images("two", str(tmp_path))


def deep_png(values: np.ndarray[Any, Any]) -> bytes:
    """Write 16-bit colours (height, width, 3) as a PNG, which Pillow only reads."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_deep_colours_and_several_frames_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [Image.fromarray(GREY), Image.fromarray(GREY[::-1])]
    file = encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    data = load(tmp_path, [file, encoded(frames[1])])
    np.testing.assert_array_equal(data.train_images[0, 0], GREY)
    assert "1 of 2 images hold several frames, of which the first is used" in caplog.text
    assert "16-bit colours" not in caplog.text
    data = load(tmp_path / "deep", [deep_png(COLOUR.astype(int) * 257), CASES["RGB"][0]])
    np.testing.assert_array_equal(data.train_images[0], data.train_images[1])
    assert "1 of 2 images have 16-bit colours, of which 8 bits are used" in caplog.text


def node_data(parent: Path, files: list[bytes], labels: Any) -> Any:
    """Load images as a node's own, for a run of 8-bit 2x3 images in 3 classes."""
    write(parent / "set" / "train-0.parquet", files, labels)
    facts = Facts((1, 2, 3), 3, (127.0,), (100.0,))
    config = parse_run_config(kebab({"dataset": "set", "num_clients": 1, "clients_per_round": 1}))
    return load_shard(Shard(str(parent), range(1), facts), config)


def test_a_node_s_own_data_are_read_in_the_same_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, _ = node_data(tmp_path / "deep", [encoded(Image.fromarray(DEEP))] * 2, [0, 1])
    np.testing.assert_allclose(data.train_images[0, 0], DEEP / 257, rtol=1e-6)
    assert "all 2 images are identical" in caplog.text
    with pytest.raises(ConfigError, match=r"row 1 of \S+ has -1 in its column label"):
        node_data(tmp_path / "label", [encoded(Image.fromarray(GREY))] * 2, [0, -1])
    assert "on the same scale" not in caplog.text
    # 10 bits of 16, where the run's images have 8 of 8.
    faint = encoded(Image.fromarray(DEEP // 64))
    node_data(tmp_path / "faint", [faint] * 2, [0, 1])
    assert "check that they are on the same scale" in caplog.text


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([9, 9, 9, 9], "all 4 images are identical"),
        ([1, 2, 3, 4], "all 4 images are constant"),
        ([1, 2, 3, None], "3 of 4 images are constant"),
        ([1, None, None, None], ""),
    ],
)
def test_images_without_content_are_told_every_time(
    levels: list[int | None],
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [
        encoded(Image.fromarray(GREY[::sign] if level is None else np.full_like(GREY, level)))
        for sign, level in zip((1, -1, 1, -1), levels, strict=True)
    ]
    with caplog.at_level(logging.WARNING, "flwr"):
        load(tmp_path, files)
        first = list(caplog.messages)
        monkeypatch.setattr("fedapp.data.samples.decode_image", None)  # it is not decoded again
        load_images("set", str(tmp_path))
    assert caplog.messages == 2 * first
    assert [said in message for message in first] == ([True, True] if said else [])


@pytest.mark.slow
def test_a_set_of_16_bits_is_learnt(run_inline: RunInline, tmp_path: Path) -> None:
    """From the digits in the lowest tenth of 16 bits: as good as the same in 8, and the same every time."""
    digits = load_images("digits", "")
    for name, factor, kind in (("deep", 400, np.uint16), ("flat", 15, np.uint8)):
        for split, images, labels in (
            ("train", digits.train_images, digits.train_labels),
            ("test", digits.test_images, digits.test_labels),
        ):
            scaled = (images[:400, 0].astype(int) * factor).astype(kind)
            files = [encoded(Image.fromarray(image)) for image in scaled]
            write(tmp_path / name / f"{split}-0.parquet", files, labels[:400].tolist())
    keys: dict[str, Value] = {"data_dir": str(tmp_path), "num_rounds": 6, "partition": "iid"}
    deep = [r["test_accuracy"] for r in read_rounds(run_inline(**keys, dataset="deep"))]
    flat = [r["test_accuracy"] for r in read_rounds(run_inline(**keys, dataset="flat"))]
    assert deep == pytest.approx(flat, abs=0.02)
    assert deep[-1] > 0.7


def test_damaged_facts_of_the_cache_are_told(tmp_path: Path) -> None:
    data = load(tmp_path, [CASES["L"][0], CASES["1"][0]])
    facts = cache.cache_dir() / "data" / data.key / "facts.json"
    facts.write_text(json.dumps([1]))
    with pytest.raises(ConfigError, match=r"remove .*, and it is made anew"):
        load_images("set", str(tmp_path))
