"""The test suite on a busy machine: `python -m benchmarks.loaded [--times 3] [--loops 2] [pytest's arguments]`.

Runs the suite several times in a row while processes that do nothing but count keep the cores busy. Tests must pass then, too:
one that measures time, or gives something too little of it, fails here first. Exit code 0: every time.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = ["-n", "4", "--dist", "loadgroup"]  # as .ci/run has it
# Ends by itself if this program is killed.
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """Keep `count` cores busy, and yield the processes that do so."""
    loops = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(count)]
    try:
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def main(words: Sequence[str] | None = None) -> int:
    """Run the suite, and say how often it passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=3, help="runs of the suite; default: 3")
    parser.add_argument("--loops", type=int, default=2, help="busy loops beside it; default: 2")
    arguments, given = parser.parse_known_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop the loops then, too
    passed = 0
    with busy_loops(arguments.loops) as pids:
        print(f"Busy loops: {' '.join(map(str, pids))}", flush=True)
        for number in range(1, arguments.times + 1):
            started = time.monotonic()
            code = subprocess.run(
                [sys.executable, "-m", "pytest", *SUITE, *given], cwd=ROOT
            ).returncode
            passed += code == 0
            word = "passed" if code == 0 else f"FAILED with exit code {code}"
            minutes = (time.monotonic() - started) / 60
            print(f"{number} of {arguments.times}: {word} in {minutes:.1f} minutes", flush=True)
    print(f"{passed} of {arguments.times} passed beside {arguments.loops} busy loops.")
    return 0 if passed == arguments.times else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
