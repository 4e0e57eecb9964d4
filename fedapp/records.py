"""What a run leaves on disk: `config.json`, `rounds.jsonl`, `model.safetensors`."""

import itertools
import json
import logging
import math
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedapp import __version__
from fedapp.config import RunConfig, Value, writable_directory
from fedapp.errors import ConfigError, RunError
from fedapp.state import write_atomically

log = logging.getLogger("flwr")

# The order of a line; an algorithm's own figures follow.
COLUMNS = [
    "round",
    "test_loss",
    "test_accuracy",
    "train_loss",
    "clients",
    "failures",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bits_nominal",
    "simulated_seconds",
    "simulated_seconds_nominal",
    "wall_seconds",
]


def results_dir(config: RunConfig) -> Path:
    """Return where results go: never relative to the process, which may be Flower's."""
    return Path.home() / Path(config.results_dir or "fedapp-results").expanduser()


def read_rounds(directory: Path) -> list[dict[str, Any]]:
    """Read a run's rounds; a last line that was cut off does not count."""
    lines = (directory / "rounds.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def read_config(directory: Path) -> dict[str, Value]:
    """Read the config that a run was started with; a key that did not exist then had, in effect, its default."""
    config: dict[str, Value] = json.loads((directory / "config.json").read_text())["config"]
    return RunConfig().flat() | config


def last_record(config: RunConfig) -> dict[str, Any]:
    """Return the last line of a named run; empty if there is none."""
    try:
        rounds = read_rounds(results_dir(config) / config.run_name)
    except OSError:
        rounds = []
    return rounds[-1] if rounds else {}


PARTIAL = ".partial-"
DIVERGED = "diverged.txt"


def was_completed(config: RunConfig) -> bool:
    """Tell whether a named run is there, whole; the remains of one that is not are set aside."""
    directory = results_dir(config) / config.run_name
    if not directory.exists():
        return False
    try:
        before, rounds = read_config(directory), read_rounds(directory)
    except (OSError, ValueError, KeyError):  # killed as it began
        before, rounds = config.flat(), []
    if different(before, config, {"resume"}):
        raise ConfigError(
            f"{directory} holds a run with another config: choose another --out, or remove it."
        )
    if has_ended(rounds, config) and (directory / "model.safetensors").is_file():
        return True
    if (directory / DIVERGED).is_file():
        print(f"{config.run_name} diverged after {len(rounds)} rounds, and would again")
        return True
    if config.resume:
        return False
    lock = _held(directory)
    try:
        return _set_aside(directory, rounds)
    finally:
        lock.release()


def _set_aside(directory: Path, rounds: Sequence[dict[str, Any]]) -> bool:
    places = (directory.with_name(f"{directory.name}{PARTIAL}{n}") for n in itertools.count(1))
    place = next(place for place in places if not place.exists())
    directory.rename(place)
    print(f"{directory.name} was not complete: its {len(rounds)} rounds are now in {place.name}")
    return False


def _held(directory: Path) -> FileLock:
    """Take a run's directory for this process alone, or say that another has it."""
    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise _at_work(directory) from None
    return lock


def _at_work(directory: Path) -> ConfigError:
    return ConfigError(
        f"Another process is at work on {directory}: wait for it, or choose another run-name or --out."
    )


def different(before: dict[str, Value], config: RunConfig, free: Collection[str]) -> str:
    """Return the first key, but for some, in which a run's config differs from what it was; or an empty string."""
    now = config.flat()
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return next((key for key in keys if key not in free), "")


def has_ended(rounds: Sequence[dict[str, Any]], config: RunConfig) -> bool:
    """Tell whether these are all the rounds that a config asks for."""
    reached = rounds[-1]["test_accuracy"] or 0.0 if rounds else 0.0
    return len(rounds) >= config.num_rounds or 0 < config.target_accuracy <= reached


# What may change when a run goes on: how long and where it runs, but not what it computes.
MAY_CHANGE = {
    "num-rounds", "target-accuracy", "eval-every", "eval-train", "checkpoint-every", "resume", "run-name",
    "results-dir", "data-dir", "state-dir", "on-lost-state", "tensorboard", "device", "round-timeout", "node-timeout", "min-clients",
    "max-update-ratio", "require-all-clients", "node-partitions",
}  # fmt: skip


class RunDirectory:
    """`<results-dir>/<run-name>/`, which belongs to one run, and to one process at a time.

    `identity` is the run's own for as long as it lives: two runs of the same name, in different results directories,
    may share a state-dir.
    """

    def __init__(self, config: RunConfig) -> None:
        existing = self._existing(config)
        self.path = existing or self._create(config)
        self._lock = self._taken(config, new=existing is None)
        try:
            if existing:
                self._check(config)
            self.identity = self._identity()
            self._begin(config)
        except BaseException:
            if existing is None:  # nothing of a run is in there
                shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            raise

    def _taken(self, config: RunConfig, new: bool) -> FileLock:
        try:
            with _room(self.path):
                lock = _held(self.path)
        except ConfigError:
            if new:
                with suppress(OSError):
                    self.path.rmdir()  # if it is still empty
            raise
        if new and (self.path / "config.json").exists():
            # Between making and taking it, another process has resumed, and left, what was still empty.
            lock.release()
            raise _has_results(config.run_name, self.path)
        return lock

    def _identity(self) -> str:
        """Return what tells this run's clients' states from those of others."""
        try:
            before = json.loads((self.path / "config.json").read_text())
            return str(before.get("identity", self.path.name))  # of old, a run had its name only
        except (OSError, ValueError):  # a new one
            return f"{self.path.name}-{uuid4().hex[:8]}"

    def _begin(self, config: RunConfig) -> None:
        versions = {"fedapp": __version__, "flwr": version("flwr"), "torch": version("torch")}
        settled = config.flat() | {"resume": False}
        content = {"config": settled, "identity": self.identity, "versions": versions}
        text = json.dumps(content, indent=2) + "\n"
        with _room(self.path):
            for left in self.path.glob(".*"):  # by a process that was killed as it wrote
                if left.name != ".lock":
                    left.unlink()
            self._rounds: IO[str] = (self.path / "rounds.jsonl").open("a")
            write_atomically(self.path / "config.json", lambda path: path.write_text(text))

    @staticmethod
    def _existing(config: RunConfig) -> Path | None:
        """Return the directory of the run to go on with; None if a new one is to be made."""
        if not config.resume:
            return None
        if config.resume is True:
            path = results_dir(config) / config.run_name
        else:
            path = Path(config.resume).expanduser()
            if not (path / "config.json").is_file():
                raise ConfigError(
                    f"resume = {config.resume!r} holds no run: give the directory of one."
                )
        return path if path.is_dir() else None

    def _check(self, config: RunConfig) -> None:
        """Refuse to go on with another run than the one that is here."""
        path = self.path
        try:
            before, rounds = read_config(path), read_rounds(path)
        except (OSError, ValueError, KeyError):  # killed as it began
            return
        fixed = {"num-rounds"} if config.lr_schedule == "inverse-sqrt" else set()
        if key := different(before, config, MAY_CHANGE - fixed):
            raise ConfigError(
                f"The run in {path} cannot go on with another {key}: set it to "
                f"{before.get(key)!r}, or start a new run."
            )
        if rounds and not before.get("checkpoint-every") and not has_ended(rounds, config):
            raise ConfigError(
                f"The run in {path} was made without checkpoints and cannot go on: remove it, or choose "
                "another run-name."
            )

    @staticmethod
    def _create(config: RunConfig) -> Path:
        parent = writable_directory("results-dir", results_dir(config))
        stamp = time.strftime("%Y%m%d-%H%M%S")
        name = config.run_name or f"{config.algorithm}-{config.dataset}-{stamp}"
        for number in itertools.count(1):
            path = parent / (name if number == 1 else f"{name}-{number}")
            try:
                with _room(path):
                    path.mkdir()
                break
            except FileExistsError:
                if config.resume and path.is_dir():  # it was not there a moment ago
                    raise _at_work(path) from None
                if config.run_name:
                    raise _has_results(name, path) from None
        return path

    def rounds(self) -> list[dict[str, Any]]:
        """Return the rounds that are written down."""
        return read_rounds(self.path)

    def go_back_to(self, round_: int) -> list[dict[str, Any]]:
        """Drop what later rounds left, which are run again; return the rounds that stay."""
        kept = [record for record in self.rounds() if record["round"] <= round_]
        text = "".join(json.dumps(record) + "\n" for record in kept)

        def write(path: Path) -> None:
            path.write_text(text)
            (self.path / "model.safetensors").unlink(missing_ok=True)  # when there is room for sure

        self._rounds.close()
        with _disk(self.path):
            write_atomically(self.path / "rounds.jsonl", write)
            self._rounds = (self.path / "rounds.jsonl").open("a")
        return kept

    def write_round(self, record: dict[str, Any]) -> None:
        """Append one whole line."""
        ordered = {name: record.get(name) for name in COLUMNS} | record
        line = {name: _plain(value) for name, value in ordered.items()}
        with _disk(self.path):
            self._rounds.write(json.dumps(line) + "\n")
            self._rounds.flush()

    def write_divergence(self, text: str) -> None:
        """Say that the run diverged, so that a sweep does not try it again."""
        try:
            write_atomically(self.path / DIVERGED, lambda path: path.write_text(text + "\n"))
        except OSError as error:  # the divergence itself is what must be told
            log.warning("That the run diverged could not be noted in %s: %s", self.path, error)

    def write_model(self, tensors: dict[str, NDArray[Any]]) -> None:
        """Write the model, all of it or nothing."""
        whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        with _disk(self.path):
            write_atomically(self.path / "model.safetensors", lambda path: save_file(whole, path))

    def close(self) -> None:
        """Close the file of rounds, and let others at the directory."""
        try:
            with _disk(self.path):
                self._rounds.close()
        finally:
            self._lock.release()


def _has_results(name: str, path: Path) -> ConfigError:
    return ConfigError(
        f"run-name = {name!r} has results already, in {path}: choose another name, remove them, or go on with "
        "resume = true."
    )


@contextmanager
def _room(directory: Path) -> Iterator[None]:
    """Say that a run cannot begin, or go on, where nothing can be written."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written ({error.strerror or error}): make space, or choose another results-dir."
        ) from None


@contextmanager
def _disk(directory: Path) -> Iterator[None]:
    """Say what is the matter when a disk takes no more."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{directory} cannot be written ({error}): what is there is whole; mend that, and go on from the "
            "last checkpoint with resume = true."
        ) from None


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
