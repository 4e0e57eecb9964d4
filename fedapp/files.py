"""Files that prove that they are ours and whole: atomic writes, digests, identities.

The integrity rule of a run's directory and of a `state-dir`: every file carries the identity of its run and a digest
of its content. JSON files are sealed, lines of `rounds.jsonl` carry a check, and files of arrays keep both in their
metadata. A file is written under a temporary name, synced to the disk, and then put in place, and so is its
directory's entry: what a durable file refers to is durable.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from fedapp.errors import ConfigError

Arrays = dict[str, NDArray[Any]]
# `write_atomically` makes directories of such names; only those for files of a run are ever removed as leftovers.
TEMPORARY = re.compile(
    r"\.(config\.json|rounds\.jsonl|diverged\.txt|failed\.txt|privacy\.json|privacy-ledger(-id)?\.json|trackers\.json"
    r"|model\.safetensors|(round-)?[0-9]+\.safetensors)-[0-9a-f]{32}"
)
CHECKPOINT = re.compile(r"round-[0-9]{7}\.safetensors")
# Seconds before a partial file is deleted, where another process may be writing.
STALE_AFTER = 3600.0


class DamagedFileError(ConfigError):
    """A file of a run is not as it was written; the message names it and says what to do."""


# Writing.


def fsync(path: Path) -> None:
    """Wait until a file's content, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, write: Callable[[Path], object], durable: bool = True) -> None:
    """Let `write` fill a temporary file, then put it in place; if durable, it survives a power loss.

    The temporary file has its own directory, where libraries may leave temporary files too.
    """
    place = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        place.mkdir()
        temporary = place / path.name
        write(temporary)
        if durable:
            fsync(temporary)
        temporary.replace(path)
        if durable:
            fsync(path.parent)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text, all of it or nothing."""
    write_atomically(path, lambda place: place.write_text(text))


def is_leftover(path: Path) -> bool:
    """Tell whether a killed process left this half written."""
    return bool(TEMPORARY.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def remove_leftovers(directory: Path, older_than: float = 0.0) -> None:
    """Remove what killed processes left half written, if it is older than some seconds."""
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        with suppress(FileNotFoundError):
            if is_leftover(path) and path.stat().st_mtime <= time.time() - older_than:
                shutil.rmtree(path, ignore_errors=True)


def checkpoint_paths(directory: Path) -> list[Path]:
    """Return the checkpoints in a directory, the newest first."""
    found = directory.glob("round-*.safetensors")
    return sorted((p for p in found if CHECKPOINT.fullmatch(p.name) and p.is_file()), reverse=True)


def checkpoint_round(path: Path) -> int:
    """Return the round that a checkpoint's name says."""
    return int(path.stem.partition("-")[2])


# JSON.


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def seal(content: Mapping[str, Any]) -> str:
    """Return JSON that carries the digest of the rest of it."""
    digest = xxhash.xxh3_128_hexdigest(_canonical(content))
    return json.dumps({**content, "digest": digest}, indent=2) + "\n"


def unseal(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if it has no digest, DamagedFileError if that does not fit."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} cannot be read ({brief(error)}).") from None
    if not isinstance(content, dict) or "digest" not in content:
        return None
    digest = content.pop("digest")
    if digest != xxhash.xxh3_128_hexdigest(_canonical(content)):
        raise DamagedFileError(f"{path} has changed since it was written.")
    return content


def line_check(identity: str, line: str) -> str:
    """Return what shows that a line of `rounds.jsonl` is whole, and of this run."""
    return xxhash.xxh3_64_hexdigest(f"{identity}\n{line}".encode(errors="surrogateescape"))


# Arrays.


def arrays_digest(arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str]) -> str:
    """Return a digest of every array's name, type, shape and numbers, and of what is said about them."""
    digest = xxhash.xxh3_128(_canonical(about))
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return str(digest.hexdigest())


def save_arrays(
    path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, str], durable: bool = True
) -> str:
    """Write arrays with what is said about them and a digest of both; return the digest."""
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    digest = arrays_digest(whole, about)
    metadata = {**about, "digest": digest}
    write_atomically(path, lambda place: save_file(whole, place, metadata), durable)
    return digest


def load_arrays(
    path: Path, expected: Mapping[str, str], old: bool = False
) -> tuple[Arrays, dict[str, str]]:
    """Read arrays and what is said about them; `expected` must be part of the latter.

    With `old`, a file of an older version will do, which says nothing about itself (a checkpoint: its round, and a
    digest of another kind, which is for the caller to check).
    """
    try:
        with safe_open(path, "numpy") as file:
            about: dict[str, str] = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DamagedFileError(f"{path} is missing.") from None
    # A damaged header makes safetensors and NumPy raise anything.
    except Exception as error:
        raise DamagedFileError(f"{path} cannot be read ({brief(error)}).") from None
    if old and (not about or about.keys() == {"round", "digest"}):
        return arrays, about
    digest = about.pop("digest", "")
    if digest != arrays_digest(arrays, about):
        raise DamagedFileError(f"{path} has changed since it was written.")
    for key, value in expected.items():
        if about.get(key) != value:
            raise DamagedFileError(
                f"{path} belongs to {key} {about.get(key, 'unknown')}, not to {key} {value}."
            )
    return arrays, about | {"digest": digest}


def brief(error: BaseException) -> str:
    """Return an error's reason as one short line."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = reason.strip().splitlines() or [type(error).__name__]
    return lines[0][:200]


# Directories that a user names.


def existing_directory(key: str, value: str) -> Path:
    """Return the directory that a key names; it must exist."""
    path = Path(value).expanduser()
    if not path.is_dir():
        raise ConfigError(
            f"{key} = {value!r} is not there: give a directory that exists.", tell=True
        )
    return path


def writable_directory(key: str, value: str | Path) -> Path:
    """Return the directory that a key names; create it if it does not exist."""
    path = Path(value).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{key} = {str(path)!r} cannot be written ({error.strerror}): choose another."
        ) from None
    return path
