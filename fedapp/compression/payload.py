"""A payload's frame: which codec made it, how many numbers it holds, and a checksum over all of it.

`Reader` takes a body apart. Whatever is not as it should be raises `PayloadError`, before memory
is set aside for what the sender merely claims.
"""

import struct
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

VERSION = 1
HEADER = struct.Struct("<BBQ")  # codec, version, how many numbers
_CHECKSUM = struct.Struct("<I")
OVERHEAD = HEADER.size + _CHECKSUM.size


class PayloadError(ValueError):
    """Bytes that no compressor of ours, set up as this one is, can have made."""

    told = property(str)  # quotes no data


class NotFiniteError(PayloadError):
    """Numbers that are not finite, or too large, in a vector to be compressed or in a payload."""


def seal(codec: int, size: int, body: bytes, key: bytes) -> bytes:
    """Frame a body; `key` stands for the codec's settings, which both sides must share."""
    header = HEADER.pack(codec, VERSION, size)
    return b"".join((header, _CHECKSUM.pack(crc32(body, crc32(header, crc32(key)))), body))


def unseal(data: bytes | memoryview, codec: int, size: int, key: bytes) -> "Reader":
    """Check a frame, and return its body to be read."""
    view = memoryview(data).cast("B")
    if len(view) < OVERHEAD:
        raise PayloadError(f"its {len(view)} bytes are too few for a payload")
    header, body = view[: HEADER.size], view[OVERHEAD:]
    found, version, claimed = HEADER.unpack(header)
    if (found, version) != (codec, VERSION):
        raise PayloadError(f"it was made by codec {found}.{version} instead of {codec}.{VERSION}")
    if claimed != size:
        raise PayloadError(f"it holds {claimed} numbers instead of {size}")
    (checksum,) = _CHECKSUM.unpack(view[HEADER.size : OVERHEAD])
    if crc32(body, crc32(header, crc32(key))) != checksum:
        raise PayloadError("its checksum is wrong: it was damaged, or made with other settings")
    return Reader(body)


def varint(value: int) -> bytes:
    """Write a count in as few bytes as it needs: seven bits each, the lowest first."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


class Reader:
    """Bytes that are taken from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def __len__(self) -> int:
        """Return how many bytes are left."""
        return len(self._data)

    def bytes(self, count: int) -> memoryview:
        """Take `count` bytes."""
        if count > len(self._data):
            raise PayloadError(f"it ends {count - len(self._data)} bytes too soon")
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def numbers(self, dtype: str, count: int) -> NDArray[Any]:
        """Take an array; it is a view."""
        kind = np.dtype(dtype)
        return np.frombuffer(self.bytes(count * kind.itemsize), kind)

    def number(self, dtype: str) -> int:
        """Take one whole number."""
        return int(self.numbers(dtype, 1)[0])

    def varint(self) -> int:
        """Take what `varint` wrote."""
        value = 0
        for shift in range(0, 63, 7):
            byte = self.number("u1")
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise PayloadError("a count in it is too large")

    def end(self) -> None:
        """Make sure that nothing is left."""
        if len(self._data):
            raise PayloadError(f"it has {len(self._data)} bytes too many")
