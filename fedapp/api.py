"""Runs and sweeps from Python: `from fedapp import run, sweep`.

    result = run({"algorithm": "fedcomgate", "model": my_net, "num_rounds": 20})
    result.frame().plot("round", "test_accuracy")
    my_net.load_state_dict(result.model)

Keys are those of the config, in kebab-case or with underscores. Python objects are taken where the config names things.
"""

import contextlib
import itertools
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedapp.config import RunConfig
from fedapp.doors import given, register, short
from fedapp.errors import ConfigError
from fedapp.keywords import OBJECTS, as_values, key_path
from fedapp.manifest import MODEL, read_manifest, run_path
from fedapp.parallel import silence
from fedapp.parsing import parse_run_config
from fedapp.rounds_file import Record, read_rounds
from fedapp.runner import EngineChoice, Runner, planned_config, sigterm_as_ctrl_c
from fedapp.sweeps import Point, plan_product, point_name
from fedapp.tables import Value
from fedapp.unused import warning as unused_warning

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]
    from torch import Tensor

log = logging.getLogger("flwr")
Engine = Literal["inline", "ray"]
Config = Mapping[str, Any] | RunConfig | None


@dataclass(frozen=True)
class RunResult:
    """A run that has ended: its config, its directory, and what is in there."""

    config: RunConfig
    directory: Path

    @cached_property
    def rounds(self) -> list[Record]:
        """The record of each round, as in `rounds.jsonl`."""
        return read_rounds(self.directory)

    @cached_property
    def model(self) -> "dict[str, Tensor]":
        """The model's state dict."""
        from safetensors.torch import load_file

        return load_file(self.directory / MODEL)

    def frame(self) -> "DataFrame":
        """Return the rounds as a DataFrame with a row for each."""
        from pandas import DataFrame

        return DataFrame(self.rounds)

    def __repr__(self) -> str:
        """Say what was run, and where it is."""
        return f"<{len(self.rounds)} rounds of {self.config.algorithm} in {self.directory}>"


@dataclass(frozen=True)
class SweepResult(Sequence[RunResult]):
    """The runs of a sweep that have rounds, each with its point on every axis; and why others failed."""

    runs: list[RunResult]
    points: list[dict[str, Value]]
    failed: dict[str, str] = field(default_factory=dict)  # run -> why

    def frame(self) -> "DataFrame":
        """Return the rounds of all runs as one DataFrame; the first columns are the run and its points."""
        from pandas import DataFrame, concat

        frames = []
        for result, point in zip(self.runs, self.points, strict=True):
            frame = result.frame()
            for place, (axis, value) in enumerate({"run": result.directory.name, **point}.items()):
                frame.insert(place, f"{axis} (axis)" if axis in frame else axis, value)
            frames.append(frame)
        return concat(frames, ignore_index=True) if frames else DataFrame()

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.runs)

    def __getitem__(self, index: Any) -> Any:
        """Return a run by its place."""
        return self.runs[index]


def run(
    config: Config = None,
    *,
    engine: Engine = "inline",
    workers: int = 0,
    address: str = "",
    workers_per_gpu: int = 0,
    show: bool = True,
    **keys: Any,
) -> RunResult:
    """Run one config, given as a dict or as keyword arguments, which win; return its result.

    `engine` is where clients run: in this process, or on `workers` Ray workers (0: one for each CPU), which may be those of
    the cluster at `address`. If `device` is "auto" or "cuda", there are `workers_per_gpu` of them on each GPU that Ray sees
    (0: one). With `show=False` nothing is printed. What is wrong with the config is a ConfigError; a run that cannot go on
    is a RunError, and what it has is saved.
    """
    from fedapp import server_app
    from fedapp.problems import make_problem, rehearse

    parsed = parse_run_config(_with_old_names(_values(config, keys)))
    with _settings(show):
        if unused := unused_warning([parsed]):
            log.warning("%s", unused)
        if parsed.server_data:  # what is wrong with the data is told before an engine starts
            rehearse(parsed, make_problem(parsed))
        chosen = _engine(engine, workers, address, workers_per_gpu)
        with chosen.start([parsed]) as make_grid:
            directory = server_app.run(make_grid(parsed), parsed)
    return RunResult(parsed, directory.path)


def sweep(
    config: Config = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    name: str = "",
    engine: Engine = "inline",
    workers: int = 0,
    address: str = "",
    workers_per_gpu: int = 0,
    show: bool = True,
    **keys: Any,
) -> SweepResult:
    """Run the product of some axes; return the results.

    An axis is a key and its values; or, under any other name, a list of dicts of keys, each with a `name`. With a `name`,
    the sweep can be run again, and runs that are complete are skipped. With the inline engine, `workers` runs are
    computed at a time. A run that fails does not end the others.
    """
    stem = name or time.strftime("sweep-%Y%m%d-%H%M%S")
    if not axes:
        raise ConfigError('A sweep needs axes: give some, for example axes={"seed": [0, 1]}.')
    points = [_points(axis, values) for axis, values in axes.items()]
    planned = plan_product(stem, _values(config, keys), points, "this sweep")
    configs = [planned_config(run) for run in planned]
    choices = itertools.product(*map(_labels, axes, points))
    labels = [dict(choice) for choice in choices]
    with _settings(show):
        runner = Runner(tuple(zip(planned, configs, strict=True)), "test_accuracy", ())
        tally = runner.run(_engine(engine, workers, address, workers_per_gpu))
    ended = [
        (RunResult(config, run_path(config)), label)
        for config, label in zip(configs, labels, strict=True)
        if config.run_name not in tally.refused and (run_path(config) / MODEL).is_file()
    ]
    failed = tally.refused | tally.failed
    return SweepResult([run for run, _ in ended], [label for _, label in ended], failed)


@contextlib.contextmanager
def _settings(show: bool) -> Iterator[None]:
    """Log warnings only, or with `show=False` errors only and print nothing; SIGTERM interrupts; all as before at the end."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_as_ctrl_c())
        stack.enter_context(silence(logging.WARNING if show else logging.ERROR))
        if not show:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        yield


def _values(config: Config, keys: Mapping[str, Any]) -> dict[str, Value]:
    """Return the keys of a config, and those given beside it."""
    below = config.flat() if isinstance(config, RunConfig) else as_values(config or {})
    return below | as_values(keys)


def _with_old_names(values: dict[str, Value]) -> dict[str, Value]:
    """Give objects of a run that is resumed the names that they had; an object has another in every process."""
    if not (resume := values.get("resume")):
        return values
    place = Path(resume) if isinstance(resume, str) else run_path(parse_run_config(values))
    try:
        before = read_manifest(place).config
    except (OSError, ConfigError):  # there is none yet, or the run will say what is wrong
        return values
    objects = given()
    for key in OBJECTS:
        old, new = str(before.get(key, "")), str(values.get(key, ""))
        if new in objects and old != new and _unnumbered(old) == _unnumbered(new):
            register({old: objects[new]})
            values = values | {key: old}
    return values


def _unnumbered(name: str) -> str:
    return re.sub(r"-\d+$", "", name)


def _engine(engine: str, workers: int, address: str, workers_per_gpu: int) -> EngineChoice:
    if engine not in ("inline", "ray"):
        raise ConfigError(f'engine = {engine!r} is not known: choose "inline" or "ray".')
    return EngineChoice(engine == "inline", workers, address, workers_per_gpu)


def _points(axis: str, values: Sequence[Any]) -> list[Point]:
    """Return the points of an axis."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise ConfigError(f"The axis {axis} should be a list of values.")
    points: list[Point] = []
    for value in values:
        if isinstance(value, Mapping):
            keys = dict(value)
            if not isinstance(name := keys.pop("name", None), str):
                raise ConfigError(f"Every point of the axis {axis} needs a name.")
            points.append((name, as_values(keys)))
        else:
            found = as_values({axis: value})
            points.append((point_name(key_path(axis), found[key_path(axis)]), found))
    return points


def _labels(axis: str, points: Sequence[Point]) -> list[tuple[str, Value]]:
    """Return the column of an axis in a frame, with the value of each point: that of its key, or its name."""
    key = key_path(axis)
    return [
        (key, short(str(keys[key])) if key in OBJECTS else keys[key])
        if key in keys
        else (axis, name)
        for name, keys in points
    ]
