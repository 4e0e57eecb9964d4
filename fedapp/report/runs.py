"""Runs as they are on disk, read and checked; which of them are replicates, and how far each is."""

import logging
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.config import RunConfig
from fedapp.data.sources import SHAPES
from fedapp.errors import ConfigError
from fedapp.figures import TOTAL, find_figure, ranked, value_in
from fedapp.manifest import PARTIAL, read_manifest, with_defaults
from fedapp.names import one_line
from fedapp.progress import COMPUTES_NOTHING
from fedapp.report.status import Status, status_of
from fedapp.rounds_file import read_rounds

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Run:
    """A run: its name, config, rounds, and how far it is."""

    name: str
    config: dict[str, Any]
    rounds: list[dict[str, Any]]
    status: Status = field(default_factory=Status)

    def running_total(self, column: str) -> list[float]:
        """Return a column, added up over the rounds."""
        return list(accumulate(value or 0 for value in self.column(column)))

    def column(self, name: str) -> list[float | None]:
        """Return a column; None where a round has no such figure."""
        return [value_in(record, name) for record in self.rounds]

    def best(self, name: str = "test_accuracy") -> float:
        """Return a column's best figure, which for losses and distances is the smallest; nan if it has none."""
        found = [value for value in self.column(name) if value is not None]
        return find_figure(name).best(found) if found else float("nan")

    def result(self, name: str) -> float:
        """Return a figure at the round in which the model is best on validation samples; without any, its best."""
        judge = validated_by(name)
        rounds = [r for r in self.rounds if r.get(judge) is not None and r.get(name) is not None]
        if not judge or not rounds:
            return self.best(name)
        top = find_figure(judge).best(r[judge] for r in rounds)
        return float(next(r[name] for r in rounds if r[judge] == top))

    def outcome(self, name: str) -> float:
        """Return a column's result or, if it is a cost, what the whole run spent; nan if it has none."""
        spent = find_figure(name).unit in ("bytes", "bits", "seconds")
        known = any(value is not None for value in self.column(name))
        return self.running_total(name)[-1] if spent and known else self.result(name)


def validated_by(figure: str) -> str:
    """Return the name of the same metric on validation samples (`valid-share`); empty if it is not one on test samples."""
    return f"valid_{figure.removeprefix('test_')}" if figure.startswith("test_") else ""


# Where replicates may differ: in the seed, and in what computes nothing.
NOT_COMPARED = COMPUTES_NOTHING | {"seed"}
WHOLE = ("num-rounds", "num-clients", "clients-per-round", "eval-every", "seed")
WORDS = ("algorithm", "dataset", "model")


def read_run(directory: Path) -> Run:
    """Read a run; what is damaged is one sentence that names the file."""
    try:
        config = _checked_config(_config_of(directory))
    except FileNotFoundError:
        raise
    except Exception as error:  # JSON of any kind may be in there
        raise _damaged(directory / "config.json", error) from None
    try:
        rounds = _checked_rounds(read_rounds(directory))
    except FileNotFoundError:
        raise
    except Exception as error:
        raise _damaged(directory / "rounds.jsonl", error) from None
    return Run(one_line(directory.name), config, rounds, status_of(directory, config, rounds))


def _config_of(directory: Path) -> dict[str, Any]:
    """Return a run's config; defaults for the keys of later versions are looked up only if some are missing."""
    manifest = read_manifest(directory)
    every_run = RunConfig().flat().keys()
    return manifest.config if manifest.config.keys() >= every_run else manifest.full_config


def with_equal_keys(runs: Sequence[Run]) -> list[Run]:
    """Return runs whose configs have the same keys: one that a version did not have had, in effect, its default."""
    if all(run.config.keys() == runs[0].config.keys() for run in runs):
        return list(runs)
    return [replace(run, config=with_defaults(run.config)) for run in runs]


def _damaged(file: Path, error: Exception) -> ConfigError:
    if isinstance(error, ConfigError):
        return error
    reason = one_line((str(error).splitlines() or [type(error).__name__])[0])[:200]
    return ConfigError(
        f"{file} is not what a run writes ({reason}): restore it, or remove that directory."
    )


def _checked_config(config: dict[str, Any]) -> dict[str, Any]:
    for key in WHOLE:
        if type(config[key]) is not int or not 0 <= config[key] < 2**63:
            raise ValueError(f"{key} is not a whole number")
    if config["num-rounds"] < 1 or config["eval-every"] < 1:
        raise ValueError("num-rounds or eval-every is 0")
    target = config["target-accuracy"]
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 <= target <= 1:
        raise ValueError("target-accuracy is not between 0 and 1")
    for key in WORDS:
        if not isinstance(config[key], str):
            raise ValueError(f"{key} is not a text")
    return {one_line(key): _shown(value) for key, value in config.items()}


def _shown(value: object) -> object:
    """Return a config's value as it can be shown and compared."""
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    return one_line(str(value))[:1000]


def _checked_rounds(rounds: Sequence[object]) -> list[dict[str, Any]]:
    checked: list[dict[str, Any]] = []
    for line, record in enumerate(rounds, 1):
        number = record.get("round") if isinstance(record, dict) else None
        before = checked[-1]["round"] if checked else 0
        if not isinstance(record, dict) or type(number) is not int or not before < number < 2**53:
            raise ValueError(f"line {line} is not a round after round {before}")
        figures = {one_line(name): _figure(name, value, line) for name, value in record.items()}
        checked.append(figures)
    return checked


def _figure(name: str, value: object, line: int) -> float | None:
    """Return a finite number; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        raise ValueError(f"{name[:60]} in line {line} is too large for a number") from None


def load_runs(directories: Sequence[Path], read: Callable[[Path], Run] = read_run) -> list[Run]:
    """Read runs, each from its directory or from a directory of several; warn of those that cannot be read."""
    found = []
    for directory in directories:
        runs: list[Run] = []
        unreadable: list[ConfigError] = []
        for place in _places(directory):
            try:
                runs.append(read(place))
            except FileNotFoundError:  # it has just been removed
                continue
            except ConfigError as error:
                unreadable.append(error)
        if not runs and unreadable:
            raise unreadable[0]
        if not runs:
            raise ConfigError(f"{directory} holds no run: give directories with a rounds.jsonl.")
        for problem in unreadable:
            log.warning("Left out: %s", one_line(str(problem)))
        found += runs
    return with_equal_keys(found)


def _places(directory: Path) -> list[Path]:
    try:
        places = (
            [directory, *sorted(directory.iterdir(), key=_natural)] if directory.is_dir() else []
        )
        return [
            place
            for place in places
            if all((place / name).is_file() for name in ("config.json", "rounds.jsonl"))
            and PARTIAL not in place.name
        ]
    except OSError as error:
        raise ConfigError(f"{directory} cannot be read: {error.strerror or error}.") from None


def _natural(path: Path) -> list[tuple[float, str]]:
    """Return a key that sorts names by the numbers in them: m-9 before m-10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", path.name)
    return [(float(part), "") if part[:1].isdecimal() else (-1.0, part) for part in parts]


@dataclass(frozen=True)
class Group:
    """Runs that are shown as one: the complete replicates of a setting, or one run that is none of them."""

    name: str
    runs: list[Run]
    note: str = ""  # what a reader must know of it, besides its name


def setting_of(run: Run, apart: Collection[str] = ()) -> dict[str, Any]:
    """Return what replicates have in common: the config without the seed, but with the keys in `apart`."""
    free = NOT_COMPARED | ({"data-dir"} if run.config.get("dataset") in SHAPES else set())
    return {k: v for k, v in run.config.items() if k not in free or k in apart}


def in_settings(runs: Sequence[Run], apart: Collection[str] = ()) -> list[list[Run]]:
    """Group runs whose configs differ in nothing but the seed."""
    settings: dict[str, list[Run]] = {}
    for run in runs:
        key = repr(sorted(setting_of(run, apart).items()))
        settings.setdefault(key, []).append(run)
    return list(settings.values())


def replicates(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, str]]]:
    """Split a setting's runs into complete ones, one for each seed, and others, each with what it is."""
    kept: dict[Any, Run] = {}
    others = []
    for run in runs:
        seed = run.config.get("seed")
        if not run.status.complete:
            others.append((run, run.status.text))
        elif seed in kept:
            others.append((run, f"same config and seed as {kept[seed].name}"))
        else:
            kept[seed] = run
    return list(kept.values()), others


def in_groups(runs: Sequence[Run]) -> list[Group]:
    """Group the complete replicates of each setting; a run that is incomplete, or there twice, is a group of its own."""
    found: list[tuple[list[Run], str]] = []
    settings = in_settings(runs)
    for members in settings:
        kept, others = replicates(members)
        seeds = len({run.config.get("seed") for run in members})
        note = "" if len(kept) == seeds else f"{len(kept)} of {seeds} seeds complete"
        found += [(kept, note)] if kept else []
        found += [([run], what) for run, what in others]
    first = [group[0] for group, _ in found]
    # The runs of one setting share its name, which is then not what they all merely begin with.
    names = short_names(first) if len(settings) > 1 else [run.name for run in first]
    seedless = [re.sub(r"-?seed-\d+", "", name) or name for name in names]
    return [
        Group(without if len(group) > 1 or seedless.count(without) == 1 else name, group, note)
        for name, without, (group, note) in zip(names, seedless, found, strict=True)
    ]


def figure_to_show(runs: Sequence[Run], wanted: str = "") -> str:
    """Return the metric to show if none is asked for: the most telling one that a run has."""
    if wanted:
        return wanted
    names = ranked(name for run in runs for record in run.rounds for name in record)
    known = (name for name in names if any(not math.isnan(run.best(name)) for run in runs))
    return next(known, "test_accuracy")


def judged_by(runs: Sequence[Run], figure: str) -> str:
    """Return the metric that settings are chosen by: `figure`, or the same on validation samples if all runs have it.

    Runs without `figure`, which diverged before they were evaluated, do not count.
    """
    judge = validated_by(figure)
    evaluated = [run for run in runs if not math.isnan(run.best(figure))] if judge else []
    known = evaluated and all(not math.isnan(run.best(judge)) for run in evaluated)
    return judge if known else figure


def best_per(runs: Sequence[Run], keys: Sequence[str], figure: str = "test_accuracy") -> list[Run]:
    """Keep, for each value of some keys, the settings whose best figure, averaged over seeds, is best.

    A setting without a complete run is kept only where there is no other.
    """
    sign = -1.0 if find_figure(figure).better == "lower" else 1.0
    best: dict[tuple[Any, ...], tuple[tuple[bool, float], list[Run]]] = {}
    for members in in_settings(runs):
        for key in keys:
            if key not in members[0].config:
                raise ConfigError(f"--per takes a config key, not {key}.")
        kept, _ = replicates(members)
        reached = float(np.mean([run.best(figure) for run in kept or members]))
        place = tuple(members[0].config[key] for key in keys)
        rank = bool(kept), sign * reached
        if np.isfinite(reached) and (place not in best or rank > best[place][0]):
            best[place] = rank, members
    if not best:
        raise ConfigError(f"These runs have no metric {figure!r}.")
    chosen = [run for _, members in best.values() for run in members]
    return [run for run in runs if any(run is other for other in chosen)]


def short_names(runs: Sequence[Run]) -> list[str]:
    """Return the runs' names without what they all begin with."""
    parts = [run.name.split("-") for run in runs]
    while len(parts) > 1 and all(len(p) > 1 and p[0] == parts[0][0] for p in parts):
        parts = [p[1:] for p in parts]
    return ["-".join(p) for p in parts]


@dataclass(frozen=True)
class Reached:
    """What a run had spent, in rounds, bytes and simulated seconds, when it reached a target."""

    rounds: int
    uplink_bytes: float
    downlink_bytes: float
    total_bytes: float
    seconds: float
    seconds_nominal: float


def reach(run: Run, target: float, y: str = "test_accuracy") -> Reached | None:
    """Return what a run needed to reach `target` for the first time; None if it never did."""
    figure = find_figure(y)
    for index, value in enumerate(run.column(y)):
        if value is not None and figure.reaches(value, target):
            return Reached(
                run.rounds[index]["round"],
                run.running_total("uplink_bytes")[index],
                run.running_total("downlink_bytes")[index],
                run.running_total(TOTAL)[index],
                run.running_total("simulated_seconds")[index],
                run.running_total("simulated_seconds_nominal")[index],
            )
    return None
