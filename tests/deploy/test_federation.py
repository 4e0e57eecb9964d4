"""Nodes and servers that are late, killed, gone or ended: a real federation survives them, with the same bits."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clients.fedcomgate import FedCOMGATEClient
from deploy.processes import NAME, Federation, kill
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value
from tests.conftest import PATIENCE, RunInline, wait_for
from tests.support.federations import (
    LATE,
    NODES,
    Started,
    assert_same_model,
    linux,
    node_config,
    processes,
    signal_group,
    wait_for_clients,
    wait_for_rounds,
)

pytestmark = pytest.mark.slow
# One after the other: they share what they start. The longest, which waits for missed heartbeats, is not among them.
faults = pytest.mark.xdist_group("faults")

PAUSE = 5.0  # seconds until a refused node is started again, which takes two seconds of a processor

FAULTS: dict[str, Value] = {
    "dataset": "quadratic",
    "algorithm": "fedcomgate",
    "lr": 0.05,
    "num_clients": NODES,  # client c lives on node c
    "clients_per_round": NODES,
    "round_timeout": LATE,
    "checkpoint_every": 1,
}


def inline_with_failures(
    run_inline: RunInline, keys: dict[str, Value], failing: set[tuple[int, int]]
) -> Path:
    """Run the same config inline, in which clients fail in given rounds."""
    from fedapp.registry import ALGORITHMS

    class Flaky(FedCOMGATEClient):
        def train(self, received: Any, buffers: Any) -> Any:
            if (self.round, self.client) in failing:
                raise RuntimeError("away")
            return super().train(received, buffers)

    sound = ALGORITHMS["fedcomgate"]
    with pytest.MonkeyPatch.context() as patch:
        flaky = replace(sound, client=Flaky)
        patch.setitem(ALGORITHMS, "fedcomgate", flaky)
        return run_inline(**keys | {"checkpoint_every": 0})


def bring_back(federation: Federation, place: int) -> None:
    """Start a killed node again and again, as a supervisor would, until the SuperLink lets it in.

    Until the SuperLink has missed two heartbeats of the node, it refuses a second one with the same key.
    """

    def let_in() -> int:
        return federation.log_of().count("Activated node_id")

    before = let_in()
    while True:
        process = federation.start_node(place, node_config(federation, place))
        while process.poll() is None:
            if let_in() > before:
                return
            time.sleep(0.2)
        kill(process)  # what it had started
        time.sleep(PAUSE)


@pytest.mark.xdist_group("late")
def test_late_and_killed_nodes_cost_their_own_updates_and_flwr_stop_nothing(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    """The model is that of a run in which just those clients failed in just those rounds.

    It is ended by `flwr stop`, and complete up to there.
    """
    keys = FAULTS | {"num_rounds": 1000, "results_dir": str(tmp_path), "run_name": "run"}
    run, directory = Started(federation, keys), tmp_path / "run"
    wait_for_rounds(directory, 1)
    signal_group(federation.nodes[0], signal.SIGSTOP)  # it will answer too late
    wait_for_clients(directory, NODES - 1)
    signal_group(federation.nodes[0], signal.SIGCONT)
    back = wait_for_clients(directory, NODES)
    kill(federation.nodes[1])  # in the middle of a round
    wait_for_clients(directory, NODES - 1)
    bring_back(federation, 1)
    wait_for_clients(directory, NODES)
    run.stop()
    wait_for((directory / "model.safetensors").is_file, "the model")
    assert (directory / "rounds.jsonl").read_text().endswith("\n")
    rounds = read_rounds(directory)
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert "Client 0 failed: " in run.shown()  # no answer in time, or no heartbeat
    assert "STATE IS LOST" not in run.shown()
    thin = [line["round"] for line in rounds if line["clients"] < NODES]
    assert thin[0] > 1
    absent = {(round_, 0 if round_ < back else 1) for round_ in thin}
    inline = keys | {"run_name": "inline", "num_rounds": len(rounds)}
    assert_same_model(directory, inline_with_failures(run_inline, inline, absent))


@faults
def test_the_server_waits_for_nodes_that_are_gone(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    keys = FAULTS | {"num_rounds": 2, "results_dir": str(tmp_path), "run_name": "run"}
    run, directory = Started(federation, keys | {"min_clients": NODES}), tmp_path / "run"
    wait_for_rounds(directory, 1)
    for place in range(NODES):
        federation.nodes[place].terminate()
    wait_for(
        lambda: "Waiting for nodes: " in run.shown().partition("round 1/")[2],
        "the server says that nodes are gone",
    )
    for place in range(NODES):
        federation.nodes[place].wait(PATIENCE)
        kill(federation.nodes[place])  # what it had started
        federation.start_node(place, node_config(federation, place))
    assert run.end() == "finished:completed", run.shown()
    assert "STATE IS LOST" not in run.shown()
    expected = inline_with_failures(run_inline, keys | {"run_name": "inline"}, set())
    assert_same_model(directory, expected)


def stop_the_rest(federation: Federation) -> None:
    """End a run whose ServerApp is gone, unless the SuperLink has missed its heartbeats by now."""
    with suppress(RuntimeError):
        federation.flwr("stop", str(federation.last_run()["run-id"]), NAME)


@faults
@linux
def test_a_killed_server_app_goes_on_where_it_was(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    keys = FAULTS | {"num_rounds": 3, "results_dir": str(tmp_path), "run_name": "run"}
    run, directory = Started(federation, keys), tmp_path / "run"
    saved = directory / "checkpoint"  # it follows the round's line in rounds.jsonl
    wait_for(lambda: list(saved.glob("round-*.safetensors")), "a checkpoint")
    (process,) = processes("flwr-serverapp", str(federation.home))
    subprocess.run(["kill", "-KILL", str(process)], check=True)
    stop_the_rest(federation)
    run.end()
    assert not (directory / "model.safetensors").exists()
    again = Started(federation, keys | {"resume": True})
    assert again.end() == "finished:completed", again.shown()
    assert re.search(r"Continuing after round [12]\.", again.shown())
    assert "STATE IS LOST" not in again.shown()
    expected = inline_with_failures(run_inline, keys | {"run_name": "inline"}, set())
    assert_same_model(directory, expected)


@faults
@linux
def test_a_server_app_that_is_ended_saves_its_model_even_if_the_superlink_hangs(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    """Flower gives a process five seconds after a signal, of which its own last words to the SuperLink may take all."""
    keys = FAULTS | {"num_rounds": 1000, "results_dir": str(tmp_path), "run_name": "run"}
    run, directory = Started(federation, keys), tmp_path / "run"
    wait_for_rounds(directory, 1)
    (process,) = processes("flwr-serverapp", str(federation.home))
    signal_group(federation.superlink, signal.SIGSTOP)
    try:
        os.kill(process, signal.SIGTERM)
        wait_for(lambda: not processes("flwr-serverapp", str(federation.home)), "its end")
    finally:
        signal_group(federation.superlink, signal.SIGCONT)
    assert (directory / "model.safetensors").is_file()
    stop_the_rest(federation)
    run.end()
    rounds = len(read_rounds(directory))
    inline = keys | {"run_name": "inline", "num_rounds": rounds}
    assert_same_model(directory, inline_with_failures(run_inline, inline, set()))
