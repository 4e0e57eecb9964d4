"""The round loop."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid

from fedapp import wire
from fedapp.config import RunConfig
from fedapp.hosting import Hosting
from fedapp.problems.problem import Problem
from fedapp.strategy import FederatedStrategy
from fedapp.threads import one_thread

log = logging.getLogger("flwr")
# Over the attempts at a round:
SUMMED = [
    "failures",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bits_nominal",
    "simulated_seconds",
    "simulated_seconds_nominal",
]


def run_rounds(
    grid: Grid,
    strategy: FederatedStrategy,
    problem: Problem,
    config: RunConfig,
    identity: str,
    done: int = 0,
    tell_nodes: Callable[[Hosting, bool], None] = lambda hosting, deployed: None,
) -> Iterator[dict[str, Any]]:
    """Run all rounds after those that are done already; yield the record of each as it ends.

    `tell_nodes` is told which nodes are there, also if the run cannot begin with them.
    """
    one_thread()
    deployed = isinstance(grid, HttpGrid)
    try:
        strategy.hosting.wait_for_all(
            grid,
            config.node_timeout,
            max(strategy.min_clients, 1),
            config.require_all_clients,
            {"shared-data": deployed, **wire.facts_head(strategy.facts)},
        )
    finally:
        tell_nodes(strategy.hosting, deployed)
    arrays = strategy.arrays()
    for round_ in range(done + 1, config.num_rounds + 1):
        started = time.perf_counter()
        spent: dict[str, Any] = dict.fromkeys(SUMMED, 0)
        for attempt in range(config.round_retries + 1):
            how = ConfigRecord({"attempt": attempt, "run": identity})
            messages = strategy.configure_train(round_, arrays, how, grid)
            replies = grid.send_and_receive(messages, timeout=config.round_timeout or None)
            aggregated, metrics = strategy.aggregate_train(round_, replies)
            spent = {name: spent[name] + metrics[name] for name in SUMMED}
            if aggregated is not None:
                arrays = aggregated
                break
            log.warning(
                "Round %d is too thin: %d of %d clients gave an update, %d are needed",
                round_,
                metrics["clients"],
                config.clients_per_round,
                strategy.min_clients,
            )
        else:
            raise strategy.too_few_updates(round_)
        due = round_ % config.eval_every == 0 or round_ == config.num_rounds
        figures = problem.evaluate(strategy.x, strategy.buffers) if due else {}
        record: dict[str, Any] = {"round": round_, "test_loss": None, "test_accuracy": None}
        record |= figures | dict(metrics) | spent
        record["wall_seconds"] = time.perf_counter() - started
        yield record
        if config.target_accuracy and (figures.get("test_accuracy") or 0) >= config.target_accuracy:
            return
