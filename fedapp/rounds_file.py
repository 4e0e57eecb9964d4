"""`rounds.jsonl`: one line for each round of a run, with a `check` of the line and of the run's identity."""

import json
import math
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fedapp.files import DamagedFileError, brief, fsync, line_check, write_text
from fedapp.manifest import ROUNDS, Manifest, read_manifest

CHECK = "check"  # the last key of a line
Record = dict[str, Any]


def format_line(record: Record, identity: str) -> str:
    """Return a record as a line with a check."""
    line = json.dumps(record)
    return json.dumps({**record, CHECK: line_check(identity, line)}) + "\n"


def parse_line(line: str, identity: str, checked: bool = True) -> Record:
    """Return the record of a line; ValueError if it is not what was written.

    Without `checked`, a line of an older version, which has no check, will do.
    """
    record = json.loads(line)
    if not isinstance(record, dict) or type(record.get("round")) is not int:
        raise ValueError("it is not the record of a round")
    check = record.pop(CHECK, None)
    if check != line_check(identity, json.dumps(record)) and (checked or check is not None):
        raise ValueError("its check does not fit")
    return record


def read_rounds(directory: Path) -> list[Record]:
    """Read the rounds of the run in a directory; a last line that was cut off does not count."""
    path, manifest = directory / ROUNDS, read_manifest(directory)
    records: list[Record] = []
    for number, line in enumerate(_lines(path), 1):
        try:
            records.append(parse_line(line, manifest.identity, manifest.checked))
            if records[-1]["round"] != number:
                raise ValueError(f"it is of round {records[-1]['round']}")
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(
                f"Line {number} of {path} is damaged ({brief(error)}): with checkpoints, resume = true restores "
                "it; otherwise restore it from a backup."
            ) from None
    return records


def add_checks(directory: Path, manifest: Manifest) -> None:
    """Give the rounds of an older version their checks; a damaged file stays as it is."""
    path, identity = directory / ROUNDS, manifest.identity
    with suppress(FileNotFoundError, ValueError, RecursionError):
        records = [parse_line(line, identity, manifest.checked) for line in _lines(path)]
        write_text(path, "".join(format_line(record, identity) for record in records))


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedFileError(f"{path} cannot be read ({brief(error)}).") from None
    return text.split("\n")[:-1]


class RoundsFile:
    """The file of rounds of one run, open for writing."""

    def __init__(self, directory: Path, identity: str) -> None:
        self.path, self.identity = directory / ROUNDS, identity
        self._file: IO[str] = self.path.open("a")

    def append(self, record: Record) -> None:
        """Append one whole line; numbers that are not finite become null."""
        line = {name: _plain(value) for name, value in record.items()}
        self._file.write(format_line(line, self.identity))
        self._file.flush()

    def is_empty(self) -> bool:
        """Tell whether no line can be read, whole or damaged."""
        return not self._readable_lines()

    def sync(self) -> None:
        """Wait until the rounds are on the disk."""
        fsync(self.path)

    def text(self) -> str:
        """Return the rounds as they are on the disk."""
        return self.path.read_text()

    def rounds_until(self, last: int, copy: str = "") -> list[Record]:
        """Return the rounds up to one; those that are missing or damaged come from a checkpoint's copy."""
        kept = self._intact(copy.split("\n")) | self._intact(self._readable_lines())
        if missing := [number for number in range(1, last + 1) if number not in kept]:
            raise DamagedFileError(
                f"Round {missing[0]} is missing or damaged in {self.path}: restore that file from a "
                "backup, or remove the directory and start again."
            )
        return [kept[number] for number in range(1, last + 1)]

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the content; later rounds are appended to it."""
        text = "".join(format_line(record, self.identity) for record in records)
        self._file.close()
        write_text(self.path, text)
        self._file = self.path.open("a")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _readable_lines(self) -> list[str]:
        try:
            return _lines(self.path)
        except (FileNotFoundError, DamagedFileError):
            return []

    def _intact(self, lines: Iterable[str]) -> dict[int, Record]:
        found = {}
        for line in lines:
            with suppress(ValueError, RecursionError):
                record = parse_line(line, self.identity)
                found[record["round"]] = record
        return found


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
