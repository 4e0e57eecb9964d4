"""The round loop."""

import logging
import time
from collections.abc import Generator, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedapp.config import RunConfig
from fedapp.figures import COLUMNS, FIGURES, accuracy_of
from fedapp.grids import is_deployed
from fedapp.observers import Observer, ending
from fedapp.problems.protocols import FederatedProblem
from fedapp.rounds_file import Record
from fedapp.strategy import FederatedStrategy
from fedapp.threads import one_thread

log = logging.getLogger("flwr")


def run_rounds(
    grid: Grid,
    strategy: FederatedStrategy[Any],
    problem: FederatedProblem,
    config: RunConfig,
    done: int = 0,
    observers: Sequence[Observer] = (),
) -> Generator[Record]:
    """Run all rounds after the first `done`; yield the record of each after the observers were called with it."""
    one_thread()
    with ending(observers):
        for observer in observers:
            observer.on_start()
        _meet_nodes(grid, strategy, observers)
        strategy.nodes_add_up = may_add_up(grid)
        arrays = strategy.arrays()
        for round_ in range(done + 1, config.num_rounds + 1):
            started = time.perf_counter()
            arrays, spent = _train(grid, strategy, config, round_, arrays)
            due = config.evaluates_in(round_)
            figures = problem.evaluate(strategy.x, strategy.buffers) if due else {}
            figures |= _evaluate_on_clients(grid, strategy, config, round_, arrays)
            record: Record = dict.fromkeys(COLUMNS) | {"round": round_} | figures | spent
            record["wall_seconds"] = time.perf_counter() - started
            for observer in observers:
                observer.on_round(record)
            yield record
            if 0 < config.target_accuracy <= accuracy_of(record):
                return


def may_add_up(grid: Grid) -> bool:
    """Return whether nodes may add their clients' updates up; a real one answers for each of its clients."""
    return bool(getattr(grid, "adds_up", not is_deployed(grid)))


def _meet_nodes(
    grid: Grid, strategy: FederatedStrategy[Any], observers: Sequence[Observer]
) -> None:
    """Wait until nodes host enough clients to start."""
    deployed = is_deployed(grid)
    try:
        strategy.wait_for_nodes(grid, deployed)
    finally:
        for observer in observers:
            observer.on_nodes(strategy.hosting, deployed)


def _train(
    grid: Grid,
    strategy: FederatedStrategy[Any],
    config: RunConfig,
    round_: int,
    arrays: ArrayRecord,
) -> tuple[ArrayRecord, dict[str, Any]]:
    """Train in one round, in several attempts if need be; return what the next one broadcasts, and the figures."""
    summed = [figure.name for figure in FIGURES.values() if figure.summed]
    spent: dict[str, Any] = dict.fromkeys(summed, 0)
    for _ in range(config.round_retries + 1):
        messages = strategy.configure_train(round_, arrays, ConfigRecord(), grid)
        timeout = config.round_timeout or None
        replies = grid.send_and_receive(messages, timeout=timeout)
        aggregated, metrics = strategy.aggregate_train(round_, replies)
        if strategy.asks_again:
            replies = grid.send_and_receive(strategy.configure_again(), timeout=timeout)
            aggregated, metrics = strategy.aggregate_train(round_, replies)
        spent = {name: spent[name] + metrics[name] for name in summed}
        if aggregated is not None:
            return aggregated, dict(metrics) | spent
        log.warning(
            "Round %d has too few updates: %d of %d clients sent one, %d are needed",
            round_,
            metrics["clients"],
            config.clients_per_round,
            strategy.min_clients,
        )
    raise strategy.admission.too_few_updates(round_, strategy.min_clients)


def _evaluate_on_clients(
    grid: Grid,
    strategy: FederatedStrategy[Any],
    config: RunConfig,
    round_: int,
    arrays: ArrayRecord,
) -> dict[str, Any]:
    """Have clients evaluate the model, if that is due; return the figures."""
    messages = list(strategy.configure_evaluate(round_, arrays, ConfigRecord(), grid))
    if not messages:
        return {}
    replies = grid.send_and_receive(messages, timeout=config.round_timeout or None)
    return dict(strategy.aggregate_evaluate(round_, replies) or {})
