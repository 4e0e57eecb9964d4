"""Where images come from: the embedded digits, a directory of parquet files or of folders, or the hub.

Each source gives a training and a test split as plain arrays; `cache.py` keeps them.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapp.data.files import (
    TESTS,
    TEXT_FILES,
    find_file,
    hub_splits,
    hub_table,
    split_files,
)
from fedapp.data.samples import Split, decode_folders, decode_table, mixed_depths
from fedapp.errors import ConfigError
from fedapp.files import existing_directory
from fedapp.names import did_you_mean
from fedapp.problems.kinds import DATASETS

DECODER = 2  # part of the cache's key: raise it when files decode to other numbers than before


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


def find_source(name: str, data_dir: str) -> Source:
    """Return the source of a data set; if there is none of that name, name those there are."""
    if name == "digits":
        return Source("digits", decode_digits)
    if data_dir:
        directory = existing_directory("data-dir", data_dir)
        if folders_of(directory / name):
            return folder_source(name, directory / name)
        if (directory / name).is_dir() and not split_files(directory / name, "train", TEXT_FILES):
            return parquet_source(name, directory / name, "test")
        held = sorted(p.name for p in directory.iterdir() if any(p.glob("train-*.parquet")))
        if split_files(directory / name, "train") or find_file(directory, name):
            raise ConfigError(
                f"dataset = {name!r} in data-dir {directory} is a table or a text: set problem to tabular-regression, "
                "tabular-classification, text-classification or next-character.",
                tell=True,
            )
        raise ConfigError(
            f"dataset = {name!r} is not in data-dir {directory}{did_you_mean(name, held)}: it holds "
            f"{', '.join(held) or 'no <dataset>/train-*.parquet'}.",
            f"dataset = {name!r} is not in data-dir {directory}.",
        )
    if "/" in name:
        return Source(f"hub-{name.replace('/', '--')}-{DECODER}", lambda: decode_named(name))
    if name in HUB:  # all of them 8-bit grey or RGB, which every DECODER read alike
        return Source(f"hub-{name}", lambda: decode_hub(name))
    known = ["digits", *DATASETS, *HUB]
    raise ConfigError(
        f"dataset = {name!r} is not known{did_you_mean(name, known)}: choose {', '.join(known)}, a data "
        "set of the Hugging Face hub as owner/name, or set data-dir to a directory that holds <dataset>/train-*.parquet and "
        "test-*.parquet."
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
    """Return a directory's data set. The `needed` split must be there, the other may be missing.

    A server whose nodes have their own data needs no training split; a node needs no test split.
    """
    train, test, valid = (
        sorted(directory.glob(f"{split}-*.parquet")) for split in ("train", "test", "valid")
    )
    test = test or valid  # Tiny-ImageNet's test images have no labels; one validates instead
    if not (test if needed == "test" else train):
        raise ConfigError(
            f"dataset = {name!r} in {directory} is incomplete: it needs {needed}-*.parquet.",
            tell=True,
        )
    content = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in train + test]
    digest = hashlib.sha256(repr((DECODER, content)).encode()).hexdigest()[:12]
    return Source(f"{name}-{digest}", lambda: _decode_both(train, test))


def _decode_both(train: list[Path], test: list[Path]) -> tuple[Split, Split]:
    """Decode both splits; one without files is empty."""
    if not train:
        there = _decode_parquet(test)
        return there.empty(), there
    there = _decode_parquet(train)
    other = _decode_parquet(test) if test else there.empty()
    if there.images.dtype != other.images.dtype:
        raise ConfigError(mixed_depths(str(train[0].parent)), tell=True)
    return there, other


def _decode_parquet(files: list[Path]) -> Split:
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(files)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{files[0].parent} cannot be read as parquet: {str(error).splitlines()[0]}",
            f"{files[0].parent} cannot be read as parquet.",
        ) from None
    return decode_table(table, str(files[0].parent), files)


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
    decoded = decode_table(train.with_format("arrow")[:], hub.repo)
    if test is not None:
        return decoded, decode_table(test.with_format("arrow")[:], hub.repo)
    return hold_out(decoded)


def folders_of(directory: Path) -> list[Path]:
    """Return the folders for train and test in a directory of images; empty if it has none."""
    found = [directory / split for split in ("train", *TESTS)]
    return [path for path in found if path.is_dir()][:2]


def folder_source(name: str, directory: Path) -> Source:
    """Return a directory's data set of images in `train/<class>/*.png` and `test/<class>/*.png`."""
    folders = folders_of(directory)
    content = [
        (str(f.relative_to(directory)), f.stat().st_size, f.stat().st_mtime_ns)
        for folder in folders
        for f in sorted(folder.rglob("*"))
    ]
    digest = hashlib.sha256(repr((DECODER, str(directory), content)).encode()).hexdigest()[:12]
    return Source(f"{name}-folders-{digest}", lambda: _decode_folders(folders))


def _decode_folders(folders: list[Path]) -> tuple[Split, Split]:
    """Decode both folders, which must have the same classes; without a test folder, a tenth is held out."""
    splits = [decode_folders(folder) for folder in folders]
    if len(splits) == 1:
        return hold_out(splits[0])
    first, second = ({p.name for p in folder.iterdir() if p.is_dir()} for folder in folders)
    if first != second:
        raise ConfigError(
            f"{folders[0]} and {folders[1]} differ in their classes ({', '.join(sorted(first ^ second))}): give both the "
            "same folders."
        )
    return splits[0], splits[1]


def decode_named(name: str) -> tuple[Split, Split]:
    """Fetch any data set of images from the Hugging Face hub, by its owner and name."""
    train, test = hub_splits(name)
    decoded = decode_table(hub_table(train, name).rows, name)
    if test is None:
        return hold_out(decoded)
    return decoded, decode_table(hub_table(test, name).rows, name)


def hold_out(split: Split, share: float = 0.1) -> tuple[Split, Split]:
    """Set a share of the samples aside as a test split, the same ones every time."""
    order = np.random.default_rng(0).permutation(len(split.labels))
    count = round(share * len(order))

    def take(indices: NDArray[np.intp]) -> Split:
        writers = None if split.writers is None else split.writers[indices]
        return Split(split.images[indices], split.labels[indices], writers)

    return take(np.sort(order[count:])), take(np.sort(order[:count]))
