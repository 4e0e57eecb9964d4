"""The decoded data sets on disk: written once, memory-mapped by every process.

The cache is `$FEDAPP_CACHE`, by default `~/.cache/fedapp`; it may be deleted at any time.
"""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from fedapp.data.facts import Facts
from fedapp.data.images import Pixels
from fedapp.data.samples import Split
from fedapp.data.sources import SHAPES, Source, find_source
from fedapp.errors import ConfigError
from fedapp.files import writable_directory

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class ImageData:
    """A data set: images (n, channels, height, width), memory-mapped, and labels.

    Pixels go from 0 to 255: as uint8, or as float32 if the files hold 16-bit grey.
    """

    key: str
    train_images: Pixels
    train_labels: NDArray[np.int64]
    test_images: Pixels
    test_labels: NDArray[np.int64]
    writers: NDArray[Any] | None
    num_classes: int
    mean: list[float]  # the training images' mean, per channel
    std: list[float]

    @property
    def facts(self) -> Facts:
        """What a node with its own data must know about these."""
        return Facts(self.image_shape, self.num_classes, tuple(self.mean), tuple(self.std))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.test_images.shape[1:]
        return channels, height, width


def cache_dir() -> Path:
    """Return the directory for decoded data sets and partitions."""
    return Path(os.environ.get("FEDAPP_CACHE") or Path.home() / ".cache" / "fedapp")


def build_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Return a directory, filled by `build` in one process, once, and atomically."""
    if not path.is_dir():
        writable_directory("The cache (environment variable FEDAPP_CACHE)", path.parent)
        try:
            with FileLock(f"{path}.lock"):
                if not path.is_dir():
                    _build(path, build)
        except OSError as error:  # what is read is read elsewhere, and has sentences of its own
            raise ConfigError(
                f"The cache (environment variable FEDAPP_CACHE) in {path.parent} cannot be written "
                f"({error.strerror or error}): make space, or choose another."
            ) from None
    return path


def _build(path: Path, build: Callable[[Path], None]) -> None:
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=".partial-"))
    try:
        build(partial)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def mapped(path: Path) -> NDArray[Any]:
    """Map an array; copy-on-write, so that torch takes it, and nothing reaches the file."""
    try:
        return open_memmap(path, mode="c")  # not np.load, which knows other formats, too
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}): remove {path.parent}, and it is made anew."
        ) from None


def load_images(name: str, data_dir: str) -> ImageData:
    """Load a data set, decoding it if no process has done so before."""
    return load_source(name, find_source(name, data_dir))


@lru_cache
def image_shape(name: str, data_dir: str) -> tuple[tuple[int, int, int], int]:
    """Return channels, height and width of a data set's images, and the number of its classes."""
    find_source(name, data_dir)  # raises a ConfigError if there is no such data set
    if name in SHAPES:
        return SHAPES[name]
    data = load_images(name, data_dir)
    return data.image_shape, data.num_classes


def load_source(name: str, source: Source) -> ImageData:
    """Load a source's data set, decoding it if no process has done so before."""

    def build(directory: Path) -> None:
        if source.key != "digits":
            log.info("Decoding %s into %s (this happens once)", name, cache_dir())
        train, test = source.decode()
        write_splits(directory, train, test)

    directory = build_once(cache_dir() / "data" / source.key, build)
    facts = _read_facts(directory)
    for warning in facts.pop("warnings", []):
        log.warning("In %s, %s", name, warning)
    writers = directory / "writers.npy"
    return ImageData(
        key=source.key,
        train_images=mapped(directory / "train_images.npy"),
        train_labels=mapped(directory / "train_labels.npy"),
        test_images=mapped(directory / "test_images.npy"),
        test_labels=mapped(directory / "test_labels.npy"),
        writers=mapped(writers) if writers.exists() else None,
        **facts,
    )


def _read_facts(directory: Path) -> dict[str, Any]:
    try:
        facts = json.loads((directory / "facts.json").read_text())
        return {key: facts[key] for key in ("num_classes", "mean", "std")} | {
            "warnings": [str(text) for text in facts.get("warnings", [])]
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{directory / 'facts.json'} cannot be read ({error}): remove {directory}, and it is made anew."
        ) from None


def write_splits(directory: Path, train: Split, test: Split) -> None:
    """Write a decoded data set with its facts: classes, mean and spread of the pixels, warnings."""
    splits = (("train", train), ("test", test))
    for prefix, split in splits:
        np.save(directory / f"{prefix}_images.npy", split.images)
        np.save(directory / f"{prefix}_labels.npy", split.labels)
    if train.writers is not None:
        np.save(directory / "writers.npy", np.unique(train.writers, return_inverse=True)[1])
    warnings = [f"the {k} split: {w}" for k, s in splits for w in s.warnings]
    facts = measured(train, test) | {"warnings": warnings}
    (directory / "facts.json").write_text(json.dumps(facts))


def measured(train: Split, test: Split) -> dict[str, Any]:
    """Return the number of classes, and mean and spread of the pixels per channel."""
    images = train.images if len(train.images) else test.images
    moments = [_moments(images[:, channel]) for channel in range(images.shape[1])]
    return {
        "num_classes": int(max(train.labels.max(initial=0), test.labels.max(initial=0))) + 1,
        "mean": [mean for mean, _ in moments],
        "std": [std or 1.0 for _, std in moments],
    }


def _moments(values: Pixels) -> tuple[float, float]:
    """Return mean and standard deviation; of bytes from counts, without a copy of the images as floats."""
    if values.dtype != np.uint8:
        means = [
            (image.mean(dtype=np.float64), np.square(image, dtype=np.float64).mean())
            for image in values
        ]
        mean, square = np.mean(means, axis=0)
        return float(mean), float(np.sqrt(max(square - mean**2, 0.0)))
    counts = sum(np.bincount(image.ravel(), minlength=256) for image in values)
    levels = np.arange(256)
    mean = np.average(levels, weights=counts)
    return float(mean), float(np.sqrt(np.average((levels - mean) ** 2, weights=counts)))
