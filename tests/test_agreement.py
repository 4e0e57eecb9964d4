"""A server without data: what the nodes tell it, what they agree on, and who is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedapp import client_app, server_app, wire
from fedapp.agreement import agree
from fedapp.data import Facts, Shard, load_images, load_partition
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.hosting import Hosting
from fedapp.manifest import read_config
from fedapp.parsing import parse_run_config
from fedapp.plan import plan
from fedapp.problems import make_problem
from fedapp.problems.classification import Classification
from fedapp.problems.outline import server_shard
from fedapp.tables import Value
from tests.conftest import kebab, read_rounds
from tests.support.datasets import OWN_DATA, write_parquet, write_shards, write_tests
from tests.support.runs import assert_same, trained

FACTS = Facts((1, 8, 8), 10, (5.0,), (6.0,))
ALONE: dict[str, Value] = OWN_DATA | {
    "server-data": False, "dataset": "digits", "data-dir": "/nowhere", "eval-clients": "all", "node-timeout": 0.5,
}  # fmt: skip


# What nodes agree on.


def test_most_nodes_decide_what_inputs_are_and_the_median_how_they_are_normalised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = {
        1: Facts((1, 8, 8), 7, (4.0,), (6.0,)),
        2: Facts((1, 8, 8), 10, (5.0,), (7.0,)),
        3: Facts((1, 8, 8), 3, (1e300,), (1e-300,)),  # hostile
        4: Facts((3, 8, 8), 10, (1.0, 2.0, 3.0), (1.0, 1.0, 1.0)),
    }
    with caplog.at_level("WARNING", logger="flwr"):
        assert agree(told) == Facts((1, 8, 8), 10, (5.0,), (6.0,))
    (said,) = caplog.messages
    assert said.startswith("Node 4 cannot take part: it has inputs of shape (3, 8, 8) with classes")
    assert said.endswith("and 3 of 4 nodes have inputs of shape (1, 8, 8) with classes as targets")
    assert agree(dict(reversed(told.items()))) == agree(told)


def test_nodes_that_are_divided_end_the_run() -> None:
    other = Facts((1, 9, 9), 10, (5.0,), (6.0,))
    with pytest.raises(RunError, match=r"Nodes 5 and 7 disagree .*\(1, 8, 8\).*\(1, 9, 9\)"):
        agree({5: FACTS, 7: other})
    with pytest.raises(RunError, match="No node tells"):
        agree({})


def test_numbers_and_classes_or_words_and_numbers_do_not_go_together() -> None:
    table, prices = Facts((4,), 3, (0.0,) * 4, (1.0,) * 4), Facts((4,), 0, (0.0,) * 4, (1.0,) * 4)
    words = Facts((4,), 3, vocabulary=100)
    for other in (prices, words):
        with pytest.raises(RunError, match="disagree"):
            agree({1: table, 2: other})


# As a text in the config.


def test_facts_survive_as_a_text() -> None:
    for facts in (
        FACTS,
        Facts((4,), 0, (0.5,) * 4, (1.0,) * 4, 0, 2.5, 3.0),
        Facts((80,), 2, vocabulary=5),
    ):
        assert wire.facts_from_text(wire.facts_text(facts)) == facts
    short = '{"shape": [1, 8, 8], "num-classes": 10, "mean": [5], "std": [6]}'
    assert wire.facts_from_text(short) == FACTS


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "3", "{}", '{"num-classes": 3}', '{"shape": [0.5]}', '{"shape": [1, 8, 8], "std": [0], "mean": [0]}',
        '{"shape": [1, 8, 8], "mean": [1, 2], "std": [1, 2]}', '{"shape": [8], "colour": 1}', '{"shape": "8"}',
        '{"shape": [8], "num-classes": -1}', '{"shape": [8], "num-classes": 10000000}', '{"shape": [8], "mean": [NaN]}',
    ],
)  # fmt: skip
def test_a_text_that_says_nothing_of_use_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write JSON with the keys shape, num-classes"):
        wire.facts_from_text(text)


def test_facts_stand_in_for_data_only_where_there_are_none() -> None:
    text = wire.facts_text(FACTS)
    with pytest.raises(ConfigError, match="set server-data = false"):
        parse_run_config({"facts": text})
    with pytest.raises(ConfigError, match="set eval-train = false"):
        parse_run_config({"server-data": False, "eval-train": True})
    config = parse_run_config({"server-data": False, "facts": text, "dataset": "unheard-of"})
    problem = make_problem(config, server_shard(config))
    assert problem.facts == FACTS
    assert problem.evaluate(*problem.initial()) == {}
    known = parse_run_config({})
    assert problem.initial()[0].tobytes() == make_problem(known).initial()[0].tobytes()
    assert plan([config])[0] == plan([known])[0].replace("digits", "unheard-of")  # a dry run


# Runs.


def run(tmp_path: Path, nodes: list[dict[str, Any]], **keys: Value) -> Path:
    values = ALONE | kebab(keys) | {"results-dir": str(tmp_path / "results")}
    config = parse_run_config(values)
    grid = InlineGrid(client_app.app, config.flat(), len(nodes))
    for context, own in zip(grid.contexts.values(), nodes, strict=True):
        context.node_config |= own
    return server_app.run(grid, config).path


def test_a_server_without_data_reports_its_clients_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its model is that of a server which knows the same about the data; nodes' test splits are not trained on."""
    places = write_shards(tmp_path)
    write_tests(places)
    nodes = [{"data-dir": place} for place in places]
    directory = run(tmp_path, nodes, run_name="alone")
    assert (
        "The server has no data; inputs have the shape (1, 8, 8), 10 classes."
        in capsys.readouterr().out
    )
    rounds = read_rounds(directory)
    assert [r["eval_clients"] for r in rounds] == [3, 3, 3]
    assert all(r["test_accuracy"] is None for r in rounds)
    assert rounds[-1]["client_accuracy_mean"] > 0.4
    # Together the nodes' test splits are the digits' test set, so the mean over samples is its accuracy.
    told, data = json.loads(str(read_config(directory)["facts"])), load_images("digits", "")
    held = load_partition(data, parse_run_config(OWN_DATA))
    pixels = [np.asarray(data.train_images[held[client]], np.float64) for client in range(3)]
    assert told["mean"] == pytest.approx([np.median([p.mean() for p in pixels])])
    assert told["std"] == pytest.approx([np.median([p.std() for p in pixels])])
    model, _ = trained(directory)
    inputs = (data.test_images.reshape(360, -1) - told["mean"][0]) / told["std"][0]
    hidden = np.maximum(inputs @ model["blocks.0.1.weight"].T + model["blocks.0.1.bias"], 0)
    guessed = (hidden @ model["head.weight"].T + model["head.bias"]).argmax(1)
    accuracy = (guessed == data.test_labels).mean()
    assert rounds[-1]["client_accuracy_mean"] == pytest.approx(accuracy, abs=1e-9)


def test_clients_of_one_node_share_its_test_samples(tmp_path: Path) -> None:
    places = write_shards(tmp_path)
    write_tests(places)
    shard = Shard(places[0], range(0, 7, 3), FACTS)
    config = parse_run_config(kebab({"num_clients": 7, "test_share": 0.5}))
    problem = make_problem(config, shard)
    assert isinstance(problem, Classification)
    held = [problem.objective(client).held_out.rows for client in (0, 3, 6)]
    assert sorted(np.concatenate(held)) == list(range(120))
    assert all(len(rows) == 40 for rows in held)
    trained_on = [problem.objective(client).num_examples for client in (0, 3, 6)]
    assert sum(trained_on) == len(problem.data.train_labels)  # test-share has nothing left to do
    for place in places:  # without a test split, it has
        (Path(place) / "digits" / "test-00000-of-00001.parquet").unlink()
    problem = make_problem(config, Shard(places[1], range(0, 7, 3), FACTS))
    objective = problem.objective(3)
    x, _ = problem.initial()
    _, count = objective.evaluate(torch.tensor(x))
    assert abs(count - objective.num_examples) <= 1


@pytest.mark.parametrize("engine", [1, 3])
def test_nodes_without_data_of_their_own_tell_of_the_run_s(engine: int, tmp_path: Path) -> None:
    """In a simulation the nodes load the data set, and only they."""
    keys: dict[str, Value] = {"data_dir": "", "test_share": 0.2, "eval_finetune": 1}
    directory = run(tmp_path, [{}] * engine, run_name="alone", **keys)
    same = parse_run_config(
        kebab(keys) | OWN_DATA | {"eval-clients": "all", "results-dir": str(tmp_path)}
    )
    grid = InlineGrid(client_app.app, same.flat(), 2)
    with_data = server_app.run(grid, same).path
    (model, rounds), (other, expected) = trained(directory), trained(with_data)
    assert all((model[name] == other[name]).all() for name in other)
    for one, two in zip(rounds, expected, strict=True):
        assert {n: one[n] for n in one if n.startswith(("client_", "train", "uplink"))} == {
            n: two[n] for n in two if n.startswith(("client_", "train", "uplink"))
        }


def test_a_run_that_resumes_has_the_facts_that_it_began_with(tmp_path: Path) -> None:
    places = write_shards(tmp_path)
    write_tests(places)
    nodes = [{"data-dir": place} for place in places]
    whole = run(tmp_path, nodes, run_name="whole", num_rounds=4)
    keys: dict[str, Value] = {"run_name": "part", "checkpoint_every": 2}
    part = run(tmp_path, nodes, num_rounds=2, **keys)
    # A new node with other pixels would move the median, if the nodes were asked again.
    images = np.full((40, 8, 8), 200, np.uint8)
    for place in places:
        file = Path(place) / "digits" / "train-00001-of-00002.parquet"
        write_parquet(file, images, [0] * 40)
    (part / "config.json").write_text("damaged")  # the checkpoint knows them, too
    facts = json.loads(str(read_config(whole)["facts"]))
    run(tmp_path, nodes, num_rounds=3, resume=True, **keys)
    assert json.loads(str(read_config(part)["facts"])) == facts
    for place in places:
        (Path(place) / "digits" / "train-00001-of-00002.parquet").unlink()
    part = run(tmp_path, nodes, num_rounds=2, **keys | {"run_name": "again"})
    assert_same(
        whole, run(tmp_path, nodes, num_rounds=4, resume=True, **keys | {"run_name": "again"})
    )
    with pytest.raises(ConfigError, match="cannot go on with another facts"):
        run(tmp_path, nodes, num_rounds=5, resume=True, **keys, facts=wire.facts_text(FACTS))


def test_a_node_that_disagrees_is_refused_with_both_shapes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = write_shards(tmp_path)
    file = Path(places[1]) / "digits" / "train-00000-of-00001.parquet"
    write_parquet(file, np.zeros((9, 9, 9), np.uint8), list(range(9)))
    nodes = [{"data-dir": place} for place in places]
    said = r"have the shape \(1, 9, 9\), and the run's have \(1, 8, 8\)"
    with pytest.raises(RunError, match=said):
        run(tmp_path, nodes, test_share=0.2)
    directory = run(tmp_path, nodes, test_share=0.2, require_all_clients="no")
    rounds = read_rounds(directory)
    assert [(r["clients"], r["failures"]) for r in rounds] == [(2, 1)] * 3
    assert [(r["eval_clients"], r["eval_failures"]) for r in rounds] == [(2, 1)] * 3
    assert any(
        m.startswith("Node 2 cannot take part: it has inputs of shape (1, 9, 9)")
        for m in caplog.messages
    )


def test_a_node_whose_classes_are_few_trains_with_the_others(tmp_path: Path) -> None:
    places = write_shards(tmp_path)
    file = Path(places[2]) / "digits" / "train-00000-of-00001.parquet"
    write_parquet(file, np.arange(20 * 64).reshape(20, 8, 8).astype(np.uint8) % 17, [0, 1] * 10)
    directory = run(tmp_path, [{"data-dir": place} for place in places], test_share=0.2)
    assert json.loads(str(read_config(directory)["facts"]))["num-classes"] == 10
    assert read_rounds(directory)[-1]["failures"] == 0


def test_what_needs_data_on_the_server_is_refused(tmp_path: Path) -> None:
    for keys in ({"dataset": "quadratic"}, {"model": "logistic"}):
        with pytest.raises(ConfigError, match="needs its data on the server"):
            run(tmp_path, [{}], eval_clients="", **keys)
    with pytest.raises(RunError, match="had none, such as client 0"):
        run(tmp_path, [{"data-dir": "/nowhere"}] * 3)


def test_what_is_trained_must_be_said_if_only_data_would_tell(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set problem to one"):
        run(tmp_path, [{}], dataset="some.module:data", data_dir="")


def test_under_differential_privacy_nodes_tell_nothing(tmp_path: Path) -> None:
    places = write_shards(tmp_path)
    nodes = [{"data-dir": place} for place in places]
    private: dict[str, Value] = {"dp__clip": 1.0, "eval_clients": "", "dp__where": "client"}
    with pytest.raises(ConfigError, match="What nodes tell of their samples would have no noise"):
        run(tmp_path, nodes, **private)
    # A hostile server asks all the same.
    config = parse_run_config(ALONE | kebab(private))
    grid = InlineGrid(client_app.app, config.flat())
    grid.contexts[1].node_config |= nodes[0]
    hosting = Hosting(3)
    hosting.ask_for_check(wire.ask_for_facts())
    hosting.update(grid)
    assert hosting.facts() == {}
    assert "Under differential privacy neither metrics nor facts" in hosting.rows()[0].problem
    directory = run(tmp_path, nodes, **private, facts=wire.facts_text(FACTS))
    assert len(read_rounds(directory)) == 3


def test_a_sweep_knows_its_runs_again(tmp_path: Path) -> None:
    from fedapp.progress import skip_reason

    places = write_shards(tmp_path)
    nodes = [{"data-dir": place} for place in places]
    run(tmp_path, nodes, run_name="done", test_share=0.2)
    values = ALONE | {
        "test-share": 0.2,
        "run-name": "done",
        "results-dir": str(tmp_path / "results"),
    }
    assert skip_reason(parse_run_config(values)) == "is complete already"


def test_a_node_without_data_of_its_own_trains_only_with_the_facts_of_the_run_s_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Value] = {"data_dir": "", "test_share": 0.2, "round_retries": 0}
    other = replace(FACTS, std=(0.001,) * len(FACTS.std))
    with pytest.raises(RunError, match="Round 1"), caplog.at_level("WARNING", logger="flwr"):
        run(tmp_path, [{}], **keys, facts=wire.facts_text(other))
    assert "take facts out of the config" in caplog.text
