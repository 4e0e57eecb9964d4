"""Which node hosts which clients: claims that overlap, nodes that come back, and the server's own map."""

from pathlib import Path

import pytest

from fedapp import server_app
from fedapp.errors import ConfigError, RunError
from fedapp.hosting import Hosting
from fedapp.parsing import parse_run_config
from fedapp.waiting import wait_for_all
from tests.conftest import read_rounds
from tests.support.nodes import REFUSED, grid_of, place
from tests.support.rounds import Claims


def test_two_nodes_with_the_same_clients_end_the_run_before_it_begins(tmp_path: Path) -> None:
    config, grid = grid_of(place(0), place(1), place(2), place(1), results_dir=str(tmp_path))
    with pytest.raises(RunError, match="Nodes 2 and 4 both claim 2 clients, such as client 1") as e:
        server_app.run(grid, config)
    assert "partition-id" in str(e.value)
    assert "node-partitions" in str(e.value)
    hosting = Hosting(6)
    with pytest.raises(RunError, match="Nodes 2 and 4"):
        wait_for_all(hosting, grid, 0.1)
    assert [bool(row.problem) for row in hosting.rows()] == [False, True, False, True]
    assert not [kind for kind, _ in grid.served if kind == "train"]


@pytest.mark.parametrize("claim", [[0], [0, 1, 2, 3, 4, 5], [5, 0]])
def test_neither_a_short_nor_a_long_claim_takes_a_client_from_its_node(
    claim: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    honest = {"clients": [0, 2, 4]}, {"clients": [1, 3]}
    with pytest.raises(RunError, match=r"Nodes \d and \d both claim .* such as client 0"):
        Hosting(6).update(Claims(one=honest[0], two=honest[1], three={"clients": claim}))
    grid = Claims(one=honest[0], two=honest[1], three={"clients": [5]})
    hosting = Hosting(6)
    wait_for_all(hosting, grid, 0.1)
    grid.claims[4] = {"clients": claim}
    grid.contexts[4] = grid.contexts[1]
    for _ in range(3):
        hosting._nodes = set()
        hosting.update(grid)
    assert hosting.node_of == {0: 1, 2: 1, 4: 1, 1: 2, 3: 2, 5: 3}
    (told,) = caplog.messages
    assert told.startswith("Node 4 is refused: it claims ")
    assert hosting.rows()[3].problem in told
    assert hosting.rows()[3].clients == []


def test_a_late_claim_is_refused_in_the_node_s_own_log_until_the_other_has_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="flwr")
    config, grid = grid_of(place(0), place(1), place(2), results_dir=str(tmp_path), num_rounds=6)
    grid.before[3] = lambda: grid.add(9, partition_id=1)
    grid.before[5] = lambda: grid.contexts.pop(2)
    directory = server_app.run(grid, config).path
    refused = [r for r in caplog.records if r.message.startswith(REFUSED)]
    assert [r.levelname for r in refused] == ["ERROR"]
    assert "it claims 2 clients that node 2 hosts, such as client 1" in refused[0].message
    trained = [node for kind, node in grid.served if kind == "train"]
    assert trained == [1, 2, 3] * 4 + [1, 9, 3] * 2
    assert "Node 9 hosts its 2 clients from now on" in caplog.messages
    assert [r["clients"] for r in read_rounds(directory)] == [6] * 6


def test_a_node_that_is_back_comes_before_one_that_is_new() -> None:
    _, grid = grid_of(place(0), place(1), place(2))
    hosting = Hosting(6)
    wait_for_all(hosting, grid, 0.1)
    away = grid.contexts.pop(3)
    del grid.contexts[2]
    hosting.update(grid)
    assert sorted(hosting.node_of) == [0, 3]
    grid.add(2, partition_id=2)
    grid.contexts[3] = away
    hosting.update(grid)
    assert {hosting.node_of[2], hosting.node_of[5]} == {3}


def test_a_map_decides_who_hosts_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    thief, wrong = place(1), place(0, 2)
    config, grid = grid_of(
        thief, place(0), place(1), place(2), wrong,
        results_dir=str(tmp_path), node_partitions="2=0 3=1, 4=2 5=2",
    )  # fmt: skip
    directory = server_app.run(grid, config).path
    assert {node for kind, node in grid.served if kind == "train"} == {2, 3, 4}
    assert [r["clients"] for r in read_rounds(directory)] == [6] * 3
    refused = [r.message for r in caplog.records if r.message.startswith(REFUSED)]
    assert refused[0] == f"{REFUSED}node-partitions does not name this node"
    assert "gives it partition 2 of 3" in refused[1]
    assert "partition-id=2 num-partitions=3" in refused[1]
    assert len(refused) == 2


@pytest.mark.parametrize("text", ["1", "1=a", "1=1", "1=0 1=1", "-1=0", "1=0 2=2", "1=0;2=1"])
def test_a_map_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="node-partitions = "):
        parse_run_config({"node-partitions": text})
