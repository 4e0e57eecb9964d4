"""What `fedapp run` does: run presets and sweeps on one engine, without a SuperLink.

Each preset is one run, or several if it has a table [sweep] (see fedapp/sweeps.py). Runs of a sweep that are complete
already are skipped. Exit codes: 0 if all went well; 1 if a run could not finish, or its directory holds a run with
another config; 2 if the config is invalid; 130 after Ctrl-C or SIGTERM.
"""

import logging
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from fedapp.commandline import absolute_paths, read_overrides
from fedapp.config import RunConfig
from fedapp.doors import given_for
from fedapp.durations import human_time
from fedapp.errors import ConfigError, RunError, traceback_of, unexpected
from fedapp.figures import find_figure, ranked
from fedapp.interruption import RunInterruptedError
from fedapp.names import did_you_mean, one_line
from fedapp.report.outcome import Tally, show_outcome
from fedapp.sweeps import PlannedRun, read_runs

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fedapp.problems.protocols import FederatedProblem

log = logging.getLogger("flwr")
WORK_KNOWN = 2**16  # clients whose work is remembered


@dataclass(frozen=True)
class EngineChoice:
    """Where clients run: in this process (inline), or on `workers` Ray workers (0: one for each CPU).

    `inline` is None if whichever is faster is to be chosen.
    """

    inline: bool | None
    workers: int
    address: str  # a Ray cluster's; empty: start Ray here
    workers_per_gpu: int = 0  # 0: one, if the runs use GPUs

    @contextmanager
    def start(self, configs: Sequence[RunConfig]) -> Iterator[Callable[[RunConfig], "Grid"]]:
        """Start the engine that all runs share; yield what makes a run's grid on it."""
        from fedapp import client_app, engine
        from fedapp.problems import make_problem

        if self.inline:
            yield lambda config: engine.InlineGrid(client_app.app, config.flat())
            return
        from fedapp.engine.placement import device_for_all
        from fedapp.engine.ray import RayGrid
        from fedapp.engine.ray_workers import RayWorkers

        def ray_grid(config: RunConfig) -> RayGrid:
            if not config.server_data:  # nothing is known about the clients' sizes
                return RayGrid(workers, config.flat())
            problem, work = make_problem(config), config.local_work

            @lru_cache(maxsize=WORK_KNOWN)  # it is asked several times in a round
            def work_of(client: int) -> float:
                return work.samples(problem.objective(client).num_examples)

            return RayGrid(workers, config.flat(), work_of)

        device = device_for_all(config.device for config in configs)
        started = RayWorkers(
            self.workers, self.address, device=device, workers_per_gpu=self.workers_per_gpu
        )
        # In this order: Ray sets its own handler of SIGTERM.
        with started as workers, sigterm_as_ctrl_c():
            if share := workers.placement.gpu_share:
                print(f"{len(workers.actors)} workers, each with {share:.3g} of a GPU")
            yield ray_grid

    def decided(
        self, configs: Sequence[RunConfig], problem: "FederatedProblem | None"
    ) -> "EngineChoice":
        """Return the choice for these runs, the first of which has this problem; with None, the server has no data."""
        from fedapp.engine.choice import inline_is_faster, seconds_of_training, workers_here

        if self.inline is not None:
            return self
        if problem is None or not configs:
            return replace(self, inline=problem is not None)
        seconds = seconds_of_training(configs, problem)
        inline = inline_is_faster(seconds, workers_here(configs[0].device))
        print(
            f"Engine: {'inline' if inline else 'ray'}, for about {human_time(seconds)} of training in one process"
        )
        return replace(self, inline=inline)

    def __post_init__(self) -> None:
        """Raise ConfigError if GPUs are to be shared without Ray, which deals them."""
        if self.inline and self.workers_per_gpu:
            raise ConfigError(
                f"--workers-per-gpu = {self.workers_per_gpu} is for Ray's workers: use the engine ray, or leave it out."
            )


@dataclass(frozen=True)
class Runner:
    """The runs that a command line asks for.

    After a sweep, a table shows its runs, or with `per` only the best for each value of these keys.
    """

    planned: tuple[tuple[PlannedRun, RunConfig], ...]
    best_by: str
    per: tuple[str, ...]

    @classmethod
    def read(
        cls,
        presets: Sequence[Path] = (),
        assignments: Sequence[str] = (),
        out: Path | None = None,
        best_by: str = "test_accuracy",
        per: Sequence[str] = (),
    ) -> Self:
        """Read and check the config of every run; without a preset, there is one run with the defaults."""
        found = [run for preset in presets for run in read_runs(preset)] or [PlannedRun("", {})]
        planned = tuple((run, planned_config(run, assignments, out)) for run in found)
        known = planned[0][1].flat()
        for key in per:
            if key not in known:
                raise ConfigError(f"--per takes a config key, not {key}{did_you_mean(key, known)}.")
        return cls(planned, best_by, tuple(per))

    @property
    def configs(self) -> list[RunConfig]:
        """The config of each run."""
        return [config for _, config in self.planned]

    def show_plan(self) -> None:
        """Check all runs, and print what they would send and receive."""
        from fedapp.parallel import silence
        from fedapp.plan import plan
        from fedapp.terminal import make_console

        with silence():
            common, table = plan(self.configs)
        print(common)
        make_console(width=None if sys.stdout.isatty() else 160).print(table)
        print("Nothing was run. Bytes are of all the clients of a round, nominal where compressed.")

    def run(self, engine: EngineChoice) -> Tally:
        """Run everything, and return how the runs ended."""
        from fedapp.problems import make_problem, rehearse
        from fedapp.unused import warning

        tally = Tally()
        if unused := warning(self.configs):
            log.warning("%s", unused)
        swept = [config for plan, config in self.planned if plan.name]
        _refuse(swept, tally)
        left = [
            (plan, config)
            for plan, config in self.planned
            if not (plan.name and config.run_name in tally.refused)
        ]
        if not left:
            return tally
        todo = [config for plan, config in left if not (plan.name and _is_skipped(config))]
        first = todo[0] if todo else left[0][1]
        # What is wrong with the data is told before an engine starts.
        problem = make_problem(first) if first.server_data else None
        if problem:
            rehearse(first, problem)
        engine = engine.decided(todo, problem)
        several = engine.inline and engine.workers > 1
        # Other processes cannot import what was given as a Python object.
        objects = any(given_for(config.flat().values()) for _, config in left)
        if several and not objects and all(plan.name for plan, _ in left):
            _run_side_by_side([config for _, config in left], engine.workers, tally)
        else:
            if several:
                what = "Runs with Python objects" if objects else "Plain presets"
                print(f"{what} run sequentially.")
            _run_in_turn(left, engine, tally)
        if len(swept) > 1:
            started = [config for config in swept if config.run_name not in tally.refused]
            show_outcome(started, self.best_by, self.per, tally)
        return tally


def run_command(
    read: Callable[[], Runner], engine: EngineChoice, dry_run: bool, words: Sequence[str] = ()
) -> int:
    """Read what is to be run, run it or show what it would cost, and return the exit code.

    `words` are the command line, which an interrupted run is continued with.
    """
    runner: Runner | None = None
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        with sigterm_as_ctrl_c():
            runner = read()
            if not dry_run:
                return runner.run(engine).code
            runner.show_plan()
            return 0
    except KeyboardInterrupt as interrupt:
        print(one_line(_how_to_continue(interrupt, runner, words)), file=sys.stderr)
        return 130


def _how_to_continue(
    interrupt: KeyboardInterrupt, runner: Runner | None, words: Sequence[str]
) -> str:
    """Say what is saved, what was not started, and with which command to continue."""
    from fedapp.manifest import run_path

    said = str(interrupt) or "Interrupted; the rounds so far are saved"
    if not runner or not words:
        return f"{said}."
    swept = [config for plan, config in runner.planned if plan.name]
    if swept:  # complete runs are skipped
        left = sum(not run_path(config).exists() for config in swept)
        said += f"; not started: {left} of {len(swept)} runs" if left else ""
        return f"{said}; continue with: {shlex.join(['fedapp', *words])}"
    if not isinstance(interrupt, RunInterruptedError) or not interrupt.resumable:
        return f"{said}."
    others = {str(plan.preset) for plan, _ in runner.planned} - {str(interrupt.preset)}
    mine = [word for word in words if str(Path(word)) not in others]
    command = shlex.join(["fedapp", *mine, "-c", f"resume={interrupt.directory}"])
    return f"{said}; continue with: {command}"


def planned_config(
    run: PlannedRun, assignments: Sequence[str] = (), out: Path | None = None
) -> RunConfig:
    """Read and check one run's config."""
    from fedapp.files import checkpoint_paths
    from fedapp.manifest import CHECKPOINTS, run_path
    from fedapp.parsing import parse_run_config
    from fedapp.registry import find_algorithm

    overrides = read_overrides([], assignments)
    for key in sorted(run.chosen & set(overrides)):
        raise ConfigError(f"-c {key} cannot be set here: it is an axis of the sweep.")
    values = run.values | overrides
    if run.name:
        values["run-name"] = run.name
        if values.get("checkpoint-every"):
            values["resume"] = True
    if out:
        values["results-dir"] = str(out)
    config = parse_run_config(absolute_paths(values))
    find_algorithm(config.algorithm)
    if run.name and not config.resume and checkpoint_paths(run_path(config) / CHECKPOINTS):
        config = config.model_copy(update={"resume": True})  # it was interrupted
    return config


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Have SIGTERM save the rounds so far while this context is open: batch systems and containers end their jobs with it.

    Only the main thread may change what signals do; elsewhere they stay as they are.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> NoReturn:
    """Interrupt this process, and runs that are side by side: Ctrl-C reaches them all, SIGTERM one."""
    for child in multiprocessing.active_children():
        if child.pid:
            os.kill(child.pid, signal.SIGINT)
    raise KeyboardInterrupt


def _refuse(swept: Sequence[RunConfig], tally: Tally) -> None:
    """Leave out the runs whose directories hold a run with another config: its results are not this sweep's."""
    from fedapp.manifest import different, read_config, run_path

    for config in swept:
        directory = run_path(config)
        try:
            key = different(read_config(directory), config, {"resume"})
        except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
            continue
        if key:
            why = f"{directory} holds a run with another config ({key}): choose another --out, or remove it."
            tally.refuse(config, why)
            print(one_line(f"{config.run_name}: refused, {why}"), file=sys.stderr)


def _run_in_turn(
    runs: Sequence[tuple[PlannedRun, RunConfig]], engine: EngineChoice, tally: Tally
) -> None:
    """Run one after the other on one engine."""
    from fedapp import server_app
    from fedapp.progress import last_record, skip_reason
    from fedapp.run_directory import set_partial_aside

    spent, ended = 0.0, 0
    with engine.start([config for _, config in runs]) as make_grid:
        for number, (plan, config) in enumerate(runs, 1):
            if len(runs) > 1:
                left = spent / max(ended, 1) * (len(runs) - number + 1)
                when = f", about {human_time(left)} left" if ended else ""
                print(f"\nRun {number} of {len(runs)}{when}")
            started = time.monotonic()
            label = f"{plan.name}: " if plan.name else ""
            try:
                if plan.name and (reason := skip_reason(config)):
                    print(f"{label}skipped, it {reason}")
                    tally.skipped.append(config.run_name)
                    continue
                if plan.name:
                    set_partial_aside(config)
                server_app.run(make_grid(config), config)
                tally.ran.append(config.run_name)
                if label:
                    print(f"{label}run, {last_record(config).get('round', 0)} rounds")
            except RunInterruptedError as interrupt:
                raise interrupt.of(plan.preset) from None
            except (ConfigError, RunError) as error:  # the other runs go on
                failed = f"{label}failed, " if label else ""
                print(failed + one_line(str(error)) + traceback_of(error), file=sys.stderr)
                tally.fail(config, error)
            except Exception as error:
                if not plan.name:
                    raise
                log.exception("%s: failed", plan.name)
                tally.fail(config, unexpected(error))
            spent, ended = spent + time.monotonic() - started, ended + 1


def _run_side_by_side(runs: Sequence[RunConfig], workers: int, tally: Tally) -> None:
    """Run several runs of a sweep at once, each in its own process."""
    from fedapp.parallel import run_all
    from fedapp.progress import last_record

    tally.skipped += [config.run_name for config in runs if _is_skipped(config)]
    started = time.monotonic()
    for number, (config, error) in enumerate(run_all(runs, workers), 1):
        left = human_time((time.monotonic() - started) / number * (len(runs) - number))
        record = last_record(config)
        known = [find_figure(name) for name in ranked(record) if record[name] is not None]
        shown = [f"{figure.label} {figure.text(record[figure.name])}" for figure in known[:2]]
        if config.run_name in tally.skipped:
            shown.insert(0, "skipped")
        elif error:
            shown = [f"failed, {one_line(str(error))}"]
            tally.fail(config, error)
        else:
            shown.insert(0, "run")
            tally.ran.append(config.run_name)
        print(
            f"{number}/{len(runs)}, {left} left: {config.run_name}: {', '.join(shown)}",
            flush=True,
        )


def _is_skipped(config: RunConfig) -> bool:
    """Tell whether a sweep skips a run; what is wrong with its directory is reported when it is run."""
    from fedapp.progress import skip_reason

    try:
        return bool(skip_reason(config))
    except (OSError, ConfigError):
        return False
