"""Where the numbers in the documents come from, and whether the present code still gives them.

`docs/evidence.json` has an entry for each picture in docs/ and for most tables: the command, the seeds and the machine that gave
it; if it is stamped, the commit and a digest of the sweep file; and where it is cheap one cell: a run of that file, cut short if
need be, with the value that it must give. Without arguments this reruns every cell; a name (or the beginning of one) selects entries.

    python -m benchmarks.evidence                    # rerun the cells, exit code 1 if one differs
    python -m benchmarks.evidence --stamp fedbcgd.md  # after a table was made again: note commit, digest, machine, values
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedapp
from fedapp.errors import ConfigError
from fedapp.report.runs import load_runs, reach
from fedapp.sweeps import read_runs
from fedapp.tables import Value

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "evidence.json"


@dataclass(frozen=True)
class Cell:
    """One value of a table: a run of the entry's sweep file, what is read from it, and how near it must be."""

    run: str  # its name in the sweep file; empty: the file, or the keys, are one run
    metric: str
    take: str  # "last", "best", or "<cost> to <target>", such as "uplink_bytes to 0.01"
    value: float
    shown: str  # as the document writes it
    tolerance: float = 1e-6  # relative; processors differ in a network's last bits
    keys: dict[str, Value] = field(default_factory=dict)  # other than the file's, to cut it short


@dataclass(frozen=True)
class Entry:
    """A table or figure of a document."""

    name: str
    document: str  # in docs/
    section: str  # the heading that it is under
    command: str
    commit: str  # that gave it; empty: it was not noted
    machine: str
    seeds: list[int]
    preset: str = ""  # the sweep file in experiments/, or none
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


def illustrations(path: Path = FILE) -> set[str]:
    """Return the pictures in docs/ that show no measurement."""
    return set(json.loads(path.read_text())["illustrations"])


def digest_of(preset: str) -> str:
    """Return a digest of a sweep file's runs: their names and keys, whatever the file's layout and comments."""
    runs = sorted((run.name, sorted(run.values.items())) for run in read_runs(ROOT / preset))
    return hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:12]


def measure(entry: Entry, out: Path) -> float:
    """Run an entry's cell and return its value."""
    assert entry.cell
    cell, values = entry.cell, {}
    if entry.preset:
        found = [run for run in read_runs(ROOT / entry.preset) if run.name == cell.run]
        if not found:
            raise ConfigError(f"{entry.preset} has no run {cell.run!r}: name one of its runs.")
        values = found[0].values
    keys: dict[str, Any] = {**values, **cell.keys, "results-dir": str(out), "run-name": "cell"}
    fedapp.run(keys, show=False)
    (run,) = load_runs([out / "cell"])
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


def _commit() -> str:
    ran = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


def stamp(names: list[str], path: Path = FILE) -> None:
    """Note for some entries that their tables were made by the present commit, on this machine."""
    content = json.loads(path.read_text())
    for given, entry in zip(content["entries"], load_entries(path), strict=True):
        if not any(entry.name.startswith(name) for name in names):
            continue
        given |= {"commit": _commit(), "machine": machine()}
        if entry.preset:
            given["digest"] = digest_of(entry.preset)
        if entry.cell:
            with tempfile.TemporaryDirectory() as out:
                given["cell"]["value"] = measure(entry, Path(out))
        print(f"{entry.name}: {given['commit']} {given.get('digest', '')} {given.get('cell', '')}")
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def main() -> int:
    """Rerun cells, or stamp entries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "names", nargs="*", help="entries, by the beginning of their names; default: all"
    )
    parser.add_argument("--stamp", action="store_true", help="note the present commit and values")
    arguments = parser.parse_args()
    if arguments.stamp:
        stamp(arguments.names)
        return 0
    wrong = 0
    for entry in load_entries():
        if not entry.cell or not any(map(entry.name.startswith, arguments.names or [""])):
            continue
        with tempfile.TemporaryDirectory() as out:
            value = measure(entry, Path(out))
        bad = differs(entry.cell, value)
        wrong += bad
        said = "differs" if bad else "agrees"
        print(
            f"{entry.name}: {entry.cell.take} {entry.cell.metric} {value:.6g}, documented {entry.cell.value:.6g}: {said}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
