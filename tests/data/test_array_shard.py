"""Nodes with tables and texts of their own, with a server that has the same or nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapp import client_app, server_app
from fedapp.data import Facts, Shard
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.manifest import read_config
from fedapp.parsing import parse_run_config
from fedapp.plan import plan
from fedapp.problems import make_problem
from fedapp.tables import Value
from tests.conftest import kebab, read_rounds
from tests.support.runs import trained

SLOPES = np.array([3.0, -2.0])
KEYS: dict[str, Value] = {
    "problem": "tabular-regression", "dataset": "houses", "features": "area rooms", "target": "price", "model": "logreg",
    "num-clients": 3, "clients-per-round": 3, "num-rounds": 30, "lr": 0.05, "local-steps": 3, "node-timeout": 0.5,
    "server-data": False, "eval-clients": "all",
}  # fmt: skip


def houses(path: Path, seed: int, count: int = 40, names: str = "area,rooms,price") -> None:
    """Write houses whose price is a linear function of two numbers, and a little noise."""
    rng = np.random.default_rng(seed)
    rows = rng.normal([seed, 5], [1, 2], (count, 2))
    prices = rows @ SLOPES + 7 + 0.01 * rng.normal(size=count)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{a},{b},{c}" for (a, b), c in zip(rows.tolist(), prices.tolist(), strict=True)]
    path.write_text("\n".join([names, *lines]) + "\n")


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the configs of three nodes with houses of their own."""
    for node in range(3):
        for split, count in (("train", 40), ("test", 10)):
            houses(tmp_path / f"node-{node}" / "houses" / f"{split}.csv", node, count)
    return [{"data-dir": str(tmp_path / f"node-{node}")} for node in range(3)]


def run(tmp_path: Path, nodes: list[dict[str, Any]], **more: Value) -> Path:
    config = parse_run_config(KEYS | kebab(more) | {"results-dir": str(tmp_path / "results")})
    grid = InlineGrid(client_app.app, config.flat(), len(nodes))
    for context, own in zip(grid.contexts.values(), nodes, strict=True):
        context.node_config |= own
    return server_app.run(grid, config).path


def test_tables_of_three_nodes_and_a_server_without_any(
    nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    directory = run(tmp_path, nodes)
    rounds = read_rounds(directory)
    assert (rounds[-1]["eval_clients"], rounds[-1]["failures"]) == (3, 0)
    assert rounds[-1]["client_rmse_mean"] < 0.3 < 2 < rounds[0]["client_rmse_mean"]
    assert rounds[-1]["client_rmse_worst10"] >= rounds[-1]["client_rmse_mean_by_client"]
    facts = json.loads(str(read_config(directory)["facts"]))
    assert (facts["shape"], facts["num-classes"]) == ([2], 0)
    # The model in the units of the tables: price = (features - mean) / std * weights * target std + ...
    model, _ = trained(directory)
    (weights,) = (tensor for tensor in model.values() if tensor.ndim == 2)
    slopes = weights[0] / np.array(facts["std"]) * facts["target-std"]
    np.testing.assert_allclose(slopes, SLOPES, atol=0.3)
    swapped = trained(run(tmp_path, nodes[::-1]))[0]
    assert any(
        (swapped[name] != model[name]).any() for name in model
    )  # it is their data that count


def test_a_node_s_test_split_is_dealt_to_its_clients(nodes: list[dict[str, Any]]) -> None:
    facts = Facts((2,), 0, (1.0, 5.0), (1.0, 2.0), target_mean=3.0, target_std=2.0)
    config = parse_run_config(KEYS | {"num-clients": 6})
    problem = make_problem(config, Shard(nodes[1]["data-dir"], range(1, 6, 3), facts))
    assert problem.facts == facts
    held = [problem.objective(client).held_out.rows for client in (1, 4)]  # type: ignore[attr-defined]
    assert sorted(np.concatenate(held)) == list(range(10))
    assert sum(problem.objective(client).num_examples for client in (1, 4)) == 40


def test_nodes_may_train_beside_a_server_with_a_test_set(
    nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    houses(tmp_path / "server" / "houses" / "test.csv", 1)
    keys: dict[str, Value] = {"server_data": True, "data_dir": str(tmp_path / "server")}
    config = parse_run_config(KEYS | kebab(keys))
    problem = make_problem(config)
    assert problem.facts is not None
    assert problem.facts.shape == (2,)
    shard = Shard(nodes[0]["data-dir"], range(1), problem.facts)
    assert make_problem(config, shard).objective(0).num_examples == 40


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("other columns", "features = 'rooms' is not a column of"),
        ("words", "should hold numbers"),
        ("empty", "holds no rows"),
        ("nothing", "is not in data-dir"),
    ],
)
def test_a_node_s_mistake_is_one_sentence(
    how: str, said: str, nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = Path(nodes[1]["data-dir"]) / "houses" / "train.csv"
    match how:
        case "other columns":
            houses(file, 1, names="area,windows,price")
        case "words":
            file.write_text("area,rooms,price\n1,2,3\n1,many,3\n2,3,4\n")
        case "empty":
            file.write_text("area,rooms,price\n")
        case "nothing":
            for path in file.parent.iterdir():
                path.unlink()
    with pytest.raises(RunError, match=said):
        run(tmp_path, nodes)
    rounds = read_rounds(run(tmp_path, nodes, require_all_clients="no", num_rounds=2))
    assert [r["clients"] for r in rounds] == [2, 2]


def test_columns_must_be_named_since_their_order_matters(
    nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="set features to their names"):
        run(tmp_path, nodes, features="")


def test_texts_of_nodes_and_classes_that_are_words(tmp_path: Path) -> None:
    keys: dict[str, Value] = {
        "problem": "text-classification", "dataset": "mail", "features": "", "target": "label", "model": "bag-8",
        "lr": 2.0, "num_rounds": 8, "text__length": 4, "text__vocabulary": 64, "test_share": 0.25,
    }  # fmt: skip
    nodes: list[dict[str, Any]] = []
    for node in range(3):
        place = tmp_path / f"node-{node}"
        place.mkdir()
        rows = [{"text": f"buy {k} now", "label": 1} for k in range(20)]
        rows += [{"text": f"dear {k} friend", "label": 0} for k in range(20)]
        (place / "mail.jsonl").write_text("\n".join(map(json.dumps, rows)))
        nodes.append({"data-dir": str(place)})
    rounds = read_rounds(run(tmp_path, nodes, **keys))
    assert rounds[-1]["client_accuracy_mean"] == 1.0
    assert "client_rmse_mean" not in rounds[-1]
    words = [{"text": "buy now", "label": "spam"}, {"text": "dear friend", "label": "ham"}] * 9
    (tmp_path / "node-1" / "mail.jsonl").write_text("\n".join(map(json.dumps, words)))
    with pytest.raises(RunError, match="which every node would number in its own way"):
        run(tmp_path, nodes, **keys)


def test_what_is_trained_must_be_said_if_only_data_would_tell() -> None:
    config = parse_run_config({"server-data": False, "dataset": "some.module:data"})
    with pytest.raises(ConfigError, match="set problem"):
        server_app.run(InlineGrid(client_app.app, config.flat()), config)


def test_a_dry_run_needs_facts_and_no_table() -> None:
    facts = json.dumps({"shape": [2], "num-classes": 0, "mean": [0, 0], "std": [1, 1]})
    config = parse_run_config(KEYS | {"facts": facts})
    assert "parameters 3," in plan([config])[0]
