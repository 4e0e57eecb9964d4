"""Other codecs, for the leaderboard: each runs in its own Python and times itself.

`python benchmarks/peers.py PEER INPUT.npz` reads a vector (`u`), the shapes of its tensors (`shapes`, `(-1,)` where a
row of numbers is all there is) and codes it at the peer's rates. It prints one line of JSON for each: setting, bytes,
NMSE, seconds of encoding and decoding, the fastest of `--repeats`. It needs NumPy and the peer, and nothing of fedapp.

Every peer gets the vector divided by its root mean square, whose four bytes count.
"""

import argparse
import contextlib
import importlib
import io
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

Vector = Any  # float32 numbers
Encoded = tuple[Any, int]  # and its bytes
Coding = tuple[str, Callable[[], Encoded], Callable[[Any], Vector]]  # setting, encode, decode
SCALE = 4  # bytes of the root mean square


def nncodec(u: Vector, shapes: list[tuple[int, ...]]) -> Iterator[Coding]:
    """Yield NNC (ISO/IEC 15938-17) with dependent quantization, the same step size for all tensors."""
    nnc = importlib.import_module("nncodec.nnc")

    sizes = [int(np.prod(shape)) for shape in shapes]
    parts = np.split(u, np.cumsum(sizes)[:-1])
    tensors = {f"t{i:03}": p.reshape(s) for i, (p, s) in enumerate(zip(parts, shapes, strict=True))}

    def encode(qp: int, path: str) -> Encoded:
        copies = {name: tensor.copy() for name, tensor in tensors.items()}
        data = nnc.compress(
            copies, path, qp=qp, nonweight_qp=qp, qp_per_tensor=dict.fromkeys(tensors, qp),
            use_dq=True, param_opt=True, row_skipping=True, return_bitstream=True,
        )  # fmt: skip
        return data, len(data)

    def decode(data: Any) -> Vector:
        found = nnc.decompress(data)
        return np.concatenate([np.ravel(found[name]) for name in tensors])

    with tempfile.TemporaryDirectory() as directory:
        for qp in (-22, -18, -14, -10, -6, -4, -2, 0, 2, 4, 6, 8, 10, 12):
            path = f"{directory}/stream.nnc"
            yield f"qp={qp}", lambda qp=qp, path=path: encode(qp, path), decode  # type: ignore[misc]


def eden(u: Vector, shapes: list[tuple[int, ...]]) -> Iterator[Coding]:
    """Yield EDEN at each of its rates.

    Its package packs bits and has no entropy coder: the bytes are the entropy of the quantized numbers, which a coder would
    come near to, and the times leave that coder out.
    """
    torch = importlib.import_module("torch")
    codec = importlib.import_module("srrcomp").Eden(gpuacctype="torch")
    vector = torch.from_numpy(u)

    def entropy(part: Any) -> float:
        bins = codec.utils["cpu"]["BitsToBins"](part["packed_bins"].to(torch.int32), part["nbits"])
        counts = np.unique(bins.numpy(), return_counts=True)[1]
        return float((counts * np.log2(counts.sum() / counts)).sum())

    for bits in range(1, 9):
        compress = partial(codec.compress, vector, bits, 1)
        size = sum(math.ceil(entropy(part) / 8) + SCALE for part in compress())

        def encode(compress: Any = compress, size: int = size) -> Encoded:
            return compress(), size

        yield f"bits={bits}", encode, lambda parts: codec.decompress(parts).numpy()


def zfp(u: Vector, shapes: list[tuple[int, ...]]) -> Iterator[Coding]:
    """Yield zfp on the vector as one row, with a bound on the error."""
    zfpy = importlib.import_module("zfpy")

    for tolerance in (0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0):

        def encode(tolerance: float = tolerance) -> Encoded:
            data = zfpy.compress_numpy(u, tolerance=tolerance)
            return data, len(data)

        yield f"tolerance={tolerance}", encode, zfpy.decompress_numpy


def sz3(u: Vector, shapes: list[tuple[int, ...]]) -> Iterator[Coding]:
    """Yield SZ3 on the vector as one row, with a bound on the error."""
    pysz = importlib.import_module("pysz")
    sz = pysz.sz

    for bound in (0.06, 0.12, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0):
        config = pysz.szConfig()
        config.errorBoundMode, config.absErrorBound = pysz.szErrorBoundMode.ABS, bound

        def encode(config: Any = config) -> Encoded:
            data, _ = sz.compress(u, config)
            return data, data.nbytes

        yield f"bound={bound}", encode, lambda data: sz.decompress(data, np.float32, u.shape)[0]


def zstd_float16(u: Vector, shapes: list[tuple[int, ...]]) -> Iterator[Coding]:
    """Yield half precision, and zstd on its bytes, the two of each number apart."""
    zstandard = importlib.import_module("zstandard")

    for level in (3, 19):

        def encode(level: int = level) -> Encoded:
            planes = u.astype("<f2").view(np.uint8).reshape(-1, 2).T.tobytes()
            data = zstandard.ZstdCompressor(level).compress(planes)
            return data, len(data)

        def decode(data: bytes) -> Vector:
            planes = np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint8)
            halves = np.ascontiguousarray(planes.reshape(2, -1).T).view("<f2")
            return halves.ravel().astype(np.float32)

        yield f"level={level}", encode, decode


# Peer -> (its settings, the package to install).
PEERS: dict[str, tuple[Callable[[Vector, list[tuple[int, ...]]], Iterator[Coding]], str]] = {
    "nncodec": (nncodec, "nncodec"),
    "eden": (eden, "srrcomp"),
    "zfp": (zfp, "zfpy"),
    "sz3": (sz3, "pysz"),
    "zstd-float16": (zstd_float16, "zstandard"),
}


def measured(coding: Coding, u: Vector, repeats: int) -> dict[str, Any]:
    """Encode and decode some times; return bytes, error and the least processor times."""
    setting, encode, decode = coding
    encoding, decoding = [], []
    for _ in range(repeats):
        start = time.process_time()
        data, size = encode()
        encoding.append(time.process_time() - start)
        start = time.process_time()
        seen = decode(data)
        decoding.append(time.process_time() - start)
    error = float(np.sum((seen.astype(np.float64) - u) ** 2) / np.sum(u.astype(np.float64) ** 2))
    return {
        "setting": setting,
        "bytes": size + SCALE,
        "nmse": error,
        "encode_seconds": min(encoding),
        "decode_seconds": min(decoding),
    }


def main() -> None:
    """Measure one peer on one vector."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("input")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    codings, package = PEERS[arguments.peer]
    with np.load(arguments.input, allow_pickle=True) as file:
        u, shapes = file["u"].astype(np.float32), [tuple(shape) for shape in file["shapes"]]
    u = u / np.float32(np.sqrt(np.mean(u.astype(np.float64) ** 2)))
    print(json.dumps({"version": version(package)}), flush=True)
    for coding in codings(u, shapes):
        with contextlib.redirect_stdout(io.StringIO()):  # some peers talk
            row = measured(coding, u, arguments.repeats)
        print(json.dumps(row), file=sys.__stdout__, flush=True)


if __name__ == "__main__":
    main()
