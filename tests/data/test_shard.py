"""Nodes with data of their own: they train on them alone, and their mistakes cost themselves alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedapp import client_app, server_app
from fedapp.data import Shard, load_images, load_shard
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.node_config import data_dir_of
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.tables import Value
from tests.conftest import read_rounds
from tests.support.datasets import OWN_DATA, write_parquet, write_shards


def run(tmp_path: Path, node_configs: list[dict[str, Any]], **more: Value) -> Path:
    config = parse_run_config(OWN_DATA | more | {"results-dir": str(tmp_path / "results")})
    grid = InlineGrid(client_app.app, config.flat(), len(node_configs))
    for context, own in zip(grid.contexts.values(), node_configs, strict=True):
        context.node_config |= own
    return server_app.run(grid, config).path


def model(directory: Path) -> bytes:
    return (directory / "model.safetensors").read_bytes()


def test_own_data_give_the_same_bits_as_the_same_parts_of_a_shared_set(tmp_path: Path) -> None:
    places = write_shards(tmp_path)
    own = run(tmp_path, [{"data-dir": place} for place in places])
    alias = run(tmp_path, [{"data-path": place} for place in places])
    assert model(alias) == model(own)
    shared = run(tmp_path, [{}, {}, {}])
    mixed = run(tmp_path, [{"data-dir": places[0]}, {}, {"data-dir": places[2]}])
    assert model(own) == model(shared) == model(mixed)
    assert [r["failures"] for r in read_rounds(own)] == [0, 0, 0]
    swapped = run(tmp_path, [{"data-dir": place} for place in places[::-1]])
    assert model(swapped) != model(own)


def test_a_compressed_downlink_brings_nodes_with_their_own_data_the_same_model(
    tmp_path: Path,
) -> None:
    places = write_shards(tmp_path)
    own = run(tmp_path, [{"data-dir": place} for place in places], downlink="grid")
    shared = run(tmp_path, [{}, {}, {}], downlink="grid")
    plain = run(tmp_path, [{}, {}, {}])
    assert model(own) == model(shared) != model(plain)
    sent, whole = ([r["downlink_bytes"] for r in read_rounds(d)] for d in (own, plain))
    assert sent == [r["downlink_bytes"] for r in read_rounds(shared)]
    assert sent[-1] < whole[-1] / 2  # differences, once the nodes have a model


def test_data_path_is_another_name_of_data_dir() -> None:
    assert data_dir_of({}) == data_dir_of({"data-path": ""}) == ""
    assert data_dir_of({"data-path": "/a"}) == data_dir_of({"data-dir": "/a"}) == "/a"
    assert data_dir_of({"data-path": "/a", "data-dir": "/a"}) == "/a"
    with pytest.raises(ConfigError, match="leave one out"):
        data_dir_of({"data-path": "/a", "data-dir": "/b"})


def test_the_server_needs_nothing_to_train_on(tmp_path: Path) -> None:
    data = load_images("digits", "")
    test = tmp_path / "server" / "numbers" / "test-00000-of-00001.parquet"
    write_parquet(test, data.test_images[:, 0].astype(np.uint8), data.test_labels.tolist())
    for place in write_shards(tmp_path):
        (Path(place) / "digits").rename(Path(place) / "numbers")
    keys: dict[str, Value] = {"dataset": "numbers", "data-dir": str(tmp_path / "server")}
    config = parse_run_config(OWN_DATA | keys)
    problem = make_problem(config)
    assert problem.facts is not None
    assert problem.facts.mean == pytest.approx([data.test_images.mean()])
    with pytest.raises(ConfigError, match="every node a data-dir"):
        run(tmp_path, [{}, {}, {}], **keys)  # in a simulation nobody has any


def test_several_clients_share_their_node_s_data(tmp_path: Path) -> None:
    (place, *_) = write_shards(tmp_path)
    facts = load_images("digits", "").facts
    config = parse_run_config({"num-clients": 10, "clients-per-round": 5})
    data, held = load_shard(Shard(place, range(1, 10, 3), facts), config)
    sizes = [len(held[client]) for client in range(10)]
    assert [client for client, size in enumerate(sizes) if size] == [1, 4, 7]
    assert max(sizes) - min(sizes[1::3]) <= 1
    assert sorted(np.concatenate([held[c] for c in (1, 4, 7)])) == list(
        range(len(data.train_labels))
    )
    assert (data.mean, data.std, data.num_classes) == (list(facts.mean), list(facts.std), 10)


def spoil(place: Path, how: str) -> str:
    """Make a mistake with a node's data; return its data-dir."""
    file = place / "digits" / "train-00000-of-00001.parquet"
    match how:
        case "missing":
            file.unlink()
        case "columns":
            pq.write_table(pa.table({"picture": [1], "label": [1]}), file)
        case "no images":
            pq.write_table(pa.table({"image": [1], "label": [1]}), file)
        case "words":
            table = pq.read_table(file)
            words = pa.array(["one"] * table.num_rows)
            pq.write_table(table.set_column(1, "label", words), file)
        case "shape":
            write_parquet(file, np.zeros((4, 9, 9), np.uint8), [0, 1, 2, 3])
        case "labels":
            write_parquet(file, np.zeros((4, 8, 8), np.uint8), [0, 1, 2, 10])
        case "empty":
            write_parquet(file, np.zeros((0, 8, 8), np.uint8), [])
        case "damaged":
            file.write_bytes(b"PAR1 and so on")
        case "relative":
            return "data"
        case "elsewhere":
            return str(place / "nowhere")
    return str(place)


@pytest.mark.parametrize(
    ("how", "said", "told"),
    [
        ("missing", "is incomplete: it needs train-*.parquet", ""),
        ("columns", "has the columns picture, label", "digits needs one of the columns image"),
        ("no images", "needs encoded images in its column image", ""),
        ("words", "has 'one' in its column label", "has something else in its column label"),
        ("shape", "have the shape (1, 9, 9), and the run's have (1, 8, 8)", ""),
        ("labels", "go from 0 to 10, and the run's from 0 to 9", "are not all from 0 to 9"),
        ("empty", "holds no samples", ""),
        ("damaged", "cannot be read as parquet", ""),
        ("relative", "should be a full path", ""),
        ("elsewhere", "is not there: give a directory that exists", ""),
    ],
)
def test_a_node_s_mistake_is_one_sentence_and_one_failed_client(
    how: str, said: str, told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node's own log says all; the server is told neither cells nor paths."""
    places = write_shards(tmp_path)
    wrong = spoil(Path(places[1]), how)
    nodes = [{"data-dir": places[0]}, {"data-dir": wrong}, {"data-dir": places[2]}]
    directory = run(tmp_path, nodes, **{"require-all-clients": "no"})
    assert [(r["clients"], r["failures"]) for r in read_rounds(directory)] == [(2, 1)] * 3
    at_the_node = [r for r in caplog.records if r.levelname == "ERROR"]
    at_the_server = [m for m in caplog.messages if m.startswith("Client 1 failed: ")]
    assert len(at_the_server) == 1
    assert (told or said) in at_the_server[0]
    assert not told or said not in at_the_server[0]
    assert str(tmp_path) not in at_the_server[0]
    assert all(said in r.message and not r.exc_info for r in at_the_node)
    assert len(at_the_node) == 4  # before the first round, and once a round


def test_a_run_without_images_has_no_use_for_a_node_s_data(tmp_path: Path) -> None:
    places = write_shards(tmp_path)
    nodes: list[dict[str, Any]] = [{"data-dir": places[0]}, {}, {}]
    keys: dict[str, Value] = {"dataset": "quadratic", "lr": 0.1, "require-all-clients": "no"}
    rounds = read_rounds(run(tmp_path, nodes, **keys))
    assert [r["failures"] for r in rounds] == [1, 1, 1]


def test_the_start_says_what_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, [{}], algorithm="fedcomgate", **{"run-name": "said"})
    shown = capsys.readouterr().out
    assert "A client sends D (760 numbers, compressed by uniform, 7" in shown
    assert "raw data never leave a node" in shown
    run(
        tmp_path,
        [{}],
        algorithm="scaffold",
        model="resnet20",
        **{"num-rounds": 1, "local-steps": 1},
    )
    shown = capsys.readouterr().out
    assert "A client sends u (" in shown
    assert ", dc (" in shown
    assert ", buffers (" in shown
