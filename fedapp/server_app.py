"""The ServerApp: from a config to a strategy, rounds and results."""

import logging
import shutil

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from fedapp.config import RunConfig, parse_run_config, writable_directory
from fedapp.console import RunConsole
from fedapp.errors import log_as_one_sentence
from fedapp.models import make_problem
from fedapp.records import RunDirectory
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
    if keeps_state(config) and not config.state_dir and isinstance(grid, InMemoryGrid):
        # Flower's simulation carries a node's Context with every message to it and back.
        strategy.state_dir = str(client_state)
    try:
        with RunConsole(config, directory, strategy.x.size, strategy.notes) as console:
            try:
                for record in run_rounds(grid, strategy, problem, config, directory.path.name):
                    directory.write_round(record)
                    console.round(record)
                    if board:
                        board.round(record)
            finally:
                directory.write_model(problem.named_tensors(strategy.x, strategy.buffers))
                console.summary()
    finally:
        directory.close()
        if board:
            board.close()
        shutil.rmtree(client_state, ignore_errors=True)
    return directory
