"""The ServerApp: from a config to a strategy, rounds and results."""

import logging
import shutil

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from fedapp.checkpoint import Checkpoints
from fedapp.config import RunConfig, parse_run_config, writable_directory
from fedapp.console import RunConsole
from fedapp.errors import log_as_one_sentence
from fedapp.models import make_problem
from fedapp.records import RunDirectory, has_ended
from fedapp.registry import find_algorithm, keeps_state, make_strategy
from fedapp.report.tensorboard import TensorBoardLog, writer_type
from fedapp.rounds import run_rounds

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one experiment."""
    log_as_one_sentence()
    run(grid, parse_run_config(context.run_config))


def run(grid: Grid, config: RunConfig) -> RunDirectory:
    """Run one experiment on a grid; what it has is saved however it ends."""
    find_algorithm(config)  # an unknown one is told before data are loaded
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    if config.state_dir and not isinstance(grid, HttpGrid):  # then the nodes are on this machine
        writable_directory("state-dir", config.state_dir)
    if config.tensorboard:
        writer_type()
    directory = RunDirectory(config)
    board = TensorBoardLog(directory.path) if config.tensorboard else None
    client_state = directory.path / "client-state"
    if keeps_state(config) and not config.state_dir:
        if isinstance(grid, InMemoryGrid) or (
            config.checkpoint_every and not isinstance(grid, HttpGrid)
        ):
            # Flower's simulation carries a node's Context with every message to it and back; and what
            # is in a process's memory is lost with it.
            strategy.state_dir = str(client_state)
        elif config.checkpoint_every:
            strategy.notes.append(
                "Nodes without a state-dir of their own forget what their clients remember when a run resumes."
            )
    checkpoints = Checkpoints(directory.path)
    try:
        done = checkpoints.restore(strategy) if config.resume else 0
        records = directory.go_back_to(done) if config.resume else []
        if done:
            strategy.notes.append(f"Going on after round {done}.")
        with RunConsole(config, directory, strategy.x.size, strategy.notes) as console:
            rounds = run_rounds(grid, strategy, problem, config, directory.path.name, done)
            try:
                for record in rounds if not has_ended(records, config) else ():
                    directory.write_round(record)
                    console.round(record)
                    if board:
                        board.round(record)
                    if config.checkpoint_every and record["round"] % config.checkpoint_every == 0:
                        checkpoints.write(record["round"], strategy)
            finally:
                directory.write_model(problem.named_tensors(strategy.x, strategy.buffers))
                console.summary()
    finally:
        directory.close()
        if board:
            board.close()
        if not config.checkpoint_every:
            shutil.rmtree(client_state, ignore_errors=True)
    return directory
