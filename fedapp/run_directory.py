"""The directory of a run, `<results-dir>/<run-name>/`: create or continue it, lock it, and write what a run leaves.

It holds `config.json` (see manifest.py), `rounds.jsonl` (see rounds_file.py), `model.safetensors`, checkpoints if asked
for, and a note if the run diverged or failed.
"""

import itertools
import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedapp.config import RunConfig
from fedapp.doors import short
from fedapp.errors import ConfigError, DivergedError, RunError, unexpected
from fedapp.files import (
    DamagedFileError,
    arrays_digest,
    brief,
    fsync,
    load_arrays,
    remove_leftovers,
    seal,
    writable_directory,
    write_atomically,
    write_text,
)
from fedapp.manifest import (
    CONFIG,
    DIVERGED,
    FAILED,
    LOCK,
    MODEL,
    PARTIAL,
    Manifest,
    identify,
    results_dir,
    run_path,
)
from fedapp.problems import subject
from fedapp.progress import Progress, check_continuation, diverged_since, progress_of
from fedapp.rounds_file import Record, RoundsFile, add_checks

log = logging.getLogger("flwr")
HOLD_TIMEOUT = 0.2  # seconds; `watch` and `report` share a lock for a moment when they ask whether a run is at work


class RunDirectory:
    """A directory that belongs to one run, and to one process at a time; use as a context manager."""

    def __init__(self, config: RunConfig) -> None:
        existing = existing_run(config)
        self.path = existing or _create(config)
        self._is_new = existing is None
        self._lock = self._locked(config, new=existing is None)
        try:
            found = identify(self.path) if existing else None
            if found:
                check_continuation(self.path, config, found)
            self._manifest = self._begin(config, found)
            with _errors_at_start(self.path):
                self._rounds = RoundsFile(self.path, self.identity)
        except BaseException:
            if existing is None:  # nothing of a run is in there
                shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            raise

    def __enter__(self) -> "RunDirectory":
        """Return the directory."""
        return self

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        """Note an error that was not noted yet, and close the directory."""
        self.write_failure(error)
        self.close()

    @property
    def identity(self) -> str:
        """The run's own name, which no other run has."""
        return self._manifest.identity

    @property
    def old_until(self) -> int:
        """The last round that was made by a version without digests."""
        return self._manifest.old_until

    @property
    def has_rounds(self) -> bool:
        """Whether a round of this run was recorded, even if its line is damaged now."""
        return self._manifest.rounds > 0 or not self._rounds.is_empty()

    def progress(self, config: RunConfig) -> Progress:
        """Return how far the run is."""
        return progress_of(self.path, self._manifest, config)

    def diverged_since(self) -> int | None:
        """Return the round whose updates made this run diverge, 0 if that is not known; None if it did not."""
        since = diverged_since(self.path, self._manifest)
        if since is None and (self.path / DIVERGED).exists():
            log.warning("%s is not this run's, and is ignored", self.path / DIVERGED)
        return since

    def rounds_text(self) -> str:
        """Return the content of `rounds.jsonl`, for a checkpoint; it is on the disk from now on."""
        with _errors_in_run(self.path):
            self._rounds.sync()
            return self._rounds.text()

    def go_back_to(self, round_: int, copy: str = "") -> None:
        """Drop the rounds after one, which are run again, and the model.

        Rounds that are missing or damaged come from the checkpoint's copy.
        """
        records = self._rounds.rounds_until(round_, copy)
        self._manifest = replace(self._manifest, rounds=round_)
        with _errors_in_run(self.path):
            self._rounds.rewrite(records)
            (self.path / MODEL).unlink(missing_ok=True)
            (self.path / DIVERGED).unlink(missing_ok=True)

    def write_round(self, record: Record) -> None:
        """Append one whole line to `rounds.jsonl`."""
        with _errors_in_run(self.path):
            self._rounds.append(record)
        self._manifest = replace(self._manifest, rounds=record["round"])

    def write_divergence(self, error: DivergedError) -> None:
        """Note that the run diverged: a sweep does not run it again, and `resume` goes further back."""
        content = {"message": str(error), "since": error.since, "run": self.identity}
        try:
            write_text(self.path / DIVERGED, seal(content))
        except OSError as full:  # the user must hear of the divergence itself
            log.warning("That the run diverged could not be noted in %s: %s", self.path, full)

    def write_failure(self, error: BaseException | None) -> None:
        """Note the error that ended the run, for tables and pages; Ctrl-C is none, and a divergence has its own note."""
        is_noted = isinstance(error, DivergedError) or (self.path / FAILED).exists()
        if is_noted or not isinstance(error, Exception):
            return
        known = error if isinstance(error, ConfigError | RunError) else unexpected(error)
        with suppress(OSError):  # the user hears of the error itself
            write_text(self.path / FAILED, seal({"message": str(known), "run": self.identity}))

    def write_model(self, tensors: dict[str, NDArray[Any]]) -> None:
        """Write the model, all of it or nothing."""
        whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        with _errors_in_run(self.path):
            self._rounds.sync()
            self._manifest = replace(self._manifest, model=arrays_digest(whole, {}))
            self._manifest.write(self.path)
            write_atomically(self.path / MODEL, lambda path: save_file(whole, path))

    def discard(self) -> None:
        """Remove the directory if this process made it and no round was recorded."""
        if self._is_new and not self.has_rounds:
            shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Close the file of rounds, and unlock the directory."""
        try:
            with _errors_in_run(self.path):
                self._rounds.close()
        finally:
            self._lock.release()

    def _locked(self, config: RunConfig, new: bool) -> FileLock:
        """Lock the directory; remove a new one that another process has locked first."""
        try:
            with _errors_at_start(self.path):
                lock = hold(self.path)
        except ConfigError:
            if new:
                with suppress(OSError):
                    self.path.rmdir()  # if it is still empty
            raise
        if new and (self.path / CONFIG).exists():
            # Another process resumed and ended the empty run between `mkdir` and the lock.
            lock.release()
            raise _has_results(config.run_name, self.path)
        return lock

    def _begin(self, config: RunConfig, found: Manifest | None) -> Manifest:
        """Write the manifest with the present config; bring what an older version left up to date."""
        manifest = found or Manifest(f"{self.path.name}-{uuid4().hex[:8]}", {})
        manifest = replace(manifest, config=config.flat() | {"resume": False}, checked=True)
        with _errors_at_start(self.path):
            remove_leftovers(self.path)
            if found and not found.checked:
                add_checks(self.path, found)
                with suppress(DamagedFileError):
                    model = load_arrays(self.path / MODEL, {}, old=True)[0]
                    manifest = replace(manifest, model=arrays_digest(model, {}))
            manifest.write(self.path)
            (self.path / FAILED).unlink(missing_ok=True)  # it is tried again
            fsync(self.path.parent)
        return manifest


def set_partial_aside(config: RunConfig) -> None:
    """Rename the directory of a named run that is not complete, so that it can start again; not if it resumes."""
    directory = run_path(config)
    if config.resume or not directory.exists():
        return
    lock = hold(directory)
    try:
        manifest = identify(directory)
        progress = progress_of(directory, manifest, config) if manifest else Progress([], False, [])
        if progress.complete:
            return
        for sentence in progress.damage:
            log.warning("%s", sentence)
        places = (directory.with_name(f"{directory.name}{PARTIAL}{n}") for n in itertools.count(1))
        place = next(place for place in places if not place.exists())
        directory.rename(place)
        count = len(progress.rounds)
        print(f"{directory.name} was not complete: its {count} rounds are now in {place.name}")
    finally:
        lock.release()


def hold(directory: Path) -> FileLock:
    """Lock a run's directory for this process; ConfigError if another process holds it."""
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=HOLD_TIMEOUT)
    except Timeout:
        raise _at_work(directory) from None
    return lock


def existing_run(config: RunConfig) -> Path | None:
    """Return the directory of the run to continue; None if a new one is to be made."""
    if not config.resume:
        return None
    if config.resume is True:
        path = run_path(config)
        if not path.is_dir():
            return None
        identify(path)
    else:
        path = Path(config.resume).expanduser()
        if not path.is_dir() or not identify(path):
            raise ConfigError(
                f"resume = {config.resume!r} holds no run: give the directory of one."
            )
    return path


def _create(config: RunConfig) -> Path:
    """Make a new directory; without a run-name, its name says the algorithm, the data set and the time."""
    parent = writable_directory("results-dir", results_dir(config))
    stamp = time.strftime("%Y%m%d-%H%M%S")
    algorithm = short(config.algorithm).lower()
    name = config.run_name or f"{algorithm}-{short(subject(config))}-{stamp}"
    for number in itertools.count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            with _errors_at_start(path):
                path.mkdir()
            break
        except FileExistsError:
            if config.resume and path.is_dir():  # it was not there a moment ago
                raise _at_work(path) from None
            if config.run_name:
                raise _has_results(name, path) from None
    return path


def _at_work(directory: Path) -> ConfigError:
    return ConfigError(
        f"Another process is at work on {directory}: wait for it, or choose another run-name or --out."
    )


def _has_results(name: str, path: Path) -> ConfigError:
    return ConfigError(
        f"run-name = {name!r} has results already, in {path}: choose another name, remove them, or go on with "
        "resume = true."
    )


@contextmanager
def _errors_at_start(directory: Path) -> Iterator[None]:
    """Turn disk errors at the start of a run into a ConfigError with advice."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written ({brief(error)}): make space, or choose another results-dir."
        ) from None


@contextmanager
def _errors_in_run(directory: Path) -> Iterator[None]:
    """Turn disk errors into a RunError with advice."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{directory} cannot be written ({error}): what is there is whole; fix that, and continue from the "
            "last checkpoint with resume = true."
        ) from None
