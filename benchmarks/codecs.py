"""Compressors: their bits against entropy, plain packing, zlib and zstd, and what their time costs.

`python -m benchmarks.codecs` writes tables, JSON and a PNG. The real updates are those of clients
that train LeNet-5 on digits, or on the mnist of `--data-dir`: several of them, one after the other,
make the large size; the small one is a sample of one's coordinates, in their order.

Entropy is the empirical one, of zero order, of the symbols; for kept positions, that of the mask
which says of every coordinate whether it is kept. Of kept float32 numbers, signs and exponents count
their entropy, mantissas 23 bits. Payloads are whole, frame included. Elias is the bound of Alistarh et
al.'s theorem 3.2 for QSGD's code, without the o(1). Time is that of encoding and decoding, over that of
sending the bytes saved at 1 Gbit/s; MB/s are of float32. zstd needs `pip install zstandard`.

Long, because it is one command: what is measured, the tables and the picture change together.
"""

import argparse
import importlib
import importlib.util
import json
import math
import timeit
import tracemalloc
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

from benchmarks import leaderboard
from fedapp.compression import Compressor, make_compressor
from fedapp.compression.floats import MANTISSA, ZERO, Float16, Identity
from fedapp.compression.payload import OVERHEAD
from fedapp.compression.quantizers import QSGD, Uniform
from fedapp.compression.sparsifiers import RandK, TopK
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.randomness import Generator, generator

Vector = NDArray[np.float32]
Row = dict[str, Any]
SMALL, LARGE = 10_000, 800_000
SCALES = (1_000_000, 10_000_000, 50_000_000)
LINK = 1e9 / 8  # bytes a second
CLIENTS, ROUNDS = 2, 10  # in the training that gives the real updates
CODECS = {
    "qsgd s=1": make_compressor("qsgd", levels=1),
    "qsgd s=4": make_compressor("qsgd", levels=4),
    "qsgd s=16": make_compressor("qsgd", levels=16),
    "qsgd s=16 by 512": make_compressor("qsgd", levels=16, bucket=512),
    "qsgd s=16 max": make_compressor("qsgd", levels=16, norm="max"),
    "uniform 4 bits": make_compressor("uniform", bits=4),
    "uniform 8 bits": make_compressor("uniform", bits=8),
    "uniform 16 bits": make_compressor("uniform", bits=16),
    "topk 1%": make_compressor("topk", ratio=0.01),
    "topk 10%, qsgd": make_compressor("topk", ratio=0.1, values=make_compressor("qsgd")),
    "randk 10%": make_compressor("randk", ratio=0.1),
    "float16": make_compressor("float16"),
}
SCALED = ("qsgd s=16", "qsgd s=16 max", "uniform 8 bits", "topk 1%")
COLUMNS = "codec", "bits", "entropy", "over it", "+bytes", "plain", "zlib", "zstd", "Elias", "encode", "decode", "time", "close"  # fmt: skip
SCALING = "codec", "size", "encode ns each", "decode ns each", "encode memory", "decode memory"
NOTES = """bits are per coordinate, encode and decode in MB/s of float32; time: (encode + decode)
/ time of sending the bytes saved at 1 Gbit/s
close: within 2% of the entropy, below 800,000 coordinates 5% + 64 bytes; (without the buckets' norms)
no*: there are more symbols than numbers; no code whose reader lacks the counts attains the entropy
memory: the peak of Python and NumPy over the vector's 4d bytes, the vector itself not counted;
encoding includes the payload, decoding excludes its result; the coder's own buffer is not seen"""
zstd = importlib.import_module("zstandard") if importlib.util.find_spec("zstandard") else None


@dataclass(frozen=True)
class Content:
    """What a payload has to say, before it is coded."""

    stored: bytes  # the symbols, in the smallest whole-number type
    entropy: float  # bits
    plain: float  # bits, if all symbols take equally many
    norms: int = 0  # bytes of the buckets' norms
    few: bool = False  # fewer numbers than there are symbols to choose from


def entropy(counts: NDArray[Any]) -> float:
    """Return the bits of that many of each symbol."""
    counts = counts[counts > 0]
    return float((counts * np.log2(counts.sum() / counts)).sum())


def of_symbols(symbols: NDArray[Any], limit: int, norms: int = 0) -> Content:
    """Describe symbols in [0, limit)."""
    stored = symbols.astype(np.min_scalar_type(limit - 1)).tobytes()
    plain, few = (limit - 1).bit_length() * symbols.size, limit > symbols.size
    return Content(stored, entropy(np.bincount(symbols)), plain, norms, few)


def of_positions(positions: NDArray[np.int64], size: int, kept: Content) -> Content:
    """Describe positions below `size`, which are stored as gaps, and the numbers kept there."""
    gaps, count = np.diff(positions, prepend=-1) - 1, len(positions)
    stored = gaps.astype(np.min_scalar_type(int(gaps.max()))).tobytes()
    mask = entropy(np.array([count, size - count]))
    plain = (size - 1).bit_length() * count
    return Content(stored + kept.stored, mask + kept.entropy, plain + kept.plain)


def content(codec: Compressor, v: Vector, payload: bytes, rng: Generator) -> Content:
    """Describe what a codec sends for v; the generator is as it was for the payload."""
    match codec:
        case QSGD():
            norms, symbols = codec.quantize(v, rng)
            return of_symbols(symbols, 2 * codec.levels + 1, norms.nbytes if codec.bucket else 0)
        case Uniform():
            return of_symbols(codec.quantize(v, rng)[1], 1 << codec.bits)
        case Float16():
            return of_symbols(np.frombuffer(payload, "<u2", v.size, OVERHEAD + 2), 1 << 16)
        case TopK() | RandK():
            positions = codec.choose(v, rng)
            kept = content(codec.values, v[positions], payload, rng)
            return of_positions(positions, v.size, kept)
        case Identity():
            bits = v.view(np.uint32)
            leading = np.where(bits == 0, ZERO, bits >> MANTISSA)
            mantissas = MANTISSA * int(np.count_nonzero(bits))
            return Content(v.tobytes(), entropy(np.bincount(leading)) + mantissas, 32 * v.size)
    raise TypeError(f"what {codec} sends is not known here")


def elias_bits(codec: Compressor, size: int) -> float | None:
    """Return Alistarh et al.'s bound on the expected bits of a codec, if it is QSGD with l2 norms."""
    if not isinstance(codec, QSGD) or codec.norm != "l2":
        return None
    s, d = codec.levels, codec.bucket or size  # a last, shorter bucket counts as part of one
    nonzero = s * (s + math.sqrt(d))
    bits = (3 + 1.5 * math.log2(2 * (s * s + d) / nonzero)) * nonzero
    return (32 + bits) * size / d


def is_close(payload: int, bits: float, size: int) -> bool:
    """Tell whether a payload's bytes are within 2% of the entropy; for few numbers, 5% + 64."""
    return bool(payload <= (1.02 * bits / 8 if size >= LARGE else 1.05 * bits / 8 + 64))


def timed(codec: Compressor, v: Vector, repeats: int) -> tuple[bytes, float, float]:
    """Return the payload, and the seconds of the fastest encoding and decoding."""
    payload = codec.encode(v, generator(0, "codecs"))
    times = partial(timeit.repeat, number=1, repeat=repeats)
    encode = min(times(lambda: codec.encode(v, generator(0, "codecs"))))
    return payload, encode, min(times(lambda: codec.decode(payload, v.size)))


def measure(codec: Compressor, v: Vector, repeats: int) -> Row:
    """Measure a codec on a vector."""
    payload, encode, decode = timed(codec, v, repeats)
    sent = content(codec, v, payload, generator(0, "codecs"))
    bits = {
        "bits": 8 * len(payload), "entropy": sent.entropy, "plain": sent.plain,
        "zlib": 8 * len(zlib.compress(sent.stored, 6)),
        "zstd": 8 * len(zstd.ZstdCompressor(3).compress(sent.stored)) if zstd else None,
        "elias": elias_bits(codec, v.size),
    }  # fmt: skip
    return {key: each if each is None else each / v.size for key, each in bits.items()} | {
        "excess_bytes": len(payload) - sent.entropy / 8,
        "norms_bytes": sent.norms,
        "encode_mb_s": v.nbytes / encode / 1e6,
        "decode_mb_s": v.nbytes / decode / 1e6,
        "time": (encode + decode) / ((v.nbytes - len(payload)) / LINK),
        "few": sent.few,
        "close": is_close(len(payload), sent.entropy, v.size),
        "close_without_norms": is_close(len(payload) - sent.norms, sent.entropy, v.size),
    }


def measure_scaling(codec: Compressor, v: Vector, repeats: int) -> Row:
    """Measure nanoseconds per coordinate, and peak memory over the vector's."""
    payload, encode, decode = timed(codec, v, repeats)
    row = {"encode_ns": 1e9 * encode / v.size, "decode_ns": 1e9 * decode / v.size}
    tracemalloc.start()
    codec.encode(v, generator(0, "codecs"))
    row["encode_memory"] = tracemalloc.get_traced_memory()[1] / v.nbytes
    tracemalloc.reset_peak()
    codec.decode(payload, v.size)
    row["decode_memory"] = tracemalloc.get_traced_memory()[1] / v.nbytes - 1
    tracemalloc.stop()
    return row


def real_updates(data_dir: str) -> tuple[list[Vector], dict[str, float]]:
    """Train LeNet-5 by FedAvg; return the clients' last u = x - y, and the test figures."""
    config = parse_run_config({
        "dataset": "mnist" if data_dir else "digits", "data-dir": data_dir, "model": "lenet5",
        "partition": "iid", "num-clients": 10, "local-steps": 10, "batch-size": 16, "lr": 0.1,
    })  # fmt: skip
    problem = make_problem(config)
    start, buffers = problem.initial()
    x = torch.from_numpy(start)
    for round_ in range(ROUNDS):
        updates = []
        for client in range(CLIENTS):
            y, objective = x.clone(), problem.objective(client)
            rng = generator(0, "batches", round_, client)
            for batch in objective.batches(config.local_work, rng):
                y.sub_(objective.loss_gradient(y, batch)[1], alpha=config.lr)
            updates.append(x - y)
        x = x - torch.stack(updates).mean(0)
    return [u.numpy() for u in updates], problem.evaluate(x.numpy(), buffers)


def vectors(size: int, updates: list[Vector], rng: Generator) -> dict[str, Vector]:
    """Return a vector of each kind."""
    one = updates[0]
    if size < one.size:
        real = one[np.sort(rng.choice(one.size, size, replace=False))]
    else:
        real = np.resize(np.concatenate(updates), size)
    return {
        "Gaussian": rng.standard_normal(size, np.float32),
        "Student t, 2 degrees of freedom": rng.standard_t(2, size).astype(np.float32),
        "real updates": real,
    }


def cells(row: Row) -> list[str]:
    """Return a row of the table as text."""
    keys = ("bits", "entropy", "plain", "zlib", "zstd", "elias")
    bits, least, *others = ("" if row[key] is None else f"{row[key]:.4g}" for key in keys)
    over = f"{row['bits'] / row['entropy'] - 1:+.1%}", f"{row['excess_bytes']:+,.0f}"
    speeds = f"{row['encode_mb_s']:.0f}", f"{row['decode_mb_s']:.0f}", f"{row['time']:.2f}"
    close = "yes" if row["close"] else "no*" if row["few"] else "no"
    if row["norms_bytes"]:
        close += " (yes)" if row["close_without_norms"] else " (no)"
    return [bits, least, *over, *others, *speeds, close]


def show(report: Row, path: Path) -> None:
    """Print the tables; write JSON and the picture."""
    console = Console(width=125)

    def table(title: str, *columns: str) -> Table:
        name, *numbers = (Column(column, no_wrap=True) for column in columns)
        for column in numbers:
            column.justify = "right"
        return Table(name, *numbers, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))

    for title, rows in report["bits"].items():
        bits = table(title, *COLUMNS)
        for name, row in rows.items():
            bits.add_row(name, *cells(row))
        console.print(bits)
    if report["scaling"]:
        scaling = table("scaling, Gaussian", *SCALING)
        for name, sizes in report["scaling"].items():
            for size, row in sizes.items():
                scaling.add_row(name, f"{int(size):,}", *(f"{each:.2f}" for each in row.values()))
        console.print(scaling)
    console.print(NOTES if zstd else f"{NOTES}\nzstd: pip install zstandard", highlight=False)
    path.mkdir(parents=True, exist_ok=True)
    (path / "codecs.json").write_text(json.dumps(report, indent=1))
    draw(report["bits"][f"real updates, {LARGE:,}"], path / "codecs.png")
    console.print(f"Written: {path / 'codecs.json'}, {path / 'codecs.png'}")


def draw(rows: dict[str, Row], path: Path) -> None:
    """Draw bits, and time over that of sending what is saved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(5, 3))
    places = np.arange(len(rows))
    marks = (  # zlib and zstd are often near each other
        ("plain", "plain packing", "s", "#999999", 45, 0), ("zlib", "zlib", "^", "#e69f00", 45, -0.2),
        ("zstd", "zstd", "v", "#cc79a7", 45, 0.2), ("bits", "payload", "o", "#0072b2", 65, 0),
        ("entropy", "entropy", "|", "black", 260, 0),
    )  # fmt: skip
    for key, label, marker, colour, area, shift in marks:
        at = [math.nan if row[key] is None else row[key] for row in rows.values()]
        left.scatter(at, places + shift, area, colour, marker=marker, label=label, zorder=3)
    left.set(xscale="log", xlabel="bits per coordinate", yticks=places, yticklabels=list(rows))
    left.xaxis.set_major_formatter("{x:g}")
    left.invert_yaxis()
    left.legend(frameon=False, ncols=5, loc="lower left", bbox_to_anchor=(-0.02, 1), fontsize=9)
    times = [row["time"] for row in rows.values()]
    right.barh(places, times, 0.6, color=["#0072b2" if each < 1 else "#d55e00" for each in times])
    right.axvline(1, color="black", linewidth=1, linestyle="--")
    for place, each in zip(places, times, strict=True):
        right.annotate(
            f"{each:.2f}", (1.02, place), xycoords=("axes fraction", "data"), va="center"
        )
    right.set_xlabel("encoding and decoding time over that of\nsending the saved bytes at 1 Gbit/s")
    for axes in (left, right):
        axes.grid(color="#e5e5e5", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Updates of LeNet-5, {LARGE:,} coordinates", fontsize=11)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data-dir", default="", help="holds mnist/; without it, digits are used")
    parser.add_argument("--repeats", type=int, default=9, help="of each call; the fastest counts")
    parser.add_argument("--scaling", action="store_true", help="up to 50 million coordinates too")
    parser.add_argument("--out", type=Path, default=Path("benchmark-results"))
    parser.add_argument("--leaderboard", action="store_true", help="see benchmarks/leaderboard.py")
    parser.add_argument("--quick", action="store_true", help="leaderboard: middle phase, once each")
    parser.add_argument("--updates", type=Path, help="leaderboard: files of benchmarks.updates")
    parser.add_argument("--peer", action="append", default=[], help="leaderboard: NAME=PYTHON")
    parser.add_argument("--only", nargs="*", default=(), help="leaderboard: only these of ours")
    arguments = parser.parse_args()
    if arguments.leaderboard:
        peers = dict(each.split("=", 1) for each in arguments.peer)
        repeats = 1 if arguments.quick else arguments.repeats
        only, quick = arguments.only, arguments.quick
        leaderboard.run(arguments.updates, peers, quick, repeats, arguments.out, only)
        return
    updates, test = real_updates(arguments.data_dir)
    accuracy = test["test_accuracy"]
    print(f"{len(updates)} updates of {updates[0].size:,} numbers; test accuracy {accuracy:.0%}")
    report: Row = {"bits": {}, "scaling": {}}
    for size in (SMALL, LARGE):
        for kind, v in vectors(size, updates, generator(0, "vectors")).items():
            rows = {name: measure(codec, v, arguments.repeats) for name, codec in CODECS.items()}
            report["bits"][f"{kind}, {size:,}"] = rows
    for name in SCALED if arguments.scaling else ():
        report["scaling"][name] = {}
        for size in SCALES:
            v = generator(0, "vectors").standard_normal(size, np.float32)
            report["scaling"][name][str(size)] = measure_scaling(CODECS[name], v, 3)
    show(report, arguments.out)


if __name__ == "__main__":
    main()
