"""The images of a run: a known data set's, or those of the user's own function."""

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data.cache import ImageData, load_images, measured
from fedapp.data.files import Table
from fedapp.data.images import Pixels
from fedapp.data.outside import given_data
from fedapp.data.parts import Part, both_splits
from fedapp.data.samples import Split, decode_table
from fedapp.data.sources import hold_out
from fedapp.data.tabular import checked_classes
from fedapp.doors import is_outside
from fedapp.errors import ConfigError

CHANNELS = (1, 3, 4)


def configured_images(config: RunConfig) -> ImageData:
    """Return the config's data set of images; those of the user's function are not kept on disk."""
    if not is_outside(config.dataset):
        return load_images(config.dataset, config.data_dir)
    given = given_data(config)
    if isinstance(given.train, Table):
        splits = [
            decode_table(table.rows, table.where)
            for table in (given.train, given.test)
            if isinstance(table, Table)
        ]
        train, test = splits if len(splits) == 2 else hold_out(splits[0])
    else:
        assert not isinstance(given.test, Table)  # both are of one kind
        parts = checked_classes(*both_splits(given.train, given.test, whole=False), config)
        train, test = (Split(_pixels(p, config), p.targets, p.groups) for p in parts)
    writers = None
    if train.writers is not None:
        writers = np.unique(train.writers, return_inverse=True)[1]
    named = Part(train.images, train.labels, writers)
    return ImageData(
        f"given-{named.digest()}",
        train.images,
        train.labels,
        test.images,
        test.labels,
        writers,
        **measured(train, test),
    )


def _pixels(part: Part, config: RunConfig) -> Pixels:
    """Return images (n, channels, height, width) as bytes, or as floats if they are."""
    images: NDArray[np.generic] = part.inputs
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4 or images.shape[1] not in CHANNELS or images.dtype.kind not in "uif":
        raise ConfigError(
            f"dataset = {config.dataset!r} has inputs of the shape {part.inputs.shape} and type {part.inputs.dtype}: images "
            "are numbers (n, channels, height, width) with 1, 3 or 4 channels."
        )
    kind = np.uint8 if images.dtype == np.uint8 else np.float32
    pixels: Pixels = np.require(images, kind, ["C", "W"])  # torch does not take what is read-only
    return pixels
