"""What a run leaves on disk: `config.json`, `rounds.jsonl`, `model.safetensors`; and whose directory it is.

A directory is a run's only if its `config.json` says so: it names the format and the run's identity, and is sealed by a
digest. If that file is damaged, the newest intact checkpoint says the same and it is written again. Any other
directory is refused and left as it is. Every line of `rounds.jsonl` has a `check` of the line and the identity. Equal
models are equal files, so the digest of `model.safetensors` is in `config.json`.
"""

import itertools
import json
import logging
import math
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from fedapp.config import RunConfig, Value
from fedapp.errors import ConfigError, DivergedError, RunError
from fedapp.files import (
    DamagedFileError,
    arrays_digest,
    brief,
    checkpoint_paths,
    fsync,
    is_leftover,
    line_check,
    load_arrays,
    remove_leftovers,
    seal,
    unseal,
    writable_directory,
    write_atomically,
    write_text,
)

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
CHECK = "check"  # the last key of a line
FORMAT = "fedapp run 2"
CONFIG, ROUNDS, MODEL, LOCK = "config.json", "rounds.jsonl", "model.safetensors", ".lock"
PARTIAL = ".partial-"
DIVERGED = "diverged.txt"
Record = dict[str, Any]


def results_dir(config: RunConfig) -> Path:
    """Return where results go: never relative to the process, which may be Flower's."""
    return Path.home() / Path(config.results_dir or "fedapp-results").expanduser()


# Whose directory it is.


@dataclass(frozen=True)
class Passport:
    """Which run a directory holds, and the config that it was last started with."""

    identity: str
    config: dict[str, Value]
    checked: bool = True  # its rounds carry checks; those of an older version do not
    model: str = ""  # digest of the model, once there is one
    rounds: int = 0  # that were recorded when the model was written
    old_until: int = 0  # the rounds up to this one were made by a version without digests


def read_passport(directory: Path) -> Passport:
    """Read `config.json`; a file that is not a run's is a ConfigError, a damaged one a DamagedFileError."""
    path = directory / CONFIG
    content = unseal(path)
    if content is None:  # not sealed: of an older version, if it looks exactly like that
        content = json.loads(path.read_text())
        keys = set(content) if isinstance(content, dict) else set()
        if keys - {"identity"} != {"config", "versions"} or not _is_config(content["config"]):
            if {"identity", "format"} & keys:
                raise DamagedFileError(f"{path} has changed since it was written.")
            raise _foreign(directory)
        identity = str(content.get("identity", directory.name))
        return Passport(identity, content["config"], False, old_until=_last_round(directory))
    if content.get("format") != FORMAT:
        raise ConfigError(
            f"{path} has the format {str(content.get('format'))[:40]!r}: use the version of fedapp that wrote it."
        )
    known = {name: content[name] for name in ("model", "rounds", "old_until")}
    return Passport(content["identity"], content["config"], **known)


def _last_round(directory: Path) -> int:
    """Return how far an older version has come with a run, as its checkpoints tell."""
    paths = checkpoint_paths(directory / "checkpoint")
    return int(paths[0].stem.partition("-")[2]) if paths else 0


def _is_config(config: Any) -> bool:
    return isinstance(config, dict) and {"algorithm", "num-rounds", "seed"} <= config.keys()


def _foreign(directory: Path) -> ConfigError:
    return ConfigError(
        f"{directory} holds no run of fedapp (there is no run in {directory / CONFIG}), and was left as it is: give the "
        "directory of a run, or choose another run-name."
    )


def identify(directory: Path) -> Passport | None:
    """Return the passport of a run's directory, from its checkpoint if need be; None if nothing was begun there.

    Whatever else the directory is, it is refused; nothing in it is touched.
    """
    if not directory.is_dir():
        raise _foreign(directory)
    if not (directory / CONFIG).exists() and all(map(_is_beginning, directory.iterdir())):
        return None
    try:
        return read_passport(directory)
    except DamagedFileError as damage:
        for path in checkpoint_paths(directory / "checkpoint"):
            with suppress(DamagedFileError, KeyError, ValueError):
                about = load_arrays(path, {})[1]
                passport = Passport(about["run"], json.loads(about["config"]))
                log.warning("%s Continuing with the config that %s holds", damage, path)
                return passport
        if not (directory / CONFIG).exists():
            raise _foreign(directory) from None
        raise DamagedFileError(
            f"{damage} If {directory} is a run, restore that file from a backup, or remove the directory and start "
            "again; if it is not, choose another directory."
        ) from None


def _is_beginning(path: Path) -> bool:
    """Tell whether a process that was killed as it began may have left this."""
    empty = path.name == ROUNDS and path.is_file() and not path.stat().st_size
    return path.name == LOCK or is_leftover(path) or empty


def read_config(directory: Path) -> dict[str, Value]:
    """Read the config that a run was started with; a key that did not exist then had, in effect, its default."""
    return RunConfig().flat() | read_passport(directory).config


# Rounds.


def format_line(record: Record, identity: str) -> str:
    """Return a record as a line with a check."""
    line = json.dumps(record)
    return json.dumps({**record, CHECK: line_check(identity, line)}) + "\n"


def parse_line(line: str, passport: Passport) -> Record:
    """Return the record of a line; ValueError if it is not what was written."""
    record = json.loads(line)
    if not isinstance(record, dict) or type(record.get("round")) is not int:
        raise ValueError("it is not the record of a round")
    check = record.pop(CHECK, None)
    if check != line_check(passport.identity, json.dumps(record)) and (
        passport.checked or check is not None
    ):
        raise ValueError("its check does not fit")
    return record


def read_rounds(directory: Path) -> list[Record]:
    """Read a run's rounds; a last line that was cut off does not count."""
    path, passport = directory / ROUNDS, read_passport(directory)
    records: list[Record] = []
    for number, line in enumerate(_lines(path), 1):
        try:
            records.append(parse_line(line, passport))
            if records[-1]["round"] != number:
                raise ValueError(f"it is of round {records[-1]['round']}")
        except (ValueError, RecursionError) as error:
            raise DamagedFileError(
                f"Line {number} of {path} is damaged ({brief(error)}): with checkpoints, resume = true restores "
                "it; otherwise restore it from a backup."
            ) from None
    return records


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise DamagedFileError(f"{path} cannot be read ({brief(error)}).") from None
    return text.split("\n")[:-1]


def last_record(config: RunConfig) -> Record:
    """Return the last line of a named run; empty if there is none."""
    try:
        rounds = read_rounds(results_dir(config) / config.run_name)
    except (OSError, ConfigError):
        rounds = []
    return rounds[-1] if rounds else {}


def has_ended(rounds: Sequence[Record], config: RunConfig) -> bool:
    """Tell whether these are all the rounds that a config asks for."""
    reached = rounds[-1]["test_accuracy"] or 0.0 if rounds else 0.0
    return len(rounds) >= config.num_rounds or 0 < config.target_accuracy <= reached


def has_model(directory: Path, passport: Passport) -> bool:
    """Tell whether a run's model is there, as it was written; warn if it is not."""
    try:
        model = load_arrays(directory / MODEL, {}, old=True)[0]
        if passport.checked and arrays_digest(model, {}) != passport.model:
            raise DamagedFileError(f"{directory / MODEL} is not what this run wrote.")
    except DamagedFileError as error:
        log.warning("%s", error)
        return False
    return True


def diverged_since(directory: Path, passport: Passport) -> int | None:
    """Return the round whose updates made a run diverge, 0 if that is not known; None if it did not."""
    path = directory / DIVERGED
    if not path.exists():
        return None
    try:
        note = unseal(path)
        if note and note["run"] == passport.identity:
            return int(note["since"])
    except (DamagedFileError, KeyError, TypeError, ValueError):
        pass
    if passport.checked and not passport.old_until:
        log.warning("%s is not this run's, and is ignored", path)
        return None
    return 0  # an older version noted a sentence only


# Runs of a sweep.


def was_completed(config: RunConfig) -> bool:
    """Tell whether a named run is there, whole; the remains of one that is not are set aside."""
    directory = results_dir(config) / config.run_name
    if not directory.exists():
        return False
    passport = identify(directory)
    before = RunConfig().flat() | passport.config if passport else config.flat()
    if different(before, config, {"resume"}):
        raise ConfigError(
            f"{directory} holds a run with another config: choose another --out, or remove it."
        )
    try:
        rounds = read_rounds(directory) if passport else []
    except (OSError, DamagedFileError) as error:
        log.warning("%s", error)
        rounds = []
    if passport and has_ended(rounds, config) and has_model(directory, passport):
        return True
    if passport and diverged_since(directory, passport) is not None:
        print(f"{config.run_name} diverged after {len(rounds)} rounds, and would again")
        return True
    if config.resume:
        return False
    lock = _held(directory)
    try:
        return _set_aside(directory, rounds)
    finally:
        lock.release()


def _set_aside(directory: Path, rounds: Sequence[Record]) -> bool:
    places = (directory.with_name(f"{directory.name}{PARTIAL}{n}") for n in itertools.count(1))
    place = next(place for place in places if not place.exists())
    directory.rename(place)
    print(f"{directory.name} was not complete: its {len(rounds)} rounds are now in {place.name}")
    return False


def _held(directory: Path) -> FileLock:
    """Take a run's directory for this process alone, or say that another has it."""
    lock = FileLock(directory / LOCK)
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


# What may change when a run goes on: how long and where it runs, but not what it computes.
MAY_CHANGE = {
    "num-rounds", "target-accuracy", "eval-every", "eval-train", "checkpoint-every", "resume", "run-name",
    "results-dir", "data-dir", "state-dir", "on-lost-state", "tensorboard", "device", "round-timeout", "node-timeout", "min-clients",
    "dp.max-epsilon", "max-update-ratio", "require-all-clients", "node-partitions",
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
            found = identify(self.path) if existing else None
            if found:
                self._check(config, found)
            self.identity = found.identity if found else f"{self.path.name}-{uuid4().hex[:8]}"
            self._begin(config, found)
        except BaseException:
            if existing is None:  # nothing of a run is in there
                shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()
            raise

    @staticmethod
    def _existing(config: RunConfig) -> Path | None:
        """Return the directory of the run to continue; None if a new one is to be made."""
        if not config.resume:
            return None
        if config.resume is True:
            path = results_dir(config) / config.run_name
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

    def _taken(self, config: RunConfig, new: bool) -> FileLock:
        try:
            with _room(self.path):
                lock = _held(self.path)
        except ConfigError:
            if new:
                with suppress(OSError):
                    self.path.rmdir()  # if it is still empty
            raise
        if new and (self.path / CONFIG).exists():
            # Between making and taking it, another process has resumed, and left, what was still empty.
            lock.release()
            raise _has_results(config.run_name, self.path)
        return lock

    def _check(self, config: RunConfig, found: Passport) -> None:
        """Refuse to continue with another run than the one that is here."""
        before = RunConfig().flat() | found.config
        fixed = {"num-rounds"} if config.lr_schedule == "inverse-sqrt" else set()
        if key := different(before, config, MAY_CHANGE - fixed):
            raise ConfigError(
                f"The run in {self.path} cannot go on with another {key}: set it to "
                f"{before.get(key)!r}, or start a new run."
            )
        if before.get("checkpoint-every") or checkpoint_paths(self.path / "checkpoint"):
            return
        try:
            rounds = read_rounds(self.path)
        except FileNotFoundError:
            rounds = []
        lost = [ROUNDS] if len(rounds) < found.rounds else []
        if has_ended(rounds, config) and not has_model(self.path, found):
            lost.append(MODEL)
        if lost:
            raise DamagedFileError(
                f"{self.path / lost[0]} is damaged and the run has no checkpoint: restore the file from a backup, or "
                "remove the directory and start again."
            )
        if rounds and not has_ended(rounds, config):
            raise ConfigError(
                f"The run in {self.path} was made without checkpoints and cannot go on: remove it, or choose "
                "another run-name."
            )

    def _begin(self, config: RunConfig, found: Passport | None) -> None:
        self._config = config.flat() | {"resume": False}
        self.old_until = found.old_until if found else 0
        model = found.model if found else ""
        with _room(self.path):
            remove_leftovers(self.path)
            if found and not found.checked:
                self._add_checks(found)
                with suppress(DamagedFileError):
                    model = arrays_digest(load_arrays(self.path / MODEL, {}, old=True)[0], {})
            self._last_round = found.rounds if found else 0
            self._write_passport(model)
            fsync(self.path.parent)
            self._rounds: IO[str] = (self.path / ROUNDS).open("a")

    def _write_passport(self, model: str) -> None:
        versions = {"fedapp": __version__, "flwr": version("flwr"), "torch": version("torch")}
        content = {
            "format": FORMAT,
            "identity": self.identity,
            "config": self._config,
            "versions": versions,
            "model": model,
            "rounds": self._last_round,
            "old_until": self.old_until,
        }
        write_text(self.path / CONFIG, seal(content))

    def _add_checks(self, found: Passport) -> None:
        """Give the rounds of an older version what shows that they are whole; damaged ones stay as they are."""
        with suppress(FileNotFoundError, ValueError, RecursionError):
            records = [parse_line(line, found) for line in _lines(self.path / ROUNDS)]
            text = "".join(format_line(record, self.identity) for record in records)
            write_text(self.path / ROUNDS, text)

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

    @property
    def begun(self) -> bool:
        """Whether a round of this run was recorded."""
        return self._last_round > 0 or bool(self._lines_left())

    def is_complete(self, config: RunConfig) -> bool:
        """Tell whether all rounds and the model are here, as they were written."""
        try:
            complete = has_ended(read_rounds(self.path), config)
        except (FileNotFoundError, DamagedFileError) as error:
            log.warning("%s", error)
            return False
        return complete and has_model(self.path, read_passport(self.path))

    def diverged_since(self) -> int | None:
        """Return the round whose updates made this run diverge, 0 if that is not known; None if it did not."""
        return diverged_since(self.path, read_passport(self.path))

    def rounds_text(self) -> str:
        """Return the rounds that are written down, for a checkpoint; they are on the disk from now on."""
        with _disk(self.path):
            fsync(self.path / ROUNDS)
            return (self.path / ROUNDS).read_text()

    def go_back_to(self, round_: int, copy: str = "") -> None:
        """Drop what later rounds left, which are run again.

        Of a round that is missing or damaged, the checkpoint's copy is taken.
        """
        kept = self._intact(copy.split("\n")) | self._intact(self._lines_left())
        if missing := [number for number in range(1, round_ + 1) if number not in kept]:
            raise DamagedFileError(
                f"Round {missing[0]} is missing or damaged in {self.path / ROUNDS}: restore that file from a "
                "backup, or remove the directory and start again."
            )
        records = [kept[number] for number in range(1, round_ + 1)]
        self._last_round = round_
        text = "".join(format_line(record, self.identity) for record in records)
        self._rounds.close()
        with _disk(self.path):
            write_text(self.path / ROUNDS, text)
            (self.path / MODEL).unlink(missing_ok=True)  # there was room for the rounds
            (self.path / DIVERGED).unlink(missing_ok=True)
            self._rounds = (self.path / ROUNDS).open("a")

    def _lines_left(self) -> list[str]:
        try:
            return _lines(self.path / ROUNDS)
        except (FileNotFoundError, DamagedFileError):
            return []

    def _intact(self, lines: Sequence[str]) -> dict[int, Record]:
        passport, found = Passport(self.identity, {}), {}
        for line in lines:
            with suppress(ValueError, RecursionError):
                record = parse_line(line, passport)
                found[record["round"]] = record
        return found

    def write_round(self, record: Record) -> None:
        """Append one whole line."""
        ordered = {name: record.get(name) for name in COLUMNS} | record
        line = {name: _plain(value) for name, value in ordered.items()}
        with _disk(self.path):
            self._rounds.write(format_line(line, self.identity))
            self._rounds.flush()
        self._last_round = record["round"]

    def write_divergence(self, error: DivergedError) -> None:
        """Say that the run diverged, so that a sweep does not try it again and `resume` goes further back."""
        content = {"message": str(error), "since": error.since, "run": self.identity}
        try:
            write_text(self.path / DIVERGED, seal(content))
        except OSError as full:  # the divergence itself is what must be told
            log.warning("That the run diverged could not be noted in %s: %s", self.path, full)

    def write_model(self, tensors: dict[str, NDArray[Any]]) -> None:
        """Write the model, all of it or nothing."""
        whole = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        with _disk(self.path):
            fsync(self.path / ROUNDS)
            self._write_passport(arrays_digest(whole, {}))
            write_atomically(self.path / MODEL, lambda path: save_file(whole, path))

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
def _disk(directory: Path) -> Iterator[None]:
    """Turn disk errors into a RunError with advice."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{directory} cannot be written ({error}): what is there is whole; fix that, and continue from the "
            "last checkpoint with resume = true."
        ) from None


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
