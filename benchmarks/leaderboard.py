"""The leaderboard of codecs: bits per number against NMSE, ours and others', on drawn numbers and on real updates.

`python -m benchmarks.codecs --leaderboard --updates DIR [--quick] [--peer NAME=PYTHON ...]`, after
`python -m benchmarks.updates --data-dir DATA --out DIR`. A peer runs in the Python that `--peer` names for it
(`benchmarks/peers.py`); one without is left out, as is a codec of ours that is not there. NMSE is |Q(u) - u|^2 / |u|^2.
Ratios at equal NMSE are interpolated between measured points, in log-log, never beyond them.
"""

import itertools
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.compression import COMPRESSORS, make_compressor
from fedapp.models.layout import Piece
from fedapp.randomness import generator

Row = dict[str, Any]
Input = tuple[NDArray[np.float32], list[tuple[int, ...]]]  # a vector, and its tensors' shapes
DRAWN = 200_000
AT = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001)  # NMSE at which rates are compared
LEAST_COMPARED = 0.01  # smaller errors do not enter the means
COMPARED = (
    ("contextual", "nncodec"),
    ("dithered", "qsgd"),
    ("dithered", "uniform"),
    ("dithered", "eden"),
)
TIMES = ("encode_seconds", "decode_seconds")
OTHER_PHASES = re.compile("-(early|late)|-feedback")  # updates of which no panel is drawn
PEERS = Path(__file__).with_name("peers.py")
# Settings of each codec, from coarse to fine. A codec that is not listed runs with its defaults.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "qsgd": [{"levels": 2**k, "norm": n} for n in ("l2", "max") for k in range(8)],
    "uniform": [{"bits": bits} for bits in range(1, 9)],
    "topk": [{"ratio": r, "values": make_compressor("uniform", bits=b)}
             for r in (0.01, 0.03, 0.1, 0.2, 0.4, 0.7) for b in (4, 6)],
    "randk": [{"ratio": ratio} for ratio in (0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)],
    "contextual": [{"step": s} for s in (0.1, 0.2, 0.35, 0.6, 1.0, 1.7, 2.8, 4.5, 7.0, 11.0)],
    "dithered": [{"nmse": e} for e in (0.001, 0.004, 0.01, 0.03, 0.1, 0.25, 0.5, 1.0)],
    "ternary": [{"ratio": ratio} for ratio in (0.005, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5)],
    "lowrank": [{"rank": rank} for rank in (1, 2, 3, 4, 8, 16, 32, 64)],
}  # fmt: skip


def inputs(updates: Path | None, quick: bool) -> dict[str, Input]:
    """Return the vectors: drawn ones, and one of each file of updates; if it must be quick, of the middle phase."""
    rng = generator(0, "leaderboard")
    found: dict[str, Input] = {
        "Gaussian": (rng.standard_normal(DRAWN, np.float32), [(DRAWN,)]),
        "Student t, 3": (rng.standard_t(3, DRAWN).astype(np.float32), [(DRAWN,)]),
    }
    for path in sorted(updates.glob("*-middle.npz" if quick else "*.npz")) if updates else ():
        with np.load(path, allow_pickle=True) as file:
            found[path.stem] = file["us"][0], [tuple(shape) for shape in file["shapes"]]
    return found


def ours(given: Input, repeats: int, only: Sequence[str]) -> dict[str, list[Row]]:
    """Measure our codecs, or only some, each with all its settings."""
    u, shapes = given
    pieces = tuple(
        Piece(math.prod(s), math.prod(s[1:]) if len(s) > 1 else math.prod(s)) for s in shapes
    )
    rows: dict[str, list[Row]] = {}
    for name in only or COMPRESSORS:
        for setting in SETTINGS.get(name, [{}]):
            codec = make_compressor(name, **setting).for_pieces(pieces)
            payload, seen = codec.transmit(u, generator(0, "codecs"))
            times = partial(timeit.repeat, timer=time.process_time, number=1, repeat=repeats)
            encode = min(times(lambda codec=codec: codec.encode(u, generator(0, "codecs"))))  # type: ignore[misc]
            decode = min(times(lambda codec=codec, p=payload: codec.decode(p, u.size)))  # type: ignore[misc]
            error = float(np.sum((seen.astype(np.float64) - u) ** 2))
            rows.setdefault(name, []).append({
                "setting": str(setting), "bytes": len(payload), "nmse": error / float(np.sum(u.astype(np.float64) ** 2)),
                "encode_seconds": encode, "decode_seconds": decode,
            })  # fmt: skip
    return rows


def of_peer(name: str, python: str, given: Input, repeats: int) -> tuple[str, list[Row]]:
    """Let a peer measure itself; return its version, and its rows."""
    shapes = np.empty(len(given[1]), object)
    shapes[:] = given[1]
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, u=given[0], shapes=shapes)
        file.flush()
        command = [python, str(PEERS), name, file.name, "--repeats", str(repeats)]
        alone = os.environ | {"OMP_NUM_THREADS": "1"}  # as ours
        done = subprocess.run(command, capture_output=True, text=True, env=alone)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    first, *rows = (json.loads(line) for line in done.stdout.splitlines())
    return str(first["version"]), rows


def frontier(rows: list[Row]) -> list[Row]:
    """Return the settings that no other beats in both bits and error, the shortest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["bits"], row["nmse"])):
        if row["nmse"] > 0 and (not best or row["nmse"] < best[-1]["nmse"]):
            best.append(row)
    return best


def bits_at(rows: list[Row], nmse: float) -> float | None:
    """Return the bits that a codec needs for an error, interpolated in log-log; None outside what was measured."""
    best = frontier(rows)
    for one, other in itertools.pairwise(best):
        if one["nmse"] >= nmse >= other["nmse"]:
            errors, bits = np.log(
                [[each[key] for each in (other, one)] for key in ("nmse", "bits")]
            )
            return float(np.exp(np.interp(np.log(nmse), errors, bits)))
    return None


def floor(nmse: float) -> float:
    """Return the bits per number below which no code of Gaussian numbers has this error."""
    return float(np.log2(1 / nmse) / 2)


def show(report: Row, out: Path) -> None:
    """Print a table for each input; write the JSON and the picture."""
    for title, codecs in report["inputs"].items():
        print(
            f"\n{title}: bits per number at NMSE; MB/s of float32, encoding and decoding, of its fastest setting"
        )
        print(
            f"{'codec':<14}" + "".join(f"{each:>8g}" for each in AT) + f"{'encode':>9}{'decode':>9}"
        )
        for name, rows in codecs.items():
            cells = ("-" if (bits := bits_at(rows, each)) is None else f"{bits:.3f}" for each in AT)
            speeds = (
                4e-6 * report["sizes"][title] / min(r[f"{w}_seconds"] for r in rows)
                for w in ("encode", "decode")
            )
            print(
                f"{name:<14}"
                + "".join(f"{c:>8}" for c in cells)
                + "".join(f"{s:>9.0f}" for s in speeds)
            )
        if title == "Gaussian":
            print(f"{'floor':<14}" + "".join(f"{floor(each):>8.3f}" for each in AT))
    for one, other in COMPARED:
        compare(report, one, other)
    draw(report["inputs"], out / "leaderboard.png")
    print(f"\nWritten: {out / 'leaderboard.json'}, {out / 'leaderboard.png'}")


def compare(report: Row, one: str, other: str) -> None:
    """Print what a codec needs of another's bits, of the error at its bits, and of its time, on each input."""
    print(f"\n{one} over {other}: bits at NMSE, their geometric mean; seconds to encode and decode")
    means = []
    for title, codecs in report["inputs"].items():
        if one not in codecs or other not in codecs:
            continue
        pairs = [(bits_at(codecs[one], at), bits_at(codecs[other], at)) for at in AT]
        ratios = [a / b if a and b else None for a, b in pairs]
        known = [r for r, at in zip(ratios, AT, strict=True) if r and at >= LEAST_COMPARED]
        mean = math.exp(np.mean(np.log(known))) if known else math.nan
        means.append(mean)
        cells = "".join(f"{'-' if r is None else f'{r:.2f}':>7}" for r in ratios)
        times = "".join(f"{seconds_ratio(codecs[one], codecs[other], w):>8.2f}" for w in TIMES)
        print(f"{title:<26}{cells}{mean:>9.3f}{times}")
    if means:
        print(f"{'all':<26}{'':>{7 * len(AT)}}{math.exp(np.nanmean(np.log(means))):>9.3f}")


def seconds_ratio(one: list[Row], other: list[Row], which: str) -> float:
    """Return the geometric mean of a codec's time over another's, each at its setting that is closest to an error."""
    ratios = []
    for at in AT:
        if at >= LEAST_COMPARED:
            a, b = (
                min(rows, key=lambda r: abs(math.log(max(r["nmse"], 1e-12) / at)))
                for rows in (one, other)
            )
            ratios.append(a[which] / b[which])
    return math.exp(float(np.mean(np.log(ratios))))


def in_view(row: Row) -> bool:
    """Whether a setting is where codecs are compared, and not beyond the picture."""
    return bool(row["bits"] < 10 and 1e-4 < row["nmse"] < 2)


def draw(found: dict[str, dict[str, list[Row]]], path: Path) -> None:
    """Draw NMSE against bits for drawn numbers and for the middle of training; the floors are those of Gaussian numbers."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    shown = {title: codecs for title, codecs in found.items() if not OTHER_PHASES.search(title)}
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure = Figure(figsize=(3.2 * columns + 1.2, 3 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    for unused in axes.flat[len(shown) :]:
        unused.set_visible(False)
    seen = (
        name
        for codecs in shown.values()
        for name, rows in codecs.items()
        if any(map(in_view, rows))
    )
    names = sorted(set(seen), key=lambda name: (name not in COMPRESSORS, name))
    palette = [colormaps["tab10"](i) for i in range(10)] + [colormaps["Dark2"](i) for i in range(8)]
    colours = dict(zip(names, itertools.cycle(palette)))
    at = np.geomspace(0.02, 10, 200)
    for place, (title, codecs) in zip(axes.flat, shown.items(), strict=False):
        floors = {"Gaussian floor": 2.0 ** (-2 * at), "unbiased floor": 1 / (2.0 ** (2 * at) - 1)}
        for (name, errors), dashes in zip(floors.items(), ("-", ":"), strict=True):
            place.plot(at, errors, dashes, color="black", linewidth=1, label=name)
        for name in filter(codecs.__contains__, names):
            best = frontier(codecs[name])
            dashes = "-" if name in COMPRESSORS else "--"  # others are dashed
            mark = "." if len(best) > 1 else "x"
            place.plot([r["bits"] for r in best], [r["nmse"] for r in best], dashes, marker=mark,
                       linewidth=1.2, color=colours[name], label=name)  # fmt: skip
        place.set(xscale="log", yscale="log", xlim=(0.02, 10), ylim=(1e-4, 2), title=title)
        place.grid(color="#e5e5e5", linewidth=0.6)
    figure.supxlabel("bits per number")
    figure.supylabel("NMSE")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=150)


def run(
    updates: Path | None,
    peers: dict[str, str],
    quick: bool,
    repeats: int,
    out: Path,
    only: Sequence[str] = (),
) -> None:
    """Measure all codecs on all inputs, and show."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=PEERS.parent
    ).stdout.strip()
    report: Row = {
        "commit": commit, "machine": platform.platform(), "processor": platform.machine(), "seed": 0,
        "versions": {"python": sys.version.split()[0], "numpy": version("numpy")}, "sizes": {}, "inputs": {},
    }  # fmt: skip
    for title, given in inputs(updates, quick).items():
        rows = ours(given, repeats, only)
        for name, python in peers.items():
            report["versions"][name], rows[name] = of_peer(name, python, given, repeats)
        for row in itertools.chain(*rows.values()):
            row["bits"] = 8 * row["bytes"] / given[0].size
        report["sizes"][title], report["inputs"][title] = given[0].size, rows
        out.mkdir(parents=True, exist_ok=True)
        (out / "leaderboard.json").write_text(json.dumps(report, indent=1))
        print(f"{title}: measured", file=sys.stderr, flush=True)
    show(report, out)
