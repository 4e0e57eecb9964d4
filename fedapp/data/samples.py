"""From the rows of a table to samples: images, labels and writers as plain arrays.

Whatever cannot be used is refused with its row, so that the owner of the data finds it.
"""

import bisect
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
from fedapp.files import brief

MOST_CLASSES = 1_000_000
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "character")
WRITER_COLUMNS = ("writer_id", "writer")
IMAGE_FILES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class Split:
    """Decoded samples: images (n, channels, height, width), labels, and who wrote them.

    Pixels are uint8, or float32 from 0 to 255 if the files hold 16-bit grey. `warnings` are for the
    owner of the data.
    """

    images: Pixels
    labels: NDArray[np.int64]
    writers: NDArray[Any] | None = None
    warnings: tuple[str, ...] = ()

    def empty(self) -> "Split":
        """Return a split without samples, with images of the same shape and type."""
        return Split(self.images[:0], self.labels[:0])


def _column(names: list[str], candidates: tuple[str, ...]) -> str | None:
    return next((c for c in candidates if c in names), None)


def decode_table(table: Any, where: str, files: Sequence[Path] = ()) -> Split:
    """Return the samples of an Arrow table; errors name the row, by its file if `files` are given."""
    image, label, writer = (
        _column(table.column_names, c) for c in (IMAGE_COLUMNS, LABEL_COLUMNS, WRITER_COLUMNS)
    )
    if image is None or label is None:
        raise ConfigError(
            f"{where} has the columns {', '.join(table.column_names)}: it needs one of "
            f"{', '.join(IMAGE_COLUMNS)} and one of {', '.join(LABEL_COLUMNS)}.",
            f"{where} needs one of the columns {', '.join(IMAGE_COLUMNS)} and one of {', '.join(LABEL_COLUMNS)}.",
        )
    if not table.num_rows:
        raise ConfigError(f"{where} holds no samples: give it some.", tell=True)

    def place(row: int) -> str:
        return _place(row, where, files)

    labels = class_column(table.column(label), label, place)  # quick, so before the images
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


def class_column(column: Any, name: str, place: Callable[[int], str]) -> NDArray[np.int64]:
    """Return a column of classes as whole numbers from 0; 2.0 counts as 2, and true as 1."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)

    def refuse(row: int, value: object) -> ConfigError:
        def sentence(shown: str) -> str:
            return (
                f"Labels should be whole numbers from 0, and {place(row)} has {shown} in its column {name}: "
                f"number the classes from 0 to at most {MOST_CLASSES - 1}, and write whole numbers in {name}."
            )

        return ConfigError(sentence(repr(value)[:60]), sentence("something else"))

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
        encoded = entry.get("bytes") if isinstance(entry, dict) else entry
        if encoded is None and isinstance(entry, dict) and isinstance(entry.get("path"), str):
            encoded = _file_content(entry["path"], place(row), f"Image {row} of {where}")
        if not isinstance(encoded, bytes):
            raise ConfigError(
                f"{where} needs encoded images in its column {name}, and {place(row)} has none: write "
                "the bytes of a PNG or JPEG file, or structs with bytes and path.",
                tell=True,
            )
        try:
            return decode_image(encoded)
        except Exception as error:  # a damaged file makes Pillow raise almost anything
            reason = (str(error).splitlines() or [repr(error)])[0]
            raise ConfigError(
                f"The image in {place(row)} cannot be used ({reason.removesuffix('.')}): replace it or "
                "leave it out.",
                f"Image {row} of {where} cannot be used: replace it or leave it out.",
            ) from None

    with ThreadPoolExecutor() as pool:
        decoded = list(pool.map(decode, range(len(entries))))
    pixels = [image for image, _ in decoded]
    sizes = {p.shape[1:] for p in pixels}
    if len(sizes) > 1:
        raise ConfigError(
            f"{where} holds images of different sizes, {sizes}: make them equal.",
            f"{where} holds images of different sizes: make them equal.",
        )
    if len({p.dtype for p in pixels}) > 1:
        raise ConfigError(mixed_depths(where), tell=True)
    channels = max(p.shape[0] for p in pixels)  # a colour set may hold grey images
    images = np.stack([np.broadcast_to(p, (channels, *p.shape[1:])) for p in pixels])
    remarks = Counter(remark for _, found in decoded for remark in sorted(found))
    warnings = [f"{count} of {len(images)} images {text}" for text, count in remarks.items()]
    return images, warnings + suspicions(images)


def _file_content(path: str, place: str, told: str) -> bytes:
    """Return the content of an image's file, which a row names by its full path."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{place} names the image {path}, which cannot be read: {brief(error)}.",
            f"{told} cannot be read.",
        ) from None


def decode_folders(directory: Path) -> Split:
    """Return the images of a directory with a folder for each class; classes are numbered by the alphabet."""
    folders = sorted(path for path in directory.iterdir() if path.is_dir())
    pairs = [
        (file, label)
        for label, folder in enumerate(folders)
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in IMAGE_FILES
    ]
    if not pairs:
        raise ConfigError(
            f"{directory} holds no images: give it a folder for each class, with {', '.join(IMAGE_FILES)} files."
        )
    files = [file for file, _ in pairs]
    entries = [{"bytes": None, "path": str(file)} for file in files]
    images, warnings = _images(entries, "image", str(directory), lambda row: str(files[row]))
    return Split(images, np.array([label for _, label in pairs], np.int64), None, tuple(warnings))


def _writers(table: Any, name: str | None, place: Callable[[int], str]) -> NDArray[Any] | None:
    if name is None:
        return None
    column = table.column(name)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise ConfigError(
            f"{place(row)} has nothing in its column {name}: say who wrote it.", tell=True
        )
    return np.asarray(column.to_numpy())


def mixed_depths(where: str) -> str:
    """Return the sentence that refuses images of 8 and of 16 bits in one data set."""
    return f"{where} holds images of 8 bits and of 16 bits: save all of them in the same way."
