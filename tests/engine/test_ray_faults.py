"""Workers that die or answer late, while clients remember something: as if those clients had merely failed."""

import os
import signal
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp import client_app, node
from fedapp import strategy as strategy_module
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.engine.ray import RayGrid
from fedapp.engine.ray_workers import RayWorkers
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from tests.conftest import kebab, wait_for

# One after the other: they share what they start.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]
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
SLOW_ROUND = 3

BEGUN, GO_ON = "begun", "go-on"  # files with which a worker and the test tell each other
slow_app = ClientApp()
slow_app.query()(node.query)


@slow_app.train()
def slow_train(message: Message, context: Context) -> Message:
    """Take as long over one round as the test wants, wherever client 1 is trained."""
    head: Any = message.content.config_records["round"]
    if head["round"] == SLOW_ROUND and 1 in head["clients"]:
        place = Path(str(context.run_config["results-dir"]))
        (place / BEGUN).touch()
        wait_for((place / GO_ON).exists, "the test's word")
    return node.train(message, context)


def give(workers: RayWorkers, app: str) -> None:
    """Have the workers that are there run another app."""

    def take(worker: Any) -> None:
        module, _, name = app.partition(":")
        worker._app = getattr(import_module(module), name)

    ray.get([actor.__ray_call__.remote(take) for actor in workers.actors])


@pytest.fixture
def slow_workers(workers: RayWorkers, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayWorkers]:
    """The shared workers, also those that replace them, with the slow app."""
    workers.begin({})  # one that has died is replaced
    sound, slow = workers._app, "tests.engine.test_ray_faults:slow_app"
    monkeypatch.setattr(workers, "_app", slow)
    give(workers, slow)
    yield workers
    workers.begin({})
    give(workers, sound)


@pytest.fixture(autouse=True)
def nodes_add_up_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy_module, "WORTH_ADDING_UP", 1)


class Listening(RayGrid):
    """Notes who failed in which round, as the server hears it, and may kill or give up a worker in one."""

    adds_up = True
    failed: dict[int, set[int]]
    place: Path
    pids: list[int] | None = None  # the workers' ids, if one is to be killed

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        rounds = [m.content["round"]["round"] for m in messages if "round" in m.content]
        slow = rounds == [SLOW_ROUND]
        killer = threading.Thread(target=self.kill_the_slow_one)
        if slow and self.pids:
            killer.start()
        # However busy the machine is, only the slow round runs out of time.
        replies = list(super().send_and_receive(messages, timeout=timeout if slow else None))
        if slow:
            (self.place / GO_ON).touch()
        for round_, reply in zip(rounds, replies, strict=False):
            told: Any = reply.content.config_records.get("failures", {})
            self.failed[round_] = {int(client) for client in told}
        return replies

    def kill_the_slow_one(self) -> None:
        """Kill the worker that has client 1 in hand, in the middle of its work."""
        assert self.pids
        wait_for((self.place / BEGUN).exists, "client 1's turn")

        def its_worker() -> list[int]:  # which may begin before its part is noted
            return [part.index for part in list(self._flying.values()) if 1 in part.clients]

        (busy,) = wait_for(its_worker, "client 1's worker")
        os.kill(self.pids[busy], signal.SIGKILL)


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
    records = list(run_rounds(grid, strategy, problem, config))
    return strategy, records


def compare(keys: dict[str, Value], failed: dict[int, set[int]]) -> tuple[Any, list[int]]:
    """Return x and the failures of an undisturbed run in which merely those clients failed."""
    keys = keys | {"state_dir": ""}
    grid = Deaf(client_app.app, parse_run_config(kebab(keys)).flat())
    grid.failed = failed
    strategy, records = run(grid, keys)
    return strategy.x, [record["failures"] for record in records]


def on_workers(workers: RayWorkers, keys: dict[str, Value], place: Path) -> Listening:
    grid = Listening(workers, parse_run_config(kebab(keys)).flat())
    grid.failed, grid.place = {}, place
    return grid


@pytest.mark.parametrize("with_state_dir", [True, False])
def test_a_worker_killed_in_the_middle_of_a_round(
    with_state_dir: bool, slow_workers: RayWorkers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KEYS | {"state_dir": str(tmp_path / "state") if with_state_dir else ""}
    keys["results_dir"] = str(tmp_path)
    grid = on_workers(slow_workers, keys, tmp_path)
    grid.pids = [ray.get(actor.whereabouts.remote())[1] for actor in slow_workers.actors]
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
    (own,) = (tmp_path / "state").iterdir()  # the run's
    held = {path.name for path in own.iterdir()}
    assert held == {str(client) for client in range(8)}
    x, failures = compare(keys, failed)
    np.testing.assert_array_equal(strategy.x, x)
    assert failures == [record["failures"] for record in records]


def test_a_late_answer_is_not_counted_in_a_later_round(
    slow_workers: RayWorkers, tmp_path: Path
) -> None:
    keys = KEYS | {"round_timeout": 2.0, "results_dir": str(tmp_path)}
    grid = on_workers(slow_workers, keys, tmp_path)
    strategy, records = run(grid, keys)
    failed = {round_: clients for round_, clients in grid.failed.items() if clients}
    assert set(failed) == {SLOW_ROUND}
    assert 1 in failed[SLOW_ROUND]
    assert not grid._flying, "the late answer came, and was dropped"
    x, failures = compare(keys, failed)
    np.testing.assert_array_equal(strategy.x, x)
    assert failures == [record["failures"] for record in records]
