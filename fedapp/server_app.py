"""The ServerApp: from a config to a problem, a strategy, observers and rounds."""

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedapp import agreement, building, memory
from fedapp.checkpoint import Checkpoints, CheckpointWriter
from fedapp.config import RunConfig
from fedapp.console import RunConsole
from fedapp.devices import find_device
from fedapp.engine import InlineGrid
from fedapp.engine.local import LocalGrid
from fedapp.engine.pulling import poll_often, pull_one_by_one
from fedapp.errors import ConfigError, log_as_one_sentence
from fedapp.evaluation import demand_held_out
from fedapp.files import writable_directory
from fedapp.grids import is_deployed
from fedapp.interruption import Interruption
from fedapp.node_config import data_dir_of
from fedapp.observers import Observer, ResultsWriter
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem, rehearse
from fedapp.problems.outline import server_shard
from fedapp.problems.protocols import FederatedProblem
from fedapp.progress import Progress
from fedapp.registry import find_algorithm
from fedapp.rounds import may_add_up, run_rounds
from fedapp.rounds_file import read_rounds
from fedapp.run_directory import RunDirectory
from fedapp.stopping import saved_before_exit
from fedapp.strategy import FederatedStrategy
from fedapp.trackers.log import TrackerLog, find_trackers, start_trackers
from fedapp.unused import warning as unused_warning
from fedapp.workspace import Workspace

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment."""
    log_as_one_sentence()
    config = parse_run_config(context.run_config)
    if unused := unused_warning([config]):
        log.warning("%s", unused)
    if is_deployed(grid):
        pull_one_by_one(grid)
        poll_often(grid)
        with saved_before_exit(grid):
            run(grid, config)
    else:
        run(grid, config)


def run(grid: Grid, config: RunConfig) -> RunDirectory:
    """Run one experiment on a grid; what it has is saved however it ends."""
    find_algorithm(config.algorithm)  # an unknown one is reported before data are loaded
    config = agreement.with_facts(grid, config)
    problem = make_problem(config, server_shard(config))
    building.check(config, problem)
    on_disk = config.state_dir or config.checkpoint_every or not isinstance(grid, LocalGrid)
    memory.check(config, problem, _processes_here(grid), may_add_up(grid), states=not on_disk)
    _check_places(grid, config, problem)
    with RunDirectory(config) as directory, Workspace(grid, config, directory) as workspace:
        strategy = building.make_strategy(config, problem, workspace.place)
        for warning in building.warnings(strategy):
            log.warning(warning)
        checkpoints = _checkpoints(config, directory, workspace)
        notes = workspace.notes + agreement.notes(config) + building.notes(strategy)
        if config.device == "auto":
            notes.append(f'device = "auto": this process uses {find_device("auto")}.')
        size, attendance = strategy.x.size, strategy.attendance
        progress = directory.progress(config)
        if config.resume and progress.complete:
            RunConsole(config, directory.path, size, notes, attendance).show_complete()
            return directory
        has_rounds = directory.has_rounds
        done = 0
        if config.resume:
            done = _resume(progress, directory, checkpoints, strategy)
            notes.append(f"Continuing after round {done}." if done else "Beginning at round 1.")
        _keep_privacy(strategy, directory, has_rounds)
        notes += strategy.privacy.notes(config.num_rounds - done)
        trackers = _start_trackers(config, directory, done)
        notes += [tracker.note for tracker in trackers]
        if config.tensorboard:
            notes.append('tensorboard = true still works; it is now tracker = "tensorboard".')
        if config.too_long:
            notes.append(f'too-long = "{config.too_long}" still works; it is now on-long-update.')
        console = RunConsole(config, directory.path, size, notes, attendance)
        shown_by = [console, *trackers]
        observers = _observers(config, problem, strategy, directory, checkpoints, shown_by)
        if isinstance(grid, LocalGrid):
            observers.append(_interruption(grid, config, directory, workspace, strategy))
        with closing(run_rounds(grid, strategy, problem, config, done, observers)) as rounds:
            for _ in rounds:
                pass  # the observers show and save it
    return directory


def _checkpoints(config: RunConfig, directory: RunDirectory, workspace: Workspace) -> Checkpoints:
    return Checkpoints(
        directory.path,
        directory.identity,
        config.flat(),
        workspace.states,
        directory.old_until,
    )


def _interruption(
    grid: Grid,
    config: RunConfig,
    directory: RunDirectory,
    workspace: Workspace,
    strategy: FederatedStrategy[Any],
) -> Interruption:
    """Return what ends the run after a round, when a signal asks for it, with a checkpoint of that round."""

    def save(round_: int) -> bool:
        if not workspace.keep(grid, strategy):
            return False
        checkpoints = _checkpoints(config, directory, workspace)  # with the states as they are now
        checkpoints.write(round_, strategy, directory.rounds_text())
        return bool(checkpoints.paths())

    return Interruption(directory.path, config.num_rounds, save)


def _processes_here(grid: Grid) -> int:
    """Return how many processes of this machine train clients, as far as that is known."""
    return int(getattr(grid, "processes_here", 1 if isinstance(grid, InlineGrid) else 0))


def _check_places(grid: Grid, config: RunConfig, problem: FederatedProblem) -> None:
    """Report what the config asks for and is not there, before the run has a directory."""
    if not is_deployed(grid):  # the nodes are on this machine
        contexts = grid.contexts.values() if isinstance(grid, InlineGrid) else ()
        demand_held_out(config, any(data_dir_of(context.node_config) for context in contexts))
        if config.server_data:  # and have no data but these
            rehearse(config, problem)
        if config.state_dir:
            writable_directory("state-dir", config.state_dir)
    find_trackers(config)


def _resume(
    progress: Progress,
    directory: RunDirectory,
    checkpoints: Checkpoints,
    strategy: FederatedStrategy[Any],
) -> int:
    """Restore the newest usable checkpoint; return its round, or 0 if the run starts again."""
    for sentence in progress.damage:
        log.warning("%s", sentence)
    restored = checkpoints.restore(strategy, directory.diverged_since())
    directory.go_back_to(restored.round, restored.rounds)
    return restored.round


def _keep_privacy(
    strategy: FederatedStrategy[Any], directory: RunDirectory, has_rounds: bool
) -> None:
    """Keep count of what the run spends of its privacy budget."""
    count = directory.path / "privacy.json"
    strategy.privacy.keep(count, directory.identity, has_rounds, directory.old_until > 0)


def _start_trackers(config: RunConfig, directory: RunDirectory, done: int) -> list[TrackerLog]:
    """Start the trackers; if one does not start, nothing is left of a new run."""
    past = read_rounds(directory.path) if done else []
    try:
        return start_trackers(config, directory.path, directory.identity, past)
    except ConfigError:
        directory.discard()
        raise


def _observers(
    config: RunConfig,
    problem: FederatedProblem,
    strategy: FederatedStrategy[Any],
    directory: RunDirectory,
    checkpoints: Checkpoints,
    shown_by: Sequence[Observer],
) -> list[Observer]:
    """Return who saves and shows the run, in the order in which they are called."""
    results = ResultsWriter(directory, lambda: problem.named_tensors(strategy.x, strategy.buffers))
    observers: list[Observer] = [results, *shown_by]
    if every := config.checkpoint_every:
        observers.append(CheckpointWriter(checkpoints, strategy, every, directory.rounds_text))
    return observers
