"""Three SuperNodes with their own data, and a server without any: it reports its clients' accuracy."""

from pathlib import Path

import pytest

from fedapp import client_app, server_app
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value
from tests.conftest import kebab
from tests.support.datasets import OWN_DATA, write_shards, write_tests
from tests.support.federations import LATE, CalmFederation, Started
from tests.support.runs import assert_same

pytestmark = pytest.mark.slow


def test_three_nodes_evaluate_for_a_server_that_has_no_data(tmp_path: Path) -> None:
    """The figures and the model are those of the same nodes in one process, bit for bit."""
    shards = write_shards(tmp_path)
    write_tests(shards)
    keys: dict[str, Value] = OWN_DATA | kebab(
        {
            "num_rounds": 2, "server_data": False, "data_dir": str(tmp_path / "nowhere"), "eval_clients": "all",
            "eval_finetune": 2, "results_dir": str(tmp_path), "run_name": "run", "round_timeout": LATE,
        }
    )  # fmt: skip
    places: list[dict[str, Value]] = [
        {"partition-id": place, "num-partitions": 3, "data-dir": shards[place]}
        for place in range(3)
    ]
    home = tmp_path / "home"
    home.mkdir()
    with CalmFederation(home) as federation:
        for place, config in enumerate(places):
            federation.start_node(place, config)
        run = Started(federation, keys)
        assert run.end() == "finished:completed", run.shown()
        shown = run.shown()
    assert "The server has no data; inputs have the shape (1, 8, 8), 10 classes." in shown
    assert "To evaluate, all clients a round send their metrics on held-out samples" in shown
    rounds = read_rounds(tmp_path / "run")
    assert [(r["eval_clients"], r["eval_failures"]) for r in rounds] == [(3, 0)] * 2
    assert rounds[-1]["client_accuracy_mean"] > 0.3
    assert rounds[-1]["test_accuracy"] is None
    assert f"client accuracy {rounds[-1]['client_accuracy_mean']:.4f}" in shown
    same = parse_run_config(keys | {"run-name": "inline"})
    grid = InlineGrid(client_app.app, same.flat(), 3)
    for context, config in zip(grid.contexts.values(), places, strict=True):
        context.node_config |= config
    assert_same(tmp_path / "run", server_app.run(grid, same).path)
