"""Tables before they are decoded: CSV, JSON lines, parquet, plays, and data sets of the hub, as Arrow tables.

A data set is a directory `<data-dir>/<dataset>` with `train.csv` and `test.csv` (or `train-*.parquet`, `train.jsonl`, ...),
or one file `<data-dir>/<dataset>.csv`, of which a tenth is held out.
"""

import bisect
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from fedapp.errors import ConfigError
from fedapp.files import brief, existing_directory
from fedapp.names import did_you_mean

DECODER = 1  # part of the cache's key: raise it when files decode to other numbers than before
TEXT_FILES = ("csv", "jsonl")
FORMATS = ("parquet", *TEXT_FILES)
PLAY = "input.txt"  # blocks separated by blank lines, the first line of each `NAME:`
TESTS = ("test", "valid", "validation")  # the first of these that is there is the test split


@dataclass(frozen=True)
class Table:
    """The rows of one split, and where they come from."""

    rows: Any  # a pyarrow.Table
    where: str
    files: tuple[Path, ...] = ()
    counts: tuple[int, ...] = ()  # rows of each file
    is_play: bool = False

    def place(self, row: int) -> str:
        """Name a row as its owner finds it: by the line of a text file; the first row of another is row 0."""
        if not self.files:
            return f"row {row} of {self.where}"
        starts = [0, *accumulate(self.counts)]
        index = min(bisect.bisect_right(starts, row) - 1, len(self.files) - 1)
        file, within = self.files[index], row - starts[index]
        header = {".csv": 2, ".jsonl": 1}.get(file.suffix)
        return f"line {within + header} of {file}" if header else f"row {within} of {file}"


@dataclass(frozen=True)
class TableSource:
    """A data set before decoding: `key` names its content, `read` gives train and test; one may be missing."""

    key: str
    read: Callable[[], tuple[Table | None, Table | None]]


def find_tables(name: str, data_dir: str) -> TableSource:
    """Return the source of a data set of tables or texts: a directory, or the hub."""
    if data_dir:
        return directory_source(name, existing_directory("data-dir", data_dir))
    if "/" in name:
        return TableSource(f"hub-{name.replace('/', '--')}", lambda: read_hub(name))
    raise ConfigError(
        f"dataset = {name!r} is not known: set data-dir to a directory that holds {name}.csv or {name}/train.csv, or "
        "give the name of a data set of the Hugging Face hub as owner/name."
    )


def split_files(directory: Path, split: str, formats: tuple[str, ...] = FORMATS) -> list[Path]:
    """Return the files of a split in a directory, all of one format."""
    for suffix in formats:
        found = [*directory.glob(f"{split}.{suffix}"), *directory.glob(f"{split}-*.{suffix}")]
        if found:
            return sorted(found)
    return []


def find_file(parent: Path, name: str) -> list[Path]:
    """Return the one file of a data set that is not divided into train and test; empty if there is none."""
    single = [*(parent / f"{name}.{suffix}" for suffix in FORMATS), parent / name / PLAY]
    return [file for file in single if file.is_file()][:1]


def directory_source(name: str, parent: Path) -> TableSource:
    """Return a data set in a directory."""
    directory = parent / name
    train = split_files(directory, "train")
    test = next((found for split in TESTS if (found := split_files(directory, split))), [])
    if not train and not test:
        train = find_file(parent, name)
    if not train and not test:
        held = sorted(
            path.stem if path.is_file() else path.name
            for path in parent.iterdir()
            if path.is_dir() or path.suffix[1:] in FORMATS
        )
        raise ConfigError(
            f"dataset = {name!r} is not in data-dir {parent}{did_you_mean(name, held)}: give it {name}.csv, or "
            f"{name}/train.csv and {name}/test.csv; parquet and jsonl are read too.",
            f"dataset = {name!r} is not in data-dir {parent}.",
        )
    return TableSource(
        f"{directory.name}-{_digest([*train, *test])}",
        lambda: (read_files(train) if train else None, read_files(test) if test else None),
    )


def _digest(files: Sequence[Path]) -> str:
    content = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def read_files(files: Sequence[Path]) -> Table:
    """Read the files of a split as one table."""
    import pyarrow as pa

    tables = []
    for file in files:
        try:
            tables.append(_read(file))
        except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
            raise ConfigError(
                f"{file} cannot be read: {brief(error)}.", f"{file} cannot be read."
            ) from None
    try:
        rows = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(
            f"The files in {files[0].parent} differ in their columns ({brief(error)}): give all the same ones.",
            f"The files in {files[0].parent} differ in their columns: give all the same ones.",
        ) from None
    where = str(files[0] if len(files) == 1 else files[0].parent)
    counts = tuple(table.num_rows for table in tables)
    return Table(rows, where, tuple(files), counts, files[0].name == PLAY)


def _read(file: Path) -> Any:
    if file.suffix == ".csv":
        from pyarrow import csv

        # Two values that look like a number and like a text in one column make it a text, which is refused later.
        return csv.read_csv(file, parse_options=csv.ParseOptions(newlines_in_values=True))
    if file.suffix == ".jsonl":
        from pyarrow import json as lines

        return lines.read_json(file)
    if file.name == PLAY:
        return play_table(file.read_text(encoding="utf-8"))
    import pyarrow.parquet as pq

    return pq.read_table(file)


def play_table(text: str) -> Any:
    """Return the speeches of a play as a table of speaker and text, in their order."""
    import pyarrow as pa

    speakers, texts = [], []
    for number, block in enumerate(text.strip().split("\n\n"), 1):
        name, _, speech = block.strip().partition("\n")
        if not name.endswith(":"):
            raise ValueError(
                f"block {number} does not begin with a line such as ROMEO: but with {name[:40]!r}"
            )
        speakers.append(name[:-1])
        texts.append(speech.strip())
    return pa.table({"speaker": speakers, "text": texts})


def embedded_speeches() -> tuple[Table, None]:
    """Return the speeches of eight of Shakespeare's characters that come with the package."""
    import pyarrow as pa

    said = json.loads((Path(__file__).parent / "speeches.json").read_text(encoding="utf-8"))
    pairs = [(speaker, text) for speaker, texts in said.items() for text in texts]
    speakers, texts = zip(*pairs, strict=True)
    table = pa.table({"speaker": list(speakers), "text": list(texts)})
    return Table(table, "the embedded speeches", is_play=True), None


def read_hub(name: str) -> tuple[Table, Table | None]:
    """Fetch a data set from the Hugging Face hub."""
    train, test = hub_splits(name)
    return hub_table(train, name), None if test is None else hub_table(test, name)


def hub_splits(name: str) -> tuple[Any, Any]:
    """Return the train and test splits of a data set of the hub; the second may be missing."""
    from datasets import load_dataset

    try:
        found = load_dataset(name)
    except Exception as error:  # many libraries' network errors meet here
        raise ConfigError(
            f"dataset = {name!r} cannot be fetched from the Hugging Face hub ({brief(error).removesuffix('.')}): check "
            "the name and the connection, or set data-dir to a directory that holds its files."
        ) from None
    if "train" not in found:
        raise ConfigError(
            f"dataset = {name!r} has the splits {', '.join(found)} on the Hugging Face hub: it needs one named train."
        )
    return found["train"], next((found[split] for split in TESTS if split in found), None)


def hub_table(split: Any, where: str) -> Table:
    """Return a Hugging Face `Dataset` as a table."""
    return Table(split.with_format("arrow")[:], where)
