"""The round loop: faults, retries, early stop, and what a run leaves.

Long, because it has one test for each promise of the one loop.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from safetensors.numpy import load_file

from fedapp import client_app, registry, rounds, server_app
from fedapp.algorithm import Algorithm
from fedapp.client import Client
from fedapp.config import RunConfig
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.figures import COLUMNS
from fedapp.hosting import Hosting
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.tables import Value
from fedapp.waiting import wait_for_all, wait_for_clients
from tests.conftest import RunInline, kebab, read_rounds

KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "num_rounds": 6,
    "num_clients": 8,
    "clients_per_round": 8,
    "lr": 0.3,
}
BAD = 3


def misbehave(how: str) -> type[Client]:
    """Return FedAvg's client, of which client 3 misbehaves."""

    class Misbehaving(registry.ALGORITHMS["fedavg"].client):  # type: ignore[misc]
        def train(self, received: Any, buffers: Any) -> Any:
            update = super().train(received, buffers)
            if self.client != BAD:
                return update
            u = update["u"]
            match how:
                case "raise":
                    raise ValueError("out of luck")
                case "nan":
                    u = np.where(np.arange(len(u)) == 2, np.float32("nan"), u)
                case "shape":
                    u = u[:-1]
                case "matrix":
                    u = u.reshape(2, -1)
                case "dtype":
                    u = u.astype(np.float64)
                case "missing":
                    return replace(update, arrays={"buffers": update["buffers"]})
                case "no examples":
                    return replace(update, num_examples=0)
                case "objects":
                    u = u.astype(object)
                case "numpy scalars":  # odd, but sound: cast on the way
                    return replace(update, num_examples=np.int64(-1))
                case "no loss":
                    return replace(update, train_loss=None)
            return replace(update, arrays=update.arrays | {"u": u})

    return Misbehaving


class WithoutBad(registry.ALGORITHMS["fedavg"].strategy):  # type: ignore[misc]
    """FedAvg that leaves client 3 out: what a run with its failures must equal."""

    def aggregate(self, updates: Any) -> None:
        super().aggregate([u for u in updates if u.client != BAD])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "ValueError: see this node's log"), ("nan", "not finite"), ("shape", "shape (29,) instead of (30,)"),
        ("matrix", "shape (2, 15)"), ("dtype", "float64 instead of float32"), ("missing", "instead of ['buffers', 'u']"),
        ("no examples", "how many examples"), ("objects", "Error"), ("no loss", "TypeError"),
        ("numpy scalars", "how many examples"),
    ],
)  # fmt: skip
def test_a_bad_client_costs_its_own_update_and_nothing_else(
    how: str, said: str, run_inline: RunInline, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    fedavg = registry.ALGORITHMS["fedavg"]
    without = Algorithm("fedavg", "", WithoutBad, fedavg.client)
    monkeypatch.setitem(registry.ALGORITHMS, "fedavg", without)
    expected = load_file(run_inline(**KEYS) / "model.safetensors")
    faulty = Algorithm("fedavg", "", fedavg.strategy, misbehave(how))
    monkeypatch.setitem(registry.ALGORITHMS, "fedavg", faulty)
    with caplog.at_level("WARNING", logger="flwr"):
        directory = run_inline(**KEYS, nodes=2)
    np.testing.assert_array_equal(
        load_file(directory / "model.safetensors")["x"], expected["x"], strict=True
    )
    assert [(r["clients"], r["failures"]) for r in read_rounds(directory)] == [(7, 1)] * 6
    told = [m for m in caplog.messages if m.startswith(f"Client {BAD} failed: ")]
    assert len(told) == 1
    assert said in told[0]


def test_a_diverging_run_ends_with_what_it_has(run_inline: RunInline, tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"No client.s update is finite any more in round .*: lower lr"
    ):
        run_inline(**(KEYS | {"lr": 1e30, "num_rounds": 50}), run_name="diverged")
    records = read_rounds(tmp_path / "diverged")
    assert len(records) < 50
    assert np.isfinite(load_file(tmp_path / "diverged" / "model.safetensors")["x"]).all()


class Flaky(registry.ALGORITHMS["fedavg"].client):  # type: ignore[misc]
    """Raises for the clients and rounds that the test names."""

    failing: frozenset[tuple[int, int]] = frozenset()

    def train(self, received: Any, buffers: Any) -> Any:
        if (self.round, self.client) in self.failing:
            raise RuntimeError("flaky")
        return super().train(received, buffers)


class Deaf(InlineGrid):
    """Never passes the replies of its second node on, and the others' twice."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        train = [r for r in replies if r.metadata.message_type == "train"]
        if not train:
            return replies
        return [r for r in train if r.metadata.src_node_id != 2] * 2


def test_a_missing_answer_is_a_failure_and_a_second_one_counts_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse_run_config(kebab(KEYS | {"results_dir": str(tmp_path)}))
    with caplog.at_level("WARNING", logger="flwr"):
        directory = server_app.run(Deaf(client_app.app, config.flat(), nodes=2), config).path
    assert [(r["clients"], r["failures"]) for r in read_rounds(directory)] == [(4, 4)] * 6
    assert any("failed: no answer in time" in m for m in caplog.messages)


def test_a_model_that_overflows_ends_the_run_with_the_last_finite_one(
    run_inline: RunInline, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="no longer finite"):
        run_inline(**KEYS, server_lr=1e39, run_name="overflow")
    assert np.isfinite(load_file(tmp_path / "overflow" / "model.safetensors")["x"]).all()


def test_a_round_with_too_few_updates_is_repeated_with_a_fresh_cohort(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedavg = registry.ALGORITHMS["fedavg"]
    monkeypatch.setitem(
        registry.ALGORITHMS, "fedavg", Algorithm("fedavg", "", fedavg.strategy, Flaky)
    )
    keys = KEYS | {"clients_per_round": 2, "min_clients": 2, "round_retries": 20}
    monkeypatch.setattr(Flaky, "failing", frozenset((2, c) for c in range(4)))
    records = read_rounds(run_inline(**keys))
    assert [r["clients"] for r in records] == [2] * 6
    assert records[1]["failures"] > 0
    once = records[0]["uplink_bytes"]
    assert records[1]["uplink_bytes"] >= once, "bytes of the failed attempts count too"
    assert records[1]["downlink_bytes"] >= 2 * records[0]["downlink_bytes"]
    monkeypatch.setattr(Flaky, "failing", frozenset((2, c) for c in range(8)))
    with pytest.raises(RunError, match="Round 2"):
        run_inline(**(keys | {"round_retries": 1}))


def test_evaluation_every_k_rounds_and_after_the_last(run_inline: RunInline) -> None:
    records = read_rounds(run_inline(**KEYS, eval_every=4))
    assert [r["round"] for r in records if r["test_loss"] is not None] == [4, 6]


def test_target_accuracy_stops_the_run(run_inline: RunInline) -> None:
    records = read_rounds(run_inline(target_accuracy=0.6))
    assert len(records) < 50
    assert records[-1]["test_accuracy"] >= 0.6
    assert all(r["test_accuracy"] < 0.6 for r in records[:-1])


def test_a_run_s_files(run_inline: RunInline, capsys: pytest.CaptureFixture[str]) -> None:
    directory = run_inline(num_rounds=3, run_name="three")
    records = read_rounds(directory)
    assert len(records) == 3
    assert list(records[0])[: len(COLUMNS)] == list(COLUMNS)
    assert records[0]["uplink_bits_nominal"] == 5 * 32 * 15_010
    assert records[0]["simulated_seconds"] > 5 * 100
    saved = json.loads((directory / "config.json").read_text())
    assert parse_run_config(saved["config"]).num_rounds == 3
    problem = make_problem(RunConfig())
    names = problem.named_tensors(*problem.initial())
    model = load_file(directory / "model.safetensors")
    assert {k: v.shape for k, v in model.items()} == {k: v.shape for k, v in names.items()}
    shown = capsys.readouterr().out
    assert f"Results: {directory}" in shown
    assert shown.count("test accuracy 0.") == 3
    assert "best 0." in shown


def test_bytes_are_those_of_the_arrays_sent(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, int] = {"down": 0, "up": 0}
    serve = InlineGrid.serve

    def count(self: InlineGrid, message: Message) -> Message:
        reply = serve(self, message)
        for direction, content in (("down", message.content), ("up", reply.content)):
            sent[direction] += sum(
                len(a.data) for r in content.array_records.values() for a in r.values()
            )
        return reply

    monkeypatch.setattr(InlineGrid, "serve", count)
    monkeypatch.setattr(rounds, "may_add_up", lambda grid: False)
    (record,) = read_rounds(run_inline(nodes=8, **(KEYS | {"num_rounds": 1})))
    assert (record["downlink_bytes"], record["uplink_bytes"]) == (sent["down"], sent["up"])


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "fedavg", "num_rounds": 4},
        {"algorithm": "mifam", "num_rounds": 4},
        {"algorithm": "fedcomgate", "num_rounds": 8},
        {"algorithm": "fedgate", "num_rounds": 8, "local_epochs": 1},
        {"algorithm": "vrdiana", "num_rounds": 8, "local_steps": 1},
        {"algorithm": "scaffold", "model": "resnet20", "num_rounds": 2, "local_steps": 1},
        {"model": "resnet20", "num_rounds": 2, "local_steps": 1},
        {"dataset": "quadratic", "quadratic__dim": 150, "num_rounds": 2},
    ],
)
def test_the_number_of_nodes_does_not_matter(keys: dict[str, Value], run_inline: RunInline) -> None:
    first, *others = (run_inline(nodes=n, **keys) for n in (1, 3, 20))
    for other in others:
        assert (first / "model.safetensors").read_bytes() == (
            other / "model.safetensors"
        ).read_bytes()
        for a, b in zip(read_rounds(first), read_rounds(other), strict=True):
            assert a | {"wall_seconds": 0} == b | {"wall_seconds": 0}


def test_results_are_never_overwritten(run_inline: RunInline, tmp_path: Path) -> None:
    run_inline(**KEYS, run_name="mine")
    with pytest.raises(ConfigError, match="has results already"):
        run_inline(**KEYS, run_name="mine")
    unnamed = {run_inline(**KEYS).name for _ in range(3)}
    assert len(unnamed) == 3


def test_an_unwritable_results_dir_is_told(run_inline: RunInline, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        run_inline(**KEYS, results_dir=str(tmp_path / "file" / "below"))


def test_batch_norm_statistics_travel_beside_the_model(run_inline: RunInline) -> None:
    keys: dict[str, Value] = {
        "model": "resnet20",
        "num_rounds": 1,
        "local_steps": 1,
        "clients_per_round": 2,
    }
    model = load_file(run_inline(**keys) / "model.safetensors")
    means = np.concatenate([v.ravel() for k, v in model.items() if "running_mean" in k])
    assert (means != 0).mean() > 0.5


def test_nodes_are_asked_once_and_strange_answers_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = parse_run_config(kebab({"num_clients": 6, "clients_per_round": 1}))
    grid = InlineGrid(client_app.app, config.flat(), nodes=3)
    asked: list[Message] = []
    serve = InlineGrid.serve

    def watch(self: InlineGrid, message: Message) -> Message:
        asked.append(message)
        return serve(self, message)

    monkeypatch.setattr(InlineGrid, "serve", watch)
    grid.contexts[2].node_config = {}
    hosting = Hosting(6)
    wait_for_all(hosting, grid, limit=0.1)
    hosting.update(grid)
    assert len(asked) == 3
    assert sorted(hosting.node_of) == [0, 2, 3, 5]
    assert any('--node-config "partition-id=0 num-partitions=2"' in m for m in caplog.messages)
    del grid.contexts[1]  # a node leaves
    hosting.update(grid)
    assert sorted(hosting.node_of) == [2, 5]
    grid.contexts[2].node_config = {"partition-id": 1, "num-partitions": 3}  # fixed
    hosting._ask_again[2] = (0.0, 20.0)  # the pause is over
    hosting.update(grid)
    assert sorted(hosting.node_of) == [1, 2, 4, 5]
    grid.contexts[7] = grid.contexts[2]  # a second host of the same clients
    for _ in range(2):
        hosting.update(grid)
    assert hosting.node_of[1] == hosting.node_of[4] == 2
    refused = "Node 7 is refused: it claims 2 clients that node 2 hosts, such as client 1"
    assert sum(refused in m for m in caplog.messages) == 1
    away = grid.contexts.pop(2), grid.contexts.pop(7)
    hosting.update(grid)
    assert sorted(hosting.node_of) == [2, 5]
    away[0].node_config = {"partition-id": 0, "num-partitions": 3}
    grid.contexts[2] = away[0]  # it comes back to another place, under its old id
    hosting.update(grid)
    assert sorted(hosting.node_of) == [0, 2, 3, 5]
    nobody = InlineGrid(client_app.app, config.flat(), nodes=0)
    with pytest.raises(RunError, match=r"host 0 clients, 1 are needed.*node-timeout = 0.1"):
        wait_for_all(Hosting(6), nobody, limit=0.1)
    with pytest.raises(RunError, match=r"host 0 clients, 1 are needed.*node-timeout = 0.1"):
        wait_for_clients(Hosting(6), nobody, needed=1, limit=0.1)


def test_the_client_app_trains_only_clients_that_it_hosts() -> None:
    from fedapp import wire

    config = parse_run_config(kebab(KEYS))
    problem = make_problem(config)
    x, buffers = problem.initial()
    grid = InlineGrid(client_app.app, config.flat(), nodes=2)
    invitation = wire.Invitation(1, 4, "r", "", {0: 0, 1: 0}, {})
    content = wire.pack_invitation(invitation, wire.record_of({"x": x, "buffers": buffers}))
    (reply,) = grid.send_and_receive([Message(content, 1, "train")])
    failures = reply.content.config_records["failures"]
    assert list(failures) == ["1"]
    assert "does not host client 1" in str(failures["1"])


def test_a_broken_message_is_an_error_reply() -> None:
    grid = InlineGrid(client_app.app, parse_run_config({}).flat())
    (reply,) = grid.send_and_receive([Message(RecordDict(), 1, "train")])
    assert reply.has_error()


def test_the_server_app_object_runs_on_any_grid(tmp_path: Path) -> None:
    """What Flower calls: the ServerApp with a grid and a Context."""
    from flwr.app import Context

    config = parse_run_config(kebab({**KEYS, "results_dir": str(tmp_path), "run_name": "app"}))
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config.flat()
    )
    server_app.app(InlineGrid(client_app.app, config.flat()), context)
    assert len(read_rounds(tmp_path / "app")) == 6
