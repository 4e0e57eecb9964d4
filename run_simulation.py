"""Run experiments without a SuperLink: `python run_simulation.py [PRESET.toml ...] [-c key=value]`.

Each preset is one run, or with a table [sweep] several (see fedapp/sweep.py); without any, the defaults of
pyproject.toml are. Runs of a sweep that are complete already are skipped. Exit code 0: all went well;
1: a run could not finish, or its directory holds a run with another config; 2: the config is invalid.
"""

import argparse
import logging
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fedapp.commandline import absolute_paths, add_config_arguments, read_overrides
from fedapp.config import RunConfig, parse_run_config
from fedapp.errors import ConfigError, RunError
from fedapp.names import one_line
from fedapp.sweep import PlannedRun, read_runs

if TYPE_CHECKING:
    from flwr.serverapp import Grid


MOST_NAMES = 20  # that a list names


@dataclass
class Tally:
    """How the runs of a command ended: the exit code, and which of them were not run, or not to their end."""

    code: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # run -> why
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # complete already, or diverged before

    def fail(self, config: RunConfig, error: ConfigError | RunError) -> None:
        """Count a run that ended early."""
        self.failed[config.run_name] = one_line(str(error))
        self.code = max(self.code, 2 if isinstance(error, ConfigError) else 1)


def main() -> int:
    """Parse the command line and run what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_config_arguments(parser)
    parser.add_argument(
        "--engine",
        choices=["ray", "inline"],
        default="ray",
        help="where clients run: on Ray workers (the default), or in this process",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="W",
        help="Ray workers, by default the CPUs that Ray sees; inline: runs of a sweep at once",
    )
    parser.add_argument(
        "--address", default="", help="a Ray cluster to join; default: start Ray here"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="check the runs, and show what they would cost"
    )
    parser.add_argument(
        "--best-by", default="test_accuracy", metavar="FIGURE", help="what --per chooses by"
    )
    parser.add_argument(
        "--per",
        action="append",
        default=[],
        metavar="KEY",
        help="of a sweep's runs, show at the end only the best for each value of this key",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="results directory")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    before = signal.getsignal(signal.SIGTERM)
    _take_sigterm_as_ctrl_c()
    try:
        return _run_all(arguments)
    except ConfigError as error:
        print(one_line(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; the rounds so far are saved.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _take_sigterm_as_ctrl_c() -> None:
    """Have SIGTERM save the rounds so far: batch systems and containers end their jobs with it."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: object) -> NoReturn:
    """Interrupt this process, and runs that are side by side: Ctrl-C reaches them all, SIGTERM one."""
    for child in multiprocessing.active_children():
        if child.pid:
            os.kill(child.pid, signal.SIGINT)
    raise KeyboardInterrupt


def _run_all(arguments: argparse.Namespace) -> int:
    presets = [run for preset in arguments.presets for run in read_runs(preset)]
    planned = presets or [PlannedRun("", {})]
    runs = [_config(run, arguments) for run in planned]
    for key in arguments.per:
        if key not in runs[0].flat():
            raise ConfigError(f"--per takes a config key, not {key}.")
    if arguments.dry_run:
        return _show_plan(runs)
    from fedapp.problems import make_problem

    tally = Tally()
    swept = [config for plan, config in zip(planned, runs, strict=True) if plan.name]
    _refuse(swept, tally)
    left = [
        (plan, config)
        for plan, config in zip(planned, runs, strict=True)
        if not (plan.name and config.run_name in tally.refused)
    ]
    if not left:
        return tally.code
    planned, runs = [plan for plan, _ in left], [config for _, config in left]
    # What is wrong with the data is told before an engine starts.
    make_problem(runs[0]).objective(0)
    if arguments.engine == "inline" and arguments.workers > 1 and all(run.name for run in planned):
        _run_side_by_side(runs, arguments.workers, tally)
    else:
        if arguments.engine == "inline" and arguments.workers > 1:
            print("Plain presets run sequentially.")
        _run_in_turn(planned, runs, arguments, tally)
    if len(swept) > 1:
        started = [config for config in swept if config.run_name not in tally.refused]
        _show_outcome(started, arguments.best_by, arguments.per, tally)
    return tally.code


def _refuse(swept: list[RunConfig], tally: Tally) -> None:
    """Leave out the runs whose directories hold a run with another config: its results are not this sweep's."""
    from fedapp.manifest import different, read_config, results_dir

    for config in swept:
        directory = results_dir(config) / config.run_name
        try:
            key = different(read_config(directory), config, {"resume"})
        except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is damaged
            continue
        if key:
            why = f"{directory} holds a run with another config ({key}): choose another --out, or remove it."
            tally.refused[config.run_name] = why
            tally.code = max(tally.code, 1)
            print(one_line(why), file=sys.stderr)


def _run_in_turn(
    planned: list[PlannedRun], runs: list[RunConfig], arguments: argparse.Namespace, tally: Tally
) -> None:
    """Run one after the other on one engine."""
    from fedapp import server_app
    from fedapp.progress import skip_reason
    from fedapp.run_directory import set_partial_aside

    spent, ended = 0.0, 0
    with _engine(arguments) as make_grid:
        for number, (plan, config) in enumerate(zip(planned, runs, strict=True), 1):
            if len(runs) > 1:
                left = spent / max(ended, 1) * (len(runs) - number + 1)
                when = f", about {_duration(left)} left" if ended else ""
                print(f"\nRun {number} of {len(runs)}{when}")
            started = time.monotonic()
            try:
                if plan.name and (reason := skip_reason(config)):
                    print(f"{config.run_name} {reason}: skipped")
                    tally.skipped.append(config.run_name)
                    continue
                if plan.name:
                    set_partial_aside(config)
                server_app.run(make_grid(config), config)
            except (ConfigError, RunError) as error:  # the other runs go on
                print(one_line(str(error)), file=sys.stderr)
                tally.fail(config, error)
            spent, ended = spent + time.monotonic() - started, ended + 1


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _run_side_by_side(runs: list[RunConfig], workers: int, tally: Tally) -> None:
    """Run several runs of a sweep at once, each in a process of its own."""
    from fedapp.parallel import run_all
    from fedapp.progress import last_record

    tally.skipped += [config.run_name for config in runs if _ended_before(config)]
    started = time.monotonic()
    for number, (config, error) in enumerate(run_all(runs, workers), 1):
        left = _duration((time.monotonic() - started) / number * (len(runs) - number))
        record = last_record(config)
        shown = [
            f"{k} {record[k]:.4g}" for k in ("test_accuracy", "gap") if record.get(k) is not None
        ]
        if error:
            shown.append(one_line(str(error)))
            tally.fail(config, error)
        print(
            f"{number}/{len(runs)}, {left} left: {config.run_name}  {'  '.join(shown)}",
            flush=True,
        )


def _ended_before(config: RunConfig) -> bool:
    """Tell whether a sweep skips a run: its model is there and all its rounds are, or it diverged."""
    from fedapp.manifest import results_dir
    from fedapp.report.runs import read_run
    from fedapp.report.status import State

    directory = results_dir(config) / config.run_name
    try:
        state = read_run(directory).status.state
    except (OSError, ConfigError):
        return False
    whole = state is State.COMPLETE and (directory / "model.safetensors").is_file()
    return whole or state is State.DIVERGED


def _show_plan(runs: list[RunConfig]) -> int:
    """Check all runs, and print what they would send and receive."""
    from rich.console import Console

    from fedapp.parallel import silence
    from fedapp.plan import plan

    with silence():
        common, table = plan(runs)
    print(common)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print("Nothing was run. Bytes are of all the clients of a round, nominal where compressed.")
    return 0


def _show_outcome(runs: list[RunConfig], best_by: str, per: list[str], tally: Tally) -> None:
    """Print the results of a sweep: a table of its runs, and which of them are not complete."""
    from rich.console import Console

    from fedapp.manifest import results_dir
    from fedapp.report.runs import Run, best_per, load_runs
    from fedapp.report.table import closing_table

    loaded: list[Run] = []
    for place in (results_dir(config) / config.run_name for config in runs):
        if (place / "rounds.jsonl").is_file():
            try:
                loaded += load_runs([place])
            except ConfigError as error:
                print(one_line(str(error)), file=sys.stderr)
    if best_by == "test_accuracy" and all(math.isnan(run.best(best_by)) for run in loaded):
        best_by = "gap"  # problems without classes
    if loaded:
        chosen = best_per(loaded, per, best_by) if per else loaded
        print()
        Console(width=None if sys.stdout.isatty() else 160).print(closing_table(chosen, best_by))
    for what, names in (
        ("Not in the table, because their directories hold other runs", list(tally.refused)),
        ("Failed", list(tally.failed)),
        ("Skipped, because they had ended before", tally.skipped),
    ):
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            print(f"{what}: {', '.join(names[:MOST_NAMES])}{more}")
    print(f"Results: {results_dir(runs[0])}")


def _config(run: PlannedRun, arguments: argparse.Namespace) -> RunConfig:
    """Read and check one run's config."""
    overrides = read_overrides([], arguments.config)
    for key in sorted(run.chosen & set(overrides)):
        raise ConfigError(f"-c {key} cannot be set here: it is an axis of the sweep.")
    values = run.values | overrides
    if run.name:
        values["run-name"] = run.name
        if values.get("checkpoint-every"):
            values["resume"] = True
    if arguments.out:
        values["results-dir"] = str(arguments.out)
    config = parse_run_config(absolute_paths(values))
    from fedapp.registry import find_algorithm

    find_algorithm(config)
    return config


@contextmanager
def _engine(arguments: argparse.Namespace) -> Iterator[Callable[[RunConfig], "Grid"]]:
    """Start the engine that all runs share."""
    from fedapp import client_app, engine
    from fedapp.problems import make_problem

    if arguments.engine == "inline":
        yield lambda config: engine.InlineGrid(client_app.app, config.flat())
        return
    from fedapp.engine.ray import RayGrid, RayWorkers

    def ray_grid(config: RunConfig) -> RayGrid:
        problem, work = make_problem(config), config.local_work
        return RayGrid(
            workers, config.flat(), lambda c: work.samples(problem.objective(c).num_examples)
        )

    with RayWorkers(arguments.workers, arguments.address) as workers:
        _take_sigterm_as_ctrl_c()  # Ray has set a handler of its own
        yield ray_grid


if __name__ == "__main__":
    sys.exit(main())
