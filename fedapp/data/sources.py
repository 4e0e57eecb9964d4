"""Where images come from: the embedded digits, a directory of parquet files, or the hub.

Each source gives a training and a test split as plain arrays; `cache.py` keeps them.
"""

import bisect
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.data.images import Pixels, decode_image, suspicions
from fedapp.errors import ConfigError
from fedapp.files import existing_directory
from fedapp.names import did_you_mean

DECODER = 2  # part of the cache's key: raise it when files decode to other numbers than before
MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Split:
    """Decoded samples: images (n, channels, height, width), labels, and who wrote them.

    Pixels are uint8, or float32 from 0 to 255 if the files hold 16-bit grey. `warnings` are what the
    owner of the data should know of them.
    """

    images: Pixels
    labels: NDArray[np.int64]
    writers: NDArray[Any] | None = None
    warnings: tuple[str, ...] = ()

    def none(self) -> "Split":
        """Return no samples of the same kind."""
        return Split(self.images[:0], self.labels[:0])


@dataclass(frozen=True)
class Source:
    """A data set before decoding: `key` names its content, `decode` gives train and test."""

    key: str
    decode: Callable[[], tuple[Split, Split]]


@dataclass(frozen=True)
class HubSet:
    """A data set of the Hugging Face hub; without a test split, a tenth is held out."""

    repo: str
    test: str | None = "test"


HUB = {
    "mnist": HubSet("ylecun/mnist"),
    "fashion_mnist": HubSet("zalando-datasets/fashion_mnist"),
    "cifar10": HubSet("uoft-cs/cifar10"),
    "cifar100": HubSet("uoft-cs/cifar100"),
    "tiny-imagenet": HubSet("zh-plus/tiny-imagenet", test="valid"),
    "femnist": HubSet("flwrlabs/femnist", test=None),
    "emnist": HubSet("tanganke/emnist_mnist"),
}
# Channels, height and width of the images, and the number of classes, of what is known by name.
SHAPES: dict[str, tuple[tuple[int, int, int], int]] = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "fashion_mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "tiny-imagenet": ((3, 64, 64), 200),
    "femnist": ((1, 28, 28), 62),
    "emnist": ((1, 28, 28), 10),
}
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "character")
WRITER_COLUMNS = ("writer_id", "writer")


def find_source(name: str, data_dir: str) -> Source:
    """Return where a data set comes from, or say which there are."""
    if name == "digits":
        return Source("digits", decode_digits)
    if data_dir:
        directory = existing_directory("data-dir", data_dir)
        if (directory / name).is_dir():
            return parquet_source(name, directory / name, "test")
        held = sorted(p.name for p in directory.iterdir() if any(p.glob("train-*.parquet")))
        raise ConfigError(
            f"dataset = {name!r} is not in data-dir {directory}{did_you_mean(name, held)}: it holds "
            f"{', '.join(held) or 'no <dataset>/train-*.parquet'}."
        )
    if name in HUB:  # all of them 8-bit grey or RGB, which every DECODER read alike
        return Source(f"hub-{name}", lambda: decode_hub(name))
    known = ["digits", "quadratic", *HUB]
    raise ConfigError(
        f"dataset = {name!r} is not known{did_you_mean(name, known)}: choose {', '.join(known)}, or set "
        "data-dir to a directory that holds <dataset>/train-*.parquet and test-*.parquet."
    )


def decode_digits() -> tuple[Split, Split]:
    """Return the 8x8 digits that come with scikit-learn: 1437 to train on, 360 to test."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    images = pixels.reshape(-1, 1, 8, 8).astype(np.uint8)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    labels = labels.astype(np.int64)
    return Split(images[train], labels[train]), Split(images[test], labels[test])


def parquet_source(name: str, directory: Path, needed: str) -> Source:
    """Return a directory's data set, of which one split may be missing, but not the `needed` one.

    A server whose nodes have their own data needs none to train on; a node needs none to test.
    """
    train, test, valid = (
        sorted(directory.glob(f"{split}-*.parquet")) for split in ("train", "test", "valid")
    )
    test = test or valid  # Tiny-ImageNet's test images have no labels; one validates instead
    if not (test if needed == "test" else train):
        raise ConfigError(
            f"dataset = {name!r} in {directory} is incomplete: it needs {needed}-*.parquet."
        )
    content = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in train + test]
    digest = hashlib.sha256(repr((DECODER, content)).encode()).hexdigest()[:12]
    return Source(f"{name}-{digest}", lambda: _decode_both(train, test))


def _decode_both(train: list[Path], test: list[Path]) -> tuple[Split, Split]:
    """Decode both splits; one without files is empty."""
    if not train:
        there = _decode_parquet(test)
        return there.none(), there
    there = _decode_parquet(train)
    other = _decode_parquet(test) if test else there.none()
    if there.images.dtype != other.images.dtype:
        raise ConfigError(_depths(str(train[0].parent)))
    return there, other


def _depths(where: str) -> str:
    return f"{where} holds images of 8 bits and of 16 bits: save all of them in the same way."


def _decode_parquet(files: list[Path]) -> Split:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(files)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{files[0].parent} cannot be read as parquet: {str(error).splitlines()[0]}"
        ) from None
    return _decode_table(table, str(files[0].parent), files)


def _column(names: list[str], candidates: tuple[str, ...]) -> str | None:
    return next((c for c in candidates if c in names), None)


def _decode_table(table: Any, where: str, files: Sequence[Path] = ()) -> Split:
    image, label, writer = (
        _column(table.column_names, c) for c in (IMAGE_COLUMNS, LABEL_COLUMNS, WRITER_COLUMNS)
    )
    if image is None or label is None:
        raise ConfigError(
            f"{where} has the columns {', '.join(table.column_names)}: it needs one of "
            f"{', '.join(IMAGE_COLUMNS)} and one of {', '.join(LABEL_COLUMNS)}."
        )
    if not table.num_rows:
        raise ConfigError(f"{where} holds no samples: give it some.")

    def place(row: int) -> str:
        return _place(row, where, files)

    labels = _labels(table.column(label), label, place)  # quick, so before the images
    images, warnings = _images(table.column(image).to_pylist(), image, where, place)
    return Split(images, labels, _writers(table, writer, place), tuple(warnings))


def _place(row: int, where: str, files: Sequence[Path]) -> str:
    """Name a row by its file; the first row of a file is row 0."""
    import pyarrow.parquet as pq

    if not files:
        return f"row {row} of {where}"
    starts = [0, *accumulate(pq.read_metadata(file).num_rows for file in files)]
    index = min(bisect.bisect_right(starts, row) - 1, len(files) - 1)
    return f"row {row - starts[index]} of {files[index]}"


def _labels(column: Any, name: str, place: Callable[[int], str]) -> NDArray[np.int64]:
    """Return a column of classes as whole numbers from 0; 2.0 counts as 2, and true as 1."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)

    def refuse(row: int, value: object) -> ConfigError:
        shown = repr(value)[:60]
        return ConfigError(
            f"Labels should be whole numbers from 0, and {place(row)} has {shown} in its column {name}: "
            f"number the classes from 0 to at most {MOST_CLASSES - 1}, and write whole numbers in {name}."
        )

    if column.null_count:
        missing = np.flatnonzero(column.is_null().to_numpy())
        raise refuse(int(missing[0]), None)
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise refuse(0, column[0].as_py())
    values = column.to_numpy()
    with np.errstate(invalid="ignore"):
        sound = (values >= 0) & (values < MOST_CLASSES)
        if pa.types.is_floating(kind):
            sound &= values == np.floor(values)
    if not sound.all():
        row = int(np.flatnonzero(~sound)[0])
        raise refuse(row, column[row].as_py())
    return np.asarray(values.astype(np.int64))


def _images(
    entries: list[Any], name: str, where: str, place: Callable[[int], str]
) -> tuple[Pixels, list[str]]:
    """Decode all images to one shape; return warnings beside them."""

    def decode(row: int) -> tuple[Pixels, frozenset[str]]:
        entry = entries[row]
        encoded = entry.get("bytes") if isinstance(entry, dict) else None
        if not isinstance(encoded, bytes):
            raise ConfigError(
                f"{where} needs encoded images in its column {name}, and {place(row)} has none: write "
                "structs with the bytes of a PNG or JPEG file."
            )
        try:
            return decode_image(encoded)
        except Exception as error:  # a damaged file makes Pillow raise almost anything
            reason = (str(error).splitlines() or [repr(error)])[0]
            raise ConfigError(
                f"The image in {place(row)} cannot be used ({reason.removesuffix('.')}): replace it or "
                "leave it out."
            ) from None

    with ThreadPoolExecutor() as pool:
        decoded = list(pool.map(decode, range(len(entries))))
    pixels = [image for image, _ in decoded]
    sizes = {p.shape[1:] for p in pixels}
    if len(sizes) > 1:
        raise ConfigError(f"{where} holds images of different sizes, {sizes}: make them equal.")
    if len({p.dtype for p in pixels}) > 1:
        raise ConfigError(_depths(where))
    channels = max(p.shape[0] for p in pixels)  # a colour set may hold grey images
    images = np.stack([np.broadcast_to(p, (channels, *p.shape[1:])) for p in pixels])
    remarks = Counter(remark for _, found in decoded for remark in sorted(found))
    warnings = [f"{count} of {len(images)} images {text}" for text, count in remarks.items()]
    return images, warnings + suspicions(images)


def _writers(table: Any, name: str | None, place: Callable[[int], str]) -> NDArray[Any] | None:
    if name is None:
        return None
    column = table.column(name)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise ConfigError(f"{place(row)} has nothing in its column {name}: say who wrote it.")
    return np.asarray(column.to_numpy())


def decode_hub(name: str) -> tuple[Split, Split]:
    """Fetch a data set from the Hugging Face hub through flwr-datasets."""
    from flwr_datasets import FederatedDataset

    hub = HUB[name]
    try:
        federated = FederatedDataset(dataset=hub.repo, partitioners={}, shuffle=False)
        train = federated.load_split("train")
        test = federated.load_split(hub.test) if hub.test else None
    except Exception as error:  # many libraries' network errors meet here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"dataset = {name!r} cannot be fetched from the Hugging Face hub ({reason}): connect to "
            f"it, set data-dir to a directory that holds {name}/train-*.parquet and "
            'test-*.parquet, or use dataset = "digits".'
        ) from None
    decoded = _decode_table(train.with_format("arrow")[:], hub.repo)
    if test is not None:
        return decoded, _decode_table(test.with_format("arrow")[:], hub.repo)
    return hold_out(decoded)


def hold_out(split: Split, share: float = 0.1) -> tuple[Split, Split]:
    """Set a share of the samples aside as a test split, the same ones every time."""
    order = np.random.default_rng(0).permutation(len(split.labels))
    count = round(share * len(order))

    def take(indices: NDArray[np.intp]) -> Split:
        writers = None if split.writers is None else split.writers[indices]
        return Split(split.images[indices], split.labels[indices], writers)

    return take(np.sort(order[count:])), take(np.sort(order[:count]))
