"""`benchmarks/loaded.py`: its loops run beside the tests, every time, and end with them."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.loaded import ROOT
from tests.conftest import PATIENCE

# Fails the second time; notes its siblings, which are the loops.
SUITE = """
import os
from pathlib import Path

def siblings():
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getppid():
                yield process.name

def test_siblings():
    path = Path(__file__).with_name("seen.txt")
    with path.open("a") as file:
        print(*siblings(), file=file)
    assert len(path.read_text().splitlines()) != 2
"""


@pytest.mark.slow
def test_the_suite_runs_several_times_beside_busy_loops(tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(SUITE)
    place = str(tmp_path)
    words = ["--times", "2", "--loops", "1", "-n", "0", "--rootdir", place, place]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.loaded", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 1
    assert "1 of 2: passed" in done.stdout
    assert "2 of 2: FAILED with exit code 1" in done.stdout
    assert done.stdout.endswith("1 of 2 passed beside 1 busy loops.\n")
    seen = [set(line.split()) for line in (tmp_path / "seen.txt").read_text().splitlines()]
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert len(seen[0]) == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in seen[0])
