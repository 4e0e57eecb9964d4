"""Record dicts between a worker and the driver, their arrays' bytes through memory that is reused.

Fresh shared memory costs more to touch than the bytes cost to copy (a page fault for every 4 KiB),
and Ray's object store hands out fresh memory. So the driver and the workers on its machine write into
files in shared memory that they keep: what a round's messages have in common is a `Page` of the driver's,
which all workers read; a reply is in its worker's `Outbox`, and the driver copies it out. To and from
another machine, bytes go as Ray objects.
"""

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

Buffer = NDArray[np.uint8]
# record name -> a dict of values, or of array name -> (dtype, shape, stype, number of bytes)
Layout = list[tuple[str, str, dict[str, Any]]]


def shared_memory_dir() -> Path:
    """Make a directory in shared memory, or where temporary files are."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="fedapp-", dir=parent))


def layout_of(content: RecordDict) -> tuple[Layout, list[bytes]]:
    """Take a record dict apart: what it says, and the bytes of its arrays in order."""
    layout: Layout = []
    pieces: list[bytes] = []
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            arrays = {k: (a.dtype, a.shape, a.stype, len(a.data)) for k, a in record.items()}
            pieces += [array.data for array in record.values()]
            layout.append((name, "array", arrays))
        else:
            kind = "metric" if isinstance(record, MetricRecord) else "config"
            layout.append((name, kind, dict(record)))
    return layout, pieces


def put_together(layout: Layout, buffer: Buffer | bytes, copy: bool, but: str = "") -> RecordDict:
    """Make the record dict again; without a copy, its arrays are views of the buffer, or those `but` are."""
    buffer = np.frombuffer(buffer, np.uint8)
    content, start = RecordDict(), 0
    for name, kind, values in layout:
        if kind == "array":
            record, copies = ArrayRecord(), copy and name != but
            content[name] = record
            for key, (dtype, shape, stype, size) in values.items():
                record[key] = _array(
                    dtype, tuple(shape), stype, buffer[start : start + size], copies
                )
                start += size
        else:
            content[name] = MetricRecord(values) if kind == "metric" else ConfigRecord(values)
    return content


def _array(dtype: str, shape: tuple[int, ...], stype: str, data: Buffer, copy: bool) -> Array:
    if copy:
        return Array(dtype, shape, stype, data.tobytes())
    array = Array.__new__(Array)  # the constructor takes nothing but bytes
    array.__dict__ |= {"dtype": dtype, "shape": shape, "stype": stype, "data": data.data}
    return array


def joined(pieces: list[bytes]) -> Buffer:
    """Join pieces into one new buffer."""
    return np.frombuffer(b"".join(pieces), np.uint8)


def _mapped(path: Path, size: int) -> Buffer:
    """Make a file of shared memory and map it; OSError if it has no room, where writing would kill the process."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
    return np.memmap(path, np.uint8, "r+", shape=(size,))


class Page:
    """Bytes that every worker on this machine reads, in a file without a name."""

    def __init__(self, directory: Path, size: int) -> None:
        self.key = uuid4().hex
        path = directory / self.key
        try:
            self._buffer = _mapped(path, size)
            self._file = path.open("rb")
        finally:
            path.unlink(missing_ok=True)

    @property
    def descriptor(self) -> int:
        """The file, for workers."""
        return self._file.fileno()

    @property
    def size(self) -> int:
        """How many bytes there is room for."""
        return len(self._buffer)

    def write(self, pieces: list[bytes]) -> None:
        """Write pieces one after the other."""
        _fill(self._buffer, pieces)


def page_of(descriptor: int) -> Buffer:
    """Return a page's bytes, in a worker that was given its file."""
    try:
        return np.frombuffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(descriptor)


class Pages:
    """The driver's pages; one that a worker may still read is not written to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._free: list[Page] = []

    def write(self, pieces: list[bytes]) -> Page | None:
        """Write pieces into a page; None if there is no room for one."""
        needed = sum(map(len, pieces))
        page = self._free.pop() if self._free else None
        if page is None or page.size < needed:
            try:
                page = Page(self._directory, max(2 * needed, 1))
            except OSError:
                return None
        page.write(pieces)
        return page

    def free(self, page: Page) -> None:
        """Let a page be written to again."""
        self._free.append(page)


class Outbox:
    """A worker's buffer in shared memory, which holds one reply at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = ""
        self._buffer: Buffer = np.empty(0, np.uint8)

    def write(self, pieces: list[bytes]) -> tuple[str, int] | Buffer:
        """Write pieces one after the other; return the file's name and size, or the pieces if there is no room."""
        needed = sum(map(len, pieces))
        if not self._path or len(self._buffer) < needed:
            path = self._directory / uuid4().hex
            try:
                self._buffer = _mapped(path, max(2 * needed, 1))
            except OSError:  # full, as a container's 64 MB soon are
                path.unlink(missing_ok=True)
                return joined(pieces)
            self._path = str(path)
        _fill(self._buffer, pieces)
        return self._path, len(self._buffer)


def _fill(buffer: Buffer, pieces: list[bytes]) -> None:
    start = 0
    for piece in pieces:
        buffer[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
        start += len(piece)


class Inbox:
    """The driver's view of the workers' buffers."""

    def __init__(self) -> None:
        self._mapped: dict[str, Buffer] = {}

    def read(self, path: str, size: int) -> Buffer:
        """Return a buffer; its file is unlinked at once, so that nothing can be left behind."""
        if path not in self._mapped:
            self._mapped[path] = np.memmap(path, np.uint8, "r", shape=(size,))
            Path(path).unlink()
        return self._mapped[path]
