"""Workers that die or answer late, while clients remember something: as if those clients had merely failed."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp import client_app
from fedapp.config import Value, parse_run_config
from fedapp.engine import InlineGrid
from fedapp.engine.ray import RayGrid, RayWorkers
from fedapp.models import make_problem
from fedapp.registry import make_strategy
from fedapp.rounds import run_rounds
from tests.conftest import kebab

pytestmark = pytest.mark.xdist_group("ray")  # one after the other: they share what they start
KEYS: dict[str, Value] = {
    "algorithm": "scaffold",
    "dataset": "quadratic",
    "dtype": "float64",
    "num_clients": 8,
    "clients_per_round": 8,
    "num_rounds": 6,
    "lr": 0.1,
    "round_retries": 0,
}
SLOW_ROUND, PAUSE = 3, 6.0

slow_app = ClientApp()
slow_app.query()(client_app.query)


@slow_app.train()
def slow_train(message: Message, context: Context) -> Message:
    """Take long over one round, wherever client 1 is trained."""
    head: Any = message.content.config_records["round"]
    if head["round"] == SLOW_ROUND and 1 in head["clients"]:
        time.sleep(PAUSE)
    return client_app.train(message, context)


@pytest.fixture(scope="module")
def workers() -> Iterator[RayWorkers]:
    with RayWorkers(2, app="tests.test_ray_faults:slow_app") as started:
        yield started


class Listening(RayGrid):
    """Notes who failed in which round, as the server hears it, and may do something during one."""

    failed: dict[int, set[int]]
    during: Any = None

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        rounds = [m.content["round"]["round"] for m in messages if "round" in m.content]
        if rounds == [SLOW_ROUND] and self.during:
            threading.Timer(PAUSE / 2, self.during).start()
        replies = list(super().send_and_receive(messages, timeout=timeout))
        for round_, reply in zip(rounds, replies, strict=False):
            told: Any = reply.content.config_records.get("failures", {})
            self.failed[round_] = {int(client) for client in told}
        return replies


class Deaf(InlineGrid):
    """Loses the answers of some clients in a round, after they saved their states."""

    failed: dict[int, set[int]]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        rounds = [m.content["round"]["round"] for m in messages if "round" in m.content]
        replies = list(super().send_and_receive(messages, timeout=timeout))
        for round_, reply in zip(rounds, replies, strict=False):
            for client in self.failed.get(round_, ()):
                del reply.content[f"client.{client}"]
        return replies


def run(grid: Any, keys: dict[str, Value]) -> tuple[Any, list[dict[str, Any]]]:
    config = parse_run_config(kebab(keys))
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    records = list(run_rounds(grid, strategy, problem, config, "run"))
    return strategy, records


def compare(keys: dict[str, Value], failed: dict[int, set[int]]) -> tuple[Any, list[int]]:
    """Return x and the failures of an undisturbed run in which merely those clients failed."""
    keys = keys | {"state_dir": ""}
    grid = Deaf(client_app.app, parse_run_config(kebab(keys)).flat())
    grid.failed = failed
    strategy, records = run(grid, keys)
    return strategy.x, [record["failures"] for record in records]


def on_workers(workers: RayWorkers, keys: dict[str, Value]) -> Listening:
    grid = Listening(workers, parse_run_config(kebab(keys)).flat())
    grid.failed = {}
    return grid


def kill_the_slow_one(workers: RayWorkers, grid: Listening) -> None:
    """Kill the worker that has client 1 in hand, in the middle of its work."""
    (busy,) = {part.index for part in grid._flying.values() if 1 in part.clients}
    os.kill(PIDS[busy], signal.SIGKILL)


PIDS: list[int] = []


@pytest.mark.parametrize("with_state_dir", [True, False])
def test_a_worker_killed_in_the_middle_of_a_round(
    with_state_dir: bool, workers: RayWorkers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KEYS | {"state_dir": str(tmp_path / "state") if with_state_dir else ""}
    grid = on_workers(workers, keys)
    PIDS[:] = [ray.get(actor.whereabouts.remote())[1] for actor in workers.actors]
    grid.during = lambda: kill_the_slow_one(workers, grid)
    strategy, records = run(grid, keys)
    failed = {round_: clients for round_, clients in grid.failed.items() if clients}
    assert set(failed) == {SLOW_ROUND}
    assert 1 in failed[SLOW_ROUND]
    assert [record["failures"] for record in records] == [0, 0, len(failed[SLOW_ROUND]), 0, 0, 0]
    lost = sum("CLIENT STATE IS LOST" in message for message in caplog.messages)
    if not with_state_dir:
        assert lost == 1
        return
    assert lost == 0
    held = {path.name for path in (tmp_path / "state" / "run").iterdir()}
    assert held == {str(client) for client in range(8)}
    x, failures = compare(keys, failed)
    np.testing.assert_array_equal(strategy.x, x)
    assert failures == [record["failures"] for record in records]


def test_a_late_answer_is_not_counted_in_a_later_round(workers: RayWorkers) -> None:
    keys = KEYS | {"round_timeout": 0.7 * PAUSE}
    grid = on_workers(workers, keys)
    run(grid, keys | {"num_rounds": 1})  # so that no worker has to begin
    grid = on_workers(workers, keys)
    strategy, records = run(grid, keys)
    failed = {round_: clients for round_, clients in grid.failed.items() if clients}
    assert set(failed) == {SLOW_ROUND}
    assert 1 in failed[SLOW_ROUND]
    assert not grid._flying, "the late answer came, and was dropped"
    x, failures = compare(keys, failed)
    np.testing.assert_array_equal(strategy.x, x)
    assert failures == [record["failures"] for record in records]
