"""Arrays and payloads that claim to be huge take no memory."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array

from fedapp import wire
from fedapp.compression.payload import HEADER, OVERHEAD, varint
from fedapp.wire import WireError
from tests.support.arrays import npy
from tests.support.compressors import COMPRESSORS


def peak_of(read: Callable[[], Any]) -> int:
    """Return the most memory that reading took, which must be refused."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        npy("(1000000000,)"), npy("(1000000000000000000,)"), npy("(100000, 100000)", b""),
        npy("(1000000000,)", descr="|u1"), npy("(1,)", descr="|V2000000000"), npy("(5,)", descr="<U500000000"),
        npy("(1000000000,)").replace(b"False", b"True "), b"\x93NUMPY\x03\x00" + b"\xff" * 4 + b" " * 100,
        npy("(" * 60 + "1" + ")" * 30), npy("(" + "9" * 90 + ",)"),
    ],
)  # fmt: skip
def test_an_array_that_claims_to_be_huge_takes_no_memory(data: bytes) -> None:
    array = Array("float32", (5,), "numpy.ndarray", data)
    for spec in (None, (np.dtype(np.float32), (10,)), (np.dtype(np.float64), (3, 3))):
        assert peak_of(lambda spec=spec: wire.decode(array, spec)) < 100_000  # type: ignore[misc]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_a_payload_that_claims_to_be_huge_takes_no_memory(compressor: Any) -> None:
    size = 1000
    for claimed in (10**9, 2**60, 2**64 - 1):
        frame = HEADER.pack(compressor.codec, 1, claimed)
        body = np.frombuffer((frame + varint(2**60) * 9).ljust(OVERHEAD + 50, b"\xff"), np.uint8)
        expected = wire.Compressed(compressor, size, np.dtype(np.float32))
        assert peak_of(lambda e=expected, b=body: wire.decompress(wire.encode(b), e)) < 100_000  # type: ignore[misc]
