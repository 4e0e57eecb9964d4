"""The ServerApp: from a config to a strategy, rounds and results."""

import logging
import shutil
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from fedapp.checkpoint import Checkpoints
from fedapp.config import RunConfig, parse_run_config
from fedapp.console import RunConsole
from fedapp.deliveries import UNDELIVERED
from fedapp.engine.pulling import pull_one_by_one
from fedapp.errors import DivergedError, log_as_one_sentence
from fedapp.files import writable_directory
from fedapp.problems import make_problem
from fedapp.records import RunDirectory
from fedapp.registry import find_algorithm, keeps_state, make_strategy
from fedapp.report.tensorboard import TensorBoardLog, writer_type
from fedapp.rounds import run_rounds
from fedapp.state import CLIENT_STATE, DirectoryStore
from fedapp.stopping import saved_before_exit

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment."""
    log_as_one_sentence()
    config = parse_run_config(context.run_config)
    if not isinstance(grid, HttpGrid):
        run(grid, config)
        return
    with saved_before_exit(grid):
        run(grid, config)


def run(grid: Grid, config: RunConfig) -> RunDirectory:
    """Run one experiment on a grid; what it has is saved however it ends."""
    find_algorithm(config)  # an unknown one is told before data are loaded
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    strategy.facts = problem.facts
    deployed = isinstance(grid, HttpGrid)
    if isinstance(grid, HttpGrid):
        pull_one_by_one(grid)
    else:  # the nodes are on this machine, and have no data but these
        problem.objective(0)
        if config.state_dir:
            writable_directory("state-dir", config.state_dir)
    if config.tensorboard:
        writer_type()
    directory = RunDirectory(config)
    board = None
    client_state = directory.path / CLIENT_STATE
    shares_disk = not deployed and getattr(grid, "shares_disk", True)
    checkpoints = Checkpoints(
        directory.path, directory.identity, config.flat(), old_until=directory.old_until
    )
    lasting = bool(config.checkpoint_every or checkpoints.paths())  # the run may be resumed
    strategy.durable_states = not shares_disk
    strategy.deliveries.spill_to(directory.path / UNDELIVERED, directory.identity)
    try:
        if config.tensorboard:
            board = TensorBoardLog(directory.path)
        if keeps_state(config) and not config.state_dir:
            if isinstance(grid, InMemoryGrid) or (lasting and not deployed):
                # Flower's simulation carries a node's Context with every message to it and back; and what
                # is in a process's memory is lost with it.
                strategy.state_dir = str(writable_directory("results-dir", client_state))
            elif lasting:
                strategy.notes.append(
                    "Nodes without a state-dir of their own forget what their clients remember when a run resumes."
                )
        if keeps_state(config) and strategy.state_dir and shares_disk:
            states = Path(strategy.state_dir).expanduser() / directory.identity
            checkpoints.states = DirectoryStore(states)
        complete = bool(config.resume) and directory.is_complete(config)
        done = 0
        begun = directory.begun
        if config.resume and not complete:
            restored = checkpoints.restore(strategy, directory.diverged_since())
            done = restored.round
            directory.go_back_to(done, restored.rounds)
            strategy.notes.append(
                f"Going on after round {done}." if done else "Beginning at round 1."
            )
        if strategy.privacy and not complete:
            count = directory.path / "privacy.json"
            strategy.privacy.keep(count, directory.identity, begun, directory.old_until > 0)
            strategy.notes.append(strategy.privacy.forecast(config.num_rounds - done))
            for warning in strategy.privacy.warnings():
                log.warning(warning)
        strategy.notes.append(strategy.what_is_sent())
        with RunConsole(config, directory, strategy.x.size, strategy.notes) as console:
            rounds = run_rounds(
                grid, strategy, problem, config, directory.identity, done, console.nodes
            )
            if complete:
                console.say("This run is complete already.")
                return directory
            try:
                for record in rounds:
                    directory.write_round(record)
                    console.round(record)
                    if board:
                        board.round(record)
                    if config.checkpoint_every and record["round"] % config.checkpoint_every == 0:
                        checkpoints.write(record["round"], strategy, directory.rounds_text())
            except DivergedError as error:
                directory.write_divergence(error)
                raise
            finally:
                directory.write_model(problem.named_tensors(strategy.x, strategy.buffers))
                console.summary(strategy.attendance, strategy.hosting.clients)
    finally:
        directory.close()
        if board:
            board.close()
        if not lasting:
            shutil.rmtree(client_state, ignore_errors=True)
            shutil.rmtree(directory.path / UNDELIVERED, ignore_errors=True)
    return directory
