"""One split of a data set as arrays, before or after its classes and groups are numbered."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.errors import ConfigError

TEST_SHARE = 0.1  # where a data set has no test split


@dataclass(frozen=True)
class Part:
    """Inputs and targets, one row for each sample, and who each belongs to."""

    inputs: NDArray[Any]
    targets: NDArray[Any]
    groups: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()  # their names, if they have been numbered by the alphabet

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.targets)

    def take(self, rows: NDArray[Any] | slice) -> "Part":
        """Return some of the samples."""
        groups = None if self.groups is None else self.groups[rows]
        return Part(self.inputs[rows], self.targets[rows], groups, self.classes)

    def hold_out(self) -> tuple["Part", "Part"]:
        """Set a tenth of the samples aside as a test split, the same ones every time."""
        order = np.random.default_rng(0).permutation(len(self))
        count = max(round(TEST_SHARE * len(order)), 1)
        if count >= len(order):
            raise ConfigError(
                "The data set has a single sample, and some are held out for the test: give it more.",
                tell=True,
            )
        return self.take(np.sort(order[count:])), self.take(np.sort(order[:count]))

    def digest(self) -> str:
        """Return what names the samples' number, targets and groups, by which partitions are divided."""
        arrays = [self.targets, *([] if self.groups is None else [self.groups])]
        content = [(a.shape, str(a.dtype), np.ascontiguousarray(a).tobytes()) for a in arrays]
        return hashlib.sha256(repr((len(self), content)).encode()).hexdigest()[:16]


def numbered(train: Part, test: Part) -> tuple[Part, Part]:
    """Return both splits with classes and groups as whole numbers; classes that are texts are numbered by the alphabet."""
    if {train.targets.dtype.kind, test.targets.dtype.kind} & set("UO"):
        names = np.unique(np.concatenate([train.targets.astype(str), test.targets.astype(str)]))
        train, test = (
            replace(
                part,
                targets=np.searchsorted(names, part.targets.astype(str)),
                classes=tuple(names.tolist()),
            )
            for part in (train, test)
        )
    if train.groups is not None:
        train = replace(train, groups=np.unique(train.groups, return_inverse=True)[1])
    return train, replace(test, groups=None)


def both_splits(train: Part | None, test: Part | None, whole: bool) -> tuple[Part, Part]:
    """Return both splits, numbered; one that is missing is empty.

    Without a test split, a tenth is held out, unless the `whole` is to be trained on.
    """
    if train is None and test is not None:
        return numbered(test.take(slice(0)), test)
    if train is not None and test is None:
        return numbered(*((train, train.take(slice(0))) if whole else train.hold_out()))
    if train is None or test is None:
        raise ConfigError("The data set has no samples: give it some.")
    return numbered(train, test)


def num_classes_of(parts: Sequence[Part]) -> int:
    """Return the number of classes: the largest label and one."""
    return 1 + max(int(part.targets.max(initial=0)) for part in parts)
