"""What the server expects of a client's arrays, and the check that they are that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedapp.compression import Compressor, NotFiniteError, PayloadError
from fedapp.refusals import Reason
from fedapp.wire.arrays import Arrays, Shape, WireError, decode, is_finite, is_moderate


@dataclass(frozen=True)
class Compressed:
    """An array that holds the payload of a compressed vector."""

    compressor: Compressor
    size: int
    dtype: np.dtype[Any]  # the vector's


Spec = Mapping[str, tuple[np.dtype[Any], Shape] | Compressed]


def checked_arrays(record: ArrayRecord, spec: Spec) -> Arrays:
    """Decode a client's arrays; raise WireError if one is not as expected, or too large to compute with."""
    if set(record) != set(spec):
        raise WireError(f"it sent {sorted(record)} instead of {sorted(spec)}")
    arrays = {}
    for name, expected in spec.items():
        try:
            if isinstance(expected, Compressed):
                arrays[name] = decompress(record[name], expected)
            else:
                arrays[name] = decode(record[name], expected)
        except WireError as error:
            raise WireError(f"of '{name}': {error}", error.reason) from None
        if not is_moderate(arrays[name]):
            wrong = "so large that sums would not be" if is_finite(arrays[name]) else "not"
            raise WireError(f"'{name}' holds numbers that are {wrong} finite", Reason.NOT_FINITE)
    return arrays


def decompress(array: Array, expected: Compressed) -> NDArray[Any]:
    """Decode a payload into its vector."""
    payload = decode(array)
    if payload.dtype != np.uint8 or payload.ndim != 1:
        raise WireError(f"it is {payload.dtype} of shape {payload.shape} instead of bytes")
    try:
        vector = expected.compressor.decode(payload.data, expected.size)
    except NotFiniteError as error:
        raise WireError(str(error), Reason.NOT_FINITE) from None
    except PayloadError as error:
        raise WireError(str(error)) from None
    return vector.astype(expected.dtype, copy=False)
