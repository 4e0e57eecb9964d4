"""Start the trackers that a config names, and call them as observers; a tracker that fails later is left out."""

import logging
import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.figures import FIGURES
from fedapp.files import DamagedFileError, brief, seal, unseal, write_text
from fedapp.manifest import MODEL, TRACKERS_FILE
from fedapp.observers import Observer
from fedapp.rounds_file import Record
from fedapp.trackers import TRACKERS
from fedapp.trackers.tracker import TrackedRun, Tracker

log = logging.getLogger("flwr")


def find_trackers(config: RunConfig) -> list[Tracker]:
    """Return the config's trackers; ConfigError if one is not installed."""
    found = []
    for name in config.trackers:
        module, _, attribute = TRACKERS[name].partition(":")
        found.append(getattr(import_module(module), attribute)())
    return found


def start_trackers(
    config: RunConfig, directory: Path, identity: str, past: Iterable[Record]
) -> list["TrackerLog"]:
    """Start the config's trackers with the rounds so far; one that cannot start is a ConfigError."""
    rounds = list(past)
    ids = _read_ids(directory, identity)
    logs: list[TrackerLog] = []
    for tracker in find_trackers(config):
        known_as = ids.get(tracker.name, "")
        run = TrackedRun(directory, config.flat(), len(rounds), known_as)
        try:
            started = tracker.start(run)
            logs.append(TrackerLog(tracker, directory))
            if started != known_as:
                ids[tracker.name] = started
                write_text(directory / TRACKERS_FILE, seal({"run": identity, "ids": ids}))
            logs[-1].catch_up(rounds)
        except Exception as error:  # each tracker raises its own types
            for other in logs:
                other.on_end(error)
            raise ConfigError(
                f"{tracker.title} does not start ({brief(error)}): fix that, or take {tracker.name} out of tracker."
            ) from None
    return logs


def _read_ids(directory: Path, identity: str) -> dict[str, str]:
    """Return the trackers' ids for a run; without them a tracker begins another run."""
    path = directory / TRACKERS_FILE
    if not path.exists():
        return {}
    try:
        content = unseal(path)
        if content and content["run"] == identity:
            return {name: str(known) for name, known in content["ids"].items() if name in TRACKERS}
        log.warning("%s is not this run's: trackers begin a new run", path)
    except (DamagedFileError, KeyError, AttributeError) as error:
        log.warning("%s Trackers begin a new run", brief(error))
    return {}


class TrackerLog(Observer):
    """Sends one tracker the figures of each round, and at the end the model and the report.

    `round/<figure>` is a figure as in `rounds.jsonl`; one that a round does not have, or that is not finite, is left
    out. `total/uplink_bytes` and `total/downlink_bytes` add up over the rounds.
    """

    def __init__(self, tracker: Tracker, directory: Path) -> None:
        self._tracker, self._directory = tracker, directory
        sent = (f.name for f in FIGURES.values() if f.unit == "bytes" and f.summed)
        self._totals = dict.fromkeys(sent, 0)
        self._last = tracker.last_round()
        self._works = True

    @property
    def note(self) -> str:
        """Say where the user finds the run."""
        from fedapp.report.page import can_write_report

        lacks = "" if can_write_report() else " (without the report page: use `fedapp report`)"
        return f"{self._tracker.title}: {self._tracker.place()}{lacks}"

    def catch_up(self, past: Iterable[Record]) -> None:
        """Log the rounds before this process, as far as the tracker does not hold them."""
        for record in past:
            self._log(record)

    def on_round(self, record: Record) -> None:
        """Log a round; what a resumed run repeats is there already, and is the same."""
        self._try(lambda: self._log(record))

    def _log(self, record: Record) -> None:
        figures = {
            f"round/{name}": float(value)
            for name, value in record.items()
            if name != "round" and isinstance(value, int | float) and math.isfinite(value)
        }
        for name in self._totals:
            self._totals[name] += record.get(name) or 0
            figures[f"total/{name}"] = float(self._totals[name])
        if record["round"] > self._last:
            self._tracker.log(record["round"], figures)

    def on_end(self, error: BaseException | None) -> None:
        """Save the model and the report page, and end."""
        if not self._works:
            return
        with tempfile.TemporaryDirectory(prefix="fedapp-") as place:
            files = {"model": self._directory / MODEL, "report": Path(place) / "report.html"}
            _write_report(self._directory, files["report"])
            there = {kind: path for kind, path in files.items() if path.is_file()}
            self._try(lambda: self._tracker.finish(there, complete=error is None))

    def _try(self, call: Callable[[], object]) -> None:
        """Call a tracker; after the first failure it is not called again, and the run goes on without it."""
        if not self._works:
            return
        try:
            call()
        except Exception as error:  # each tracker raises its own types
            self._works = False
            log.warning(
                "%s failed, and the run goes on without it: %s", self._tracker.title, brief(error)
            )


def _write_report(directory: Path, page: Path) -> None:
    """Write the page of a run; a run whose files cannot be shown has none."""
    from fedapp.report.page import can_write_report, write_report
    from fedapp.report.runs import read_run
    from fedapp.report.status import State

    if not can_write_report():
        return
    try:
        run = read_run(directory)
        if run.status.state is State.RUNNING:  # this process still holds it, and is about to end
            run = replace(run, status=replace(run.status, state=State.INTERRUPTED))
        write_report([run], page, title=directory.name)
    except (OSError, ConfigError) as error:
        log.warning("There is no report page of the run for its trackers: %s", brief(error))
