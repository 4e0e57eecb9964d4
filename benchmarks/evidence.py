"""Where the numbers in the documents come from, and whether the present code still gives them.

`docs/evidence.json` has an entry for each picture and each table of measurements in docs/: the command, the commit, a digest of
the sweep file, the seeds and the machine that gave it, and one cell: a run of that file, cut short to its first rounds where the
whole takes minutes, with the value that it must give. A seal, which is a digest of the tables and pictures themselves, shows
that a number was changed by hand. Without arguments this reruns every cell; a name (or the beginning of one) selects entries.
Cells on data that are not in the repository need --data-dir.

    python -m benchmarks.evidence                     # rerun the cells, exit code 1 if one differs
    python -m benchmarks.evidence --stamp fedbcgd.md  # after a table was made again: note commit, digest, machine, values
    python -m benchmarks.evidence --stamp gradma.md/slice --results results/gradma  # the value of the table's own run
    python -m benchmarks.evidence --seal gradma.md/slice  # only words of the table, or how it is laid out, have changed
"""

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import fedapp
from fedapp.data.sources import HUB
from fedapp.errors import ConfigError
from fedapp.report.runs import Run, load_runs, reach
from fedapp.sweeps import read_runs
from fedapp.tables import Value

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FILE = DOCS / "evidence.json"


@dataclass(frozen=True)
class Cell:
    """One value of a table: a run of the entry's sweep file, what is read from it, and how near it must be."""

    run: str  # its name in the sweep file; empty: the file, or the keys, are one run
    metric: str
    take: str  # "last", "best", "round <number>", or "<cost> to <target>", such as "uplink_bytes to 0.01"
    value: float
    shown: str = (
        ""  # as the document writes it; empty: it is of a round that the document does not show
    )
    tolerance: float = 1e-6  # relative; processors differ in a network's last bits
    keys: dict[str, Value] = field(default_factory=dict)  # other than the file's, to cut it short


@dataclass(frozen=True)
class Entry:
    """A table or figure of a document."""

    name: str
    document: str  # in docs/
    section: str  # the heading that it is under
    command: str
    commit: str  # that gave it, or wrote it down if that was not noted; empty: every commit does
    machine: str
    seeds: list[int]
    also: list[str] = field(default_factory=list)  # further headings with tables of the same runs
    preset: str = ""  # the sweep file in experiments/, a directory of them, or none
    digest: str = ""  # digests the preset's runs when the table was made
    figures: list[str] = field(default_factory=list)  # pictures in docs/ that show it
    why_no_cell: str = ""  # if there is none
    cell: Cell | None = None


def load_entries(path: Path = FILE) -> list[Entry]:
    """Return what the file lists."""
    entries = []
    for given in json.loads(path.read_text())["entries"]:
        cell = given.pop("cell", None)
        entries.append(Entry(**given, cell=Cell(**cell) if cell else None))
    return entries


def choose(names: Sequence[str], path: Path = FILE) -> set[str]:
    """Return the names of the entries that are named in full or, where there is none, by how they begin; all for none."""
    known = [entry.name for entry in load_entries(path)]
    return {
        known_one
        for name in names or [""]
        for known_one in ([name] if name in known else known)
        if known_one.startswith(name)
    }


def illustrations(path: Path = FILE) -> set[str]:
    """Return the pictures in docs/ that show no measurement."""
    return set(json.loads(path.read_text())["illustrations"])


def digest_of(preset: str, root: Path = ROOT) -> str:
    """Return a digest of the runs of a sweep file, or of all in a directory: names and keys, whatever the layout and comments."""
    place = root / preset
    files = sorted(place.glob("*.toml")) if place.is_dir() else [place]
    runs = sorted((run.name, sorted(run.values.items())) for f in files for run in read_runs(f))
    return hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:12]


def descriptions(path: Path = FILE) -> set[str]:
    """Return the sections ("page.md/heading", or "page.md/*") whose tables describe and measure nothing."""
    return set(json.loads(path.read_text())["descriptions"])


def seals(path: Path = FILE) -> dict[str, str]:
    """Return the digests of what the documents showed when each entry was stamped, by the entries' names."""
    return dict(json.loads(path.read_text())["seals"])


def tables(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the tables of a page, each with the heading above it and its rows; spaces between cells do not count."""
    heading, rows = "", list[str]()
    for line in [*page.read_text().splitlines(), ""]:
        if line.startswith("|"):
            rows.append("|".join(cell.strip() for cell in line.split("|")))
            continue
        if len(rows) > 1:
            yield heading, rows
        rows = []
        if found := re.match(r"#+ (.*)", line):
            heading = found[1]


def seal_of(entry: Entry, docs: Path = DOCS) -> str:
    """Return a digest of the tables under an entry's headings and of its pictures."""
    headings = {entry.section, *entry.also}
    shown = [rows for heading, rows in tables(docs / entry.document) if heading in headings]
    pictures = [hashlib.sha256((docs / name).read_bytes()).hexdigest() for name in entry.figures]
    return hashlib.sha256(json.dumps([shown, pictures]).encode()).hexdigest()[:12]


def data_of(entry: Entry) -> str:
    """Return the data set that an entry's cell needs and the installation lacks; empty if there is none."""
    name = str(_keys_of(entry).get("dataset", ""))
    return name if name in HUB else ""


def _keys_of(entry: Entry) -> dict[str, Any]:
    """Return the config keys of a cell's run."""
    assert entry.cell
    if not entry.preset:
        return dict(entry.cell.keys)
    found = [run for run in read_runs(ROOT / entry.preset) if run.name == entry.cell.run]
    if not found:
        raise ConfigError(f"{entry.preset} has no run {entry.cell.run!r}: name one of its runs.")
    return {**found[0].values, **entry.cell.keys}


def measure(entry: Entry, out: Path, places: Sequence[Path] = ()) -> float:
    """Run an entry's cell, on data in the first of `places` that has them, and return its value."""
    assert entry.cell
    keys = {**_keys_of(entry), "results-dir": str(out), "run-name": "cell"}
    if data := data_of(entry):
        keys["data-dir"] = str(next(place for place in places if (place / data).is_dir()))
    fedapp.run(keys, show=False)
    (run,) = load_runs([out / "cell"])
    return read(entry.cell, run)


def read(cell: Cell, run: Run) -> float:
    """Return a cell's value from a run."""
    if cell.take.startswith("round "):
        number = int(cell.take.removeprefix("round "))
        return next(float(r[cell.metric]) for r in run.rounds if r["round"] == number)
    if cell.take == "last":
        return float(next(v for v in reversed(run.column(cell.metric)) if v is not None))
    if cell.take == "best":
        return run.result(cell.metric)
    cost, _, target = cell.take.partition(" to ")
    reached = reach(run, float(target), cell.metric)
    return float(getattr(reached, cost)) if reached else float("inf")


def differs(cell: Cell, value: float) -> bool:
    """Tell whether a value is not the documented one."""
    return not abs(value - cell.value) <= cell.tolerance * abs(cell.value)


def machine() -> str:
    """Return what a reader must know of this machine."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def digest_at(commit: str, preset: str) -> str:
    """Return the digest of a sweep file as a commit has it; empty if it has none."""
    packed = git("archive", commit, "experiments")
    if not packed:
        return ""
    with tempfile.TemporaryDirectory() as place, tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(place, filter="data")
        return digest_of(preset, Path(place)) if (Path(place) / preset).exists() else ""


def git(*words: str) -> bytes:
    """Return what git prints; nothing if it refuses."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False).stdout


def stamp(
    names: list[str],
    places: Sequence[Path] = (),
    results: Path | None = None,
    commit: str = "",
    path: Path = FILE,
) -> None:
    """Note for some entries which commit made their tables, on this machine.

    A cell's value is that of the table's own run if `results` has it, and otherwise of a run made now.
    """
    content = json.loads(path.read_text())
    chosen = choose(names, path)
    commit = commit or git("rev-parse", "--short=12", "HEAD").decode().strip()
    for given, entry in zip(content["entries"], load_entries(path), strict=True):
        if entry.name not in chosen:
            continue
        given |= {"commit": commit, "machine": machine()}
        content["seals"][entry.name] = seal_of(entry)
        if entry.preset:
            given["digest"] = digest_of(entry.preset)
            if digest_at(commit, entry.preset) != given["digest"]:
                raise ConfigError(
                    f"{entry.preset} at {commit} has other runs than now: commit it, and stamp then."
                )
        if entry.cell and results:
            (run,) = load_runs([results / entry.cell.run])
            given["cell"]["value"] = read(entry.cell, run)
        elif entry.cell:
            with tempfile.TemporaryDirectory() as out:
                given["cell"]["value"] = measure(entry, Path(out), places)
        print(f"{entry.name}: {given['commit']} {given.get('digest', '')} {given.get('cell', '')}")
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def seal(names: list[str], path: Path = FILE) -> None:
    """Note what the documents show for some entries, whose numbers are those of the commit that is noted already."""
    content, chosen = json.loads(path.read_text()), choose(names, path)
    found = {e.name: seal_of(e) for e in load_entries(path) if e.name in chosen}
    content["seals"] = dict(sorted({**content["seals"], **found}.items()))
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def main() -> int:
    """Rerun cells, or stamp or seal entries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "names", nargs="*", help="entries, by the beginning of their names; default: all"
    )
    parser.add_argument("--stamp", action="store_true", help="note the commit and the values")
    parser.add_argument("--seal", action="store_true", help="note the tables as they are")
    parser.add_argument("--results", type=Path, help="with --stamp: the runs of the table itself")
    parser.add_argument("--commit", default="", help="with --stamp: what made them; default: HEAD")
    parser.add_argument(
        "--data-dir",
        type=Path,
        action="append",
        default=[],
        help="a directory of data sets; may be repeated; without the data, cells that need them are left out",
    )
    arguments = parser.parse_args()
    places = [place.resolve() for place in arguments.data_dir]
    if (arguments.stamp or arguments.seal) and not arguments.names:
        parser.error("name the entries whose tables have changed")
    if arguments.seal:
        seal(arguments.names)
        return 0
    if arguments.stamp:
        stamp(arguments.names, places, arguments.results, arguments.commit)
        return 0
    wrong = 0
    chosen = choose(arguments.names)
    for entry in load_entries():
        if not entry.cell or entry.name not in chosen:
            continue
        data = data_of(entry)
        if data and not any((place / data).is_dir() for place in places):
            print(f"{entry.name}: left out: no --data-dir has {data}")
            continue
        with tempfile.TemporaryDirectory() as out:
            value = measure(entry, Path(out), places)
        bad = differs(entry.cell, value)
        wrong += bad
        said = "differs" if bad else "agrees"
        print(
            f"{entry.name}: {entry.cell.take} {entry.cell.metric} {value:.6g}, documented {entry.cell.value:.6g}: {said}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
