"""Run the project's command in a real process that need not import everything again."""

import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit code (minus the signal that killed it), and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class Forked:
    """A process that does some work, with files in `place` as its standard output and standard error.

    It is forked from this one, which has imported torch and Flower: a new one would need five seconds for that.
    """

    def __init__(self, place: Path, work: Callable[[], object]) -> None:
        place.mkdir(parents=True, exist_ok=True)
        self.paths = [place / "stdout", place / "stderr"]
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                code = self._work(work)
            finally:
                os._exit(code)

    def _work(self, work: Callable[[], object]) -> int:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, path in enumerate(self.paths, start=1):
            os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        try:
            work()
        except SystemExit as ended:
            return int(ended.code or 0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return 0

    def wait(self) -> Ended:
        """Wait for its end."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return Ended(code, *(path.read_text() for path in self.paths))


def start_simulation(place: Path, words: Sequence[str]) -> Forked:
    """Start `python run_simulation.py <words>`; its output goes to files in `place`."""

    def work() -> None:
        os.chdir(ROOT)
        sys.argv = ["run_simulation.py", *words]
        runpy.run_path("run_simulation.py", run_name="__main__")

    return Forked(place, work)
