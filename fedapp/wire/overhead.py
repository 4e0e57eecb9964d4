"""What records and Flower add to the numbers of one client's message, in bytes.

Flower takes a message's content apart into objects: every record, every array and every 5 MiB of an array's data. Each
is sent with a head, which names its kind, its length and its parts by their digests. The arrays' data are counted
elsewhere (`nbytes`); here is the rest, for a client as if it were alone on its node. So that the count depends neither
on the engine, nor on the number of nodes, nor on whether a run was resumed, whole numbers count as the longest (10
bytes); names of runs and directories, and lists of the states that checkpoints refer to, do not count; and objects that
happen to be equal, of which Flower sends one, count as often as they occur.

What Flower adds to a message around its content, and how that compares with its own counters: docs/bytes.md.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, SType

from fedapp.wire.arrays import Arrays, encoded_size

CHUNK = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
DIGEST = 64 * "0"  # which stands for a part of an object
LONGEST = -1 << 63  # a whole number that takes 10 bytes
UNCOUNTED = ("run", "state-dir")  # texts that depend on where a run lives


def content_overhead(records: Mapping[str, ArrayRecord | Arrays | int]) -> int:
    """Return what is sent of a message's content beside its arrays' data; a record may be given by its bytes."""
    sizes = [r if isinstance(r, int) else record_overhead(r) for r in records.values()]
    return _references("RecordDict", tuple(records)) + sum(sizes)


def record_overhead(record: ArrayRecord | Arrays) -> int:
    """Return what is sent of a record of arrays beside their data; the arrays may be not encoded yet."""
    if isinstance(record, ArrayRecord):
        arrays = [_array(a.dtype, tuple(a.shape), a.stype, len(a.data)) for a in record.values()]
    else:
        arrays = [
            _array(str(a.dtype), a.shape, SType.NUMPY, encoded_size(a)) for a in record.values()
        ]
    return _references("ArrayRecord", tuple(record)) + sum(arrays)


def config_bytes(head: Mapping[str, Any]) -> int:
    """Return the bytes of a config record."""
    return _config(tuple((key, _longest(key, value)) for key, value in head.items()))


@lru_cache
def metrics_bytes(whole: tuple[str, ...], real: tuple[str, ...]) -> int:
    """Return the bytes of a record of metrics that have these names."""
    values: dict[str, Any] = dict.fromkeys(whole, LONGEST)
    return len(MetricRecord(values | dict.fromkeys(real, 0.0)).deflate())


@lru_cache
def _config(head: tuple[tuple[str, Any], ...]) -> int:
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in head}
    return len(ConfigRecord(values).deflate())


def _longest(key: str, value: Any) -> Any:
    """Return a value whose bytes are those to be counted."""
    if isinstance(value, list | tuple):
        return tuple(_longest(key, each) for each in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return LONGEST
    return "" if key in UNCOUNTED else value


@lru_cache
def _array(dtype: str, shape: tuple[int, ...], stype: str, size: int) -> int:
    """Return the bytes of an array's own object, and of the heads of its chunks."""
    starts = range(0, size, CHUNK)
    chunks = sum(_head("ArrayChunk", 0, min(CHUNK, size - start)) for start in starts)
    own = {"dtype": dtype, "shape": shape, "stype": stype, "arraychunk_ids": [*range(len(starts))]}
    body = _body(own)
    return chunks + _head("Array", len(starts), body) + body


@lru_cache
def _references(kind: str, names: tuple[str, ...]) -> int:
    """Return the bytes of an object that only names its parts."""
    body = _body(dict.fromkeys(names, DIGEST))
    return _head(kind, len(names), body) + body


def _head(kind: str, parts: int, body: int) -> int:
    return len(f"{kind} {','.join(parts * [DIGEST])} {body}") + 1


def _body(value: Any) -> int:
    return len(json.dumps(value).encode())
