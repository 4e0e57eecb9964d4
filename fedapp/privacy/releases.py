"""How often each client, or the server, has released something that noise protects; kept in a file."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedapp.errors import ConfigError, RunError
from fedapp.files import brief, seal, unseal, write_text


class Releases:
    """The count of a run's releases. With a file, nothing is released before the file counts it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._path: Path | None = None
        self._run = ""

    def most(self, whose: Sequence[str] | None = None) -> int:
        """Return the largest count of these, or of all."""
        counts = self._counts.values() if whose is None else (self._counts[one] for one in whose)
        return max(counts, default=0)

    def add(self, whose: Iterable[str]) -> None:
        """Count one release of each, and write the file."""
        self._counts.update(whose)
        if self._path:
            text = seal({"run": self._run, "releases": self._counts})
            try:
                write_text(self._path, text)
            except OSError as error:
                raise RunError(
                    f"{self._path} cannot be written ({error.strerror}), and nothing may be released that is not "
                    "counted: fix that, and continue with resume = true."
                ) from None

    def keep(self, path: Path, run: str, begun: bool, old: bool) -> None:
        """Count in a file from now on; if the run has begun, start from what the file says.

        A round that is run again counts again. The count of an `old` run may have no digest.
        """
        self._path, self._run = path, run
        if not begun and not path.exists():
            return
        try:
            content = unseal(path)
            if content is None and old:
                content = json.loads(path.read_text())
            if not isinstance(content, dict):
                raise ValueError("it has no digest")
            counts = content["releases"]
            if content.keys() - {"run"} != {"releases"} or content.get("run", run) != run:
                raise ValueError("it is not this run's count")
            if not all(type(count) is int and count >= 0 for count in counts.values()):
                raise ValueError("it holds something else than counts")
            self._counts = Counter(counts)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} does not say what this run has spent ({brief(error)}): restore it from a backup, or start a "
                "new run."
            ) from None
