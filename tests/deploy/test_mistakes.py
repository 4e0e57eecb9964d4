"""Federations in which something is wrong from the start: what is told, and how the run goes on or ends."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.processes import Federation, assignments
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value
from tests.conftest import PATIENCE, kebab, wait_for
from tests.support.datasets import write_shards
from tests.support.federations import LATE, CalmFederation, Started, signal_group, wait_for_rounds

# One after the other: they share what they start.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("mistakes")]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink without TLS, and without nodes."""
    with CalmFederation(tmp_path_factory.mktemp("open")) as started:
        yield started


def test_too_few_nodes_for_too_long_end_the_run(federation: Federation, tmp_path: Path) -> None:
    """The first test here: no node is there yet."""
    assert not federation.nodes
    config: dict[str, Value] = {
        "node_timeout": 3.0,
        "results_dir": str(tmp_path),
        "run_name": "run",
    }
    shown, run = federation.run(assignments(kebab(config)))
    assert run["status"] == "finished:failed"
    assert "Waiting for nodes: those that are there host 0 of 20 clients" in shown
    assert "none came within node-timeout = 3 seconds: start the missing nodes" in shown
    assert "Traceback" not in shown


def test_nodes_with_mistakes_and_a_lost_state(federation: Federation, tmp_path: Path) -> None:
    """Four nodes without TLS: two with data of their own, one without any, one that knows no place."""
    shards = write_shards(tmp_path)
    keys: dict[str, Value] = {
        "algorithm": "scaffold", "model": "mlp-10", "num_clients": 3, "clients_per_round": 3, "num_rounds": 1000,
        "results_dir": str(tmp_path), "run_name": "run", "round_timeout": LATE,
        "require_all_clients": "no",
    }  # fmt: skip
    places: dict[int, dict[str, Value]] = {
        place: {"partition-id": place, "num-partitions": 3, "data-dir": shards[place]}
        for place in range(3)
    }
    places[1]["data-dir"] = str(tmp_path / "nowhere")
    for place, config in places.items():
        federation.start_node(place, config)
    federation.start_node(3, {})
    run = Started(federation, keys)
    wait_for_rounds(tmp_path / "run", 1)
    signal_group(federation.nodes[2], signal.SIGTERM)
    federation.nodes[2].wait(PATIENCE)
    federation.start_node(2, places[2])  # it no longer knows what its client remembered
    wait_for(lambda: "STATE IS LOST" in run.shown(), "the server says that a state is lost")
    seen = len(read_rounds(tmp_path / "run"))
    wait_for_rounds(tmp_path / "run", seen + 2)  # and the algorithm goes on
    # Before the end: Flower logs a traceback if a run ends while a node answers.
    wrong, lost = federation.log_of("node-1"), federation.log_of("node-3")
    run.stop()
    shown = run.shown()
    assert shown.count("Client 1 failed: The node's data-dir") == 1
    assert "nowhere' is not there: give a directory that exists." in wrong
    assert "Traceback" not in wrong
    assert "hosts no clients: A node's config must say which clients it hosts" in shown
    assert "A node's config must say which clients it hosts" in lost
    assert "Traceback" not in lost
    assert shown.count("CLIENT STATE IS LOST: client 2") == 1
    rounds = read_rounds(tmp_path / "run")
    assert all(line["failures"] >= 1 for line in rounds)
    assert rounds[-1]["clients"] == 2
    assert rounds[-1]["test_accuracy"] > 0.15
