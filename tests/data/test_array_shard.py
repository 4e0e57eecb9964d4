"""Nodes with tables and texts of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapp import client_app, server_app, wire
from fedapp.data import Facts, Shard
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.hosting import Hosting
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.network import NetworkProblem
from fedapp.tables import Value
from tests.conftest import kebab, read_rounds
from tests.support.runs import assert_same
from tests.support.tabular import array_problem, houses, write_csv

KEYS: dict[str, Value] = {
    "problem": "tabular-regression",
    "dataset": "houses",
    "features": "rooms age",
    "target": "price",
    "model": "mlp-4",
    "lr": 0.05,
    "num-clients": 3,
    "clients-per-round": 3,
    "num-rounds": 3,
}


def run(directory: Path, node_configs: list[dict[str, Any]], **more: Value) -> Path:
    keys = KEYS | {"data-dir": str(directory / "server"), "results-dir": str(directory / "results")}
    config = parse_run_config(keys | kebab(more))
    grid = InlineGrid(client_app.app, config.flat(), len(node_configs))
    for context, own in zip(grid.contexts.values(), node_configs, strict=True):
        context.node_config |= own
    return server_app.run(grid, config).path


@pytest.fixture
def nodes(tmp_path: Path) -> list[str]:
    """Write a server's table and, for each client, its part of it as a node's own."""
    rows = houses(60)
    write_csv(tmp_path / "server" / "houses" / "train.csv", rows)
    write_csv(tmp_path / "server" / "houses" / "test.csv", houses(20, seed=1))
    config = KEYS | {"data-dir": str(tmp_path / "server")}
    held = array_problem(
        **{key.replace("-", "_"): value for key, value in config.items()}
    ).partition
    assert held is not None
    for client in range(3):
        own = [rows[row] for row in held[client]]
        write_csv(tmp_path / f"node-{client}" / "houses" / "train.csv", own)
    return [str(tmp_path / f"node-{client}") for client in range(3)]


def test_own_tables_give_the_same_bits_as_the_same_parts_of_a_shared_one(
    nodes: list[str], tmp_path: Path
) -> None:
    own = run(tmp_path, [{"data-dir": place} for place in nodes])
    shared = run(tmp_path, [{}, {}, {}])
    assert read_rounds(own)[-1]["failures"] == 0
    bits = [(path / "model.safetensors").read_bytes() for path in (own, shared)]
    assert bits[0] == bits[1]
    others = run(tmp_path, [{"data-dir": place} for place in (nodes[0], nodes[0], nodes[2])])
    assert (others / "model.safetensors").read_bytes() != bits[0]


def test_a_server_without_data_asks_what_the_tables_are_like(
    nodes: list[str], tmp_path: Path
) -> None:
    """Columns are in another order on one node; `features` says in which order they are read."""
    for client, place in enumerate(nodes):
        write_csv(Path(place) / "houses" / "test.csv", houses(12, seed=2 + client))
    own = Path(nodes[1]) / "houses" / "train.csv"
    rows = [line.split(",") for line in own.read_text().splitlines()[1:]]
    keys: dict[str, Value] = {"server_data": False, "eval_clients": "all"}
    ordered = run(tmp_path, [{"data-dir": place} for place in nodes], **keys, num_rounds=10)
    rounds = read_rounds(ordered)
    assert [(r["eval_clients"], r["eval_failures"], r["failures"]) for r in rounds] == [
        (3, 0, 0)
    ] * 10
    assert rounds[-1]["client_rmse_mean"] < 0.5 * rounds[0]["client_rmse_mean"]
    assert rounds[-1]["test_loss"] is None
    write_csv(own, [f"{p},{a},{r},{c}" for r, a, c, p in rows], "price,age,rooms,city")
    again = run(tmp_path, [{"data-dir": place} for place in nodes], **keys, num_rounds=10)
    assert_same(ordered, again)


def own_problem(
    place: str, facts: Facts | None, keys: dict[str, Value] | None = None, clients: range = range(1)
) -> NetworkProblem:
    config = parse_run_config(KEYS | (keys or {}))
    problem = make_problem(config, Shard(place, clients, facts))
    assert isinstance(problem, NetworkProblem)
    return problem


def test_a_node_trains_on_all_it_has_and_deals_it_to_its_clients(nodes: list[str]) -> None:
    facts = Facts((2,), 0, (4.0, 40.0), (2.0, 20.0), target_mean=300.0, target_std=200.0)
    problem = own_problem(nodes[0], facts, clients=range(2))
    lines = (Path(nodes[0]) / "houses" / "train.csv").read_text().splitlines()
    sizes = [problem.objective(client).num_examples for client in range(2)]
    assert sum(sizes) == len(lines) - 1 and max(sizes) - min(sizes) <= 1
    assert problem.facts == facts
    assert problem.problem.test_data() is None


@pytest.mark.parametrize(
    ("facts", "keys", "said"),
    [
        (Facts((3,), 0, (0.0,) * 3, (1.0,) * 3), {}, r"shape \(2,\), and the run's have \(3,\)"),
        (Facts((2,), 4, (0.0,) * 2, (1.0,) * 2), {}, "classes to predict False"),
        (Facts((2,), 3, (0.0,) * 2, (1.0,) * 2), {"problem": "tabular-classification", "target": "city"}, "are words, and every node"),
        (Facts((2,), 3, (0.0,) * 2, (1.0,) * 2), {"problem": "tabular-classification", "target": "rooms", "features": "age price"}, "have 9 classes, and the run's have 3"),
        (Facts((64,), 3, vocabulary=10), {"problem": "text-classification", "features": "city", "target": "rooms", "model": "bag"}, "tokens, in number 4096, and the run's have 10"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_the_run_are_refused(
    facts: Facts, keys: dict[str, Value], said: str, tmp_path: Path
) -> None:
    write_csv(tmp_path / "houses" / "train.csv", ["8,1,Aba,3", *houses(9)])
    with pytest.raises(ConfigError, match=said):
        own_problem(str(tmp_path), facts, keys)


def test_more_clients_than_samples_and_wrong_places_are_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "houses.csv", houses(2))
    facts = Facts((2,), 0, (4.0, 40.0), (2.0, 20.0))
    with pytest.raises(ConfigError, match="holds 2 samples for the 3 clients"):
        own_problem(str(tmp_path), facts, clients=range(3))
    with pytest.raises(ConfigError, match="should be a full path"):
        own_problem("somewhere", facts)
    assert own_problem(str(tmp_path), facts).objective(0).num_examples == 2


@pytest.mark.parametrize(
    ("facts", "keys"),
    [
        (Facts((2,), 0, (4.0, 40.0), (2.0, 20.0)), {}),
        (Facts((64,), 5, vocabulary=4096), {"problem": "text-classification", "model": "gru-4"}),
        (Facts((80,), 97, vocabulary=97), {"problem": "next-character", "model": "gru-4"}),
    ],
)
def test_facts_are_enough_for_a_server_without_data(facts: Facts, keys: dict[str, Value]) -> None:
    problem = own_problem("", facts, keys, range(0))
    x, buffers = problem.initial()
    assert np.isfinite(x).all() and problem.evaluate(x, buffers) == {}
    with pytest.raises(ConfigError, match="every node a data-dir of its own"):
        problem.objective(0)


@pytest.mark.parametrize("where", ["", "server", "client"])
def test_an_error_with_the_data_quotes_nothing_to_the_server(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_csv(tmp_path / "houses" / "train.csv", ["3,a secret,Aba,9", *houses(9)])
    private: dict[str, Value] = {"dp.clip": 1.0, "dp.where": where} if where else {}
    config = parse_run_config(KEYS | private)
    grid = InlineGrid(client_app.app, config.flat())
    grid.contexts[1].node_config |= {"data-dir": str(tmp_path)}
    hosting = Hosting(3)
    facts = Facts((2,), 0, (4.0, 40.0), (2.0, 20.0))
    hosting.ask_for_check({"shared-data": True, **wire.facts_head(facts)})
    hosting.update(grid)
    told = hosting.rows()[0].problem
    hidden = "something is wrong with its data or its config: see this node's log"
    plain = (
        "line 2 of train.csv has no number in its column age: write one there, or leave the column out of "
        "features."
    )
    assert told == (hidden if where else plain)
    assert f"{tmp_path}/houses/train.csv has 'a secret'" in caplog.text  # the node's own log


def test_nodes_with_tables_of_their_own_must_be_told_the_columns(tmp_path: Path) -> None:
    write_csv(tmp_path / "houses" / "train.csv", houses(9))
    with pytest.raises(ConfigError, match="same columns in the same order: set features"):
        own_problem(str(tmp_path), Facts((2,), 0, (4.0, 40.0), (2.0, 20.0)), {"features": ""})
