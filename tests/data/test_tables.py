"""Tables on disk: CSV, JSON lines and parquet are read as they are, or refused with row and column."""

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_diabetes

from fedapp.data import load_images
from fedapp.errors import ConfigError
from fedapp.tables import Value
from tests.support.tabular import array_problem, houses, write_csv

REGRESSION: dict[str, Value] = {
    "problem": "tabular-regression",
    "dataset": "houses",
    "target": "price",
    "model": "logreg",
    "partition": "iid",
}


@pytest.fixture
def homes(tmp_path: Path) -> Path:
    write_csv(tmp_path / "houses" / "train.csv", houses(40))
    write_csv(tmp_path / "houses" / "test.csv", houses(10, seed=1))
    return tmp_path


def test_numeric_columns_but_the_target_are_features(homes: Path) -> None:
    data = array_problem(**REGRESSION, data_dir=str(homes)).data
    rows = [line.split(",") for line in houses(40)]
    np.testing.assert_array_equal(data.train.inputs, [[float(a), float(r)] for r, a, _, _ in rows])
    np.testing.assert_array_equal(data.train.targets, [float(row[3]) for row in rows])
    assert (len(data.train), len(data.test)) == (40, 10)
    assert isinstance(data.train.inputs, np.memmap)
    assert data.facts.shape == (2,) and data.facts.num_classes == 0
    assert data.facts.mean == pytest.approx(data.train.inputs.mean(0))
    assert data.facts.target_std == pytest.approx(data.train.targets.std())


@pytest.mark.parametrize("features", ["age", "age rooms", "age, rooms"])
def test_named_features_come_in_their_order(features: str, homes: Path) -> None:
    data = array_problem(**REGRESSION, data_dir=str(homes), features=features).data
    ages = [float(line.split(",")[1]) for line in houses(40)]
    np.testing.assert_array_equal(data.train.inputs[:, 0], ages)
    assert data.facts.shape == (len(features.replace(",", " ").split()),)


def test_parquet_and_json_lines_give_the_same_numbers_as_csv(homes: Path) -> None:
    reference = array_problem(**REGRESSION, data_dir=str(homes)).data
    for split, rows in (("train", houses(40)), ("test", houses(10, seed=1))):
        columns = list(zip(*(row.split(",") for row in rows), strict=True))
        rooms, age, price = ([float(v) for v in columns[k]] for k in (0, 1, 3))
        table = {"rooms": rooms, "age": age, "city": list(columns[2]), "price": price}
        (homes / "parquet").mkdir(exist_ok=True)
        pq.write_table(pa.table(table), homes / "parquet" / f"{split}-00000-of-00001.parquet")
        (homes / "lines").mkdir(exist_ok=True)
        lines = [
            json.dumps(dict(zip(table, row, strict=True)))
            for row in zip(*table.values(), strict=True)
        ]
        (homes / "lines" / f"{split}.jsonl").write_text("\n".join(lines))
    for name in ("parquet", "lines"):
        keys = REGRESSION | {"dataset": name}
        data = array_problem(**keys, data_dir=str(homes)).data
        np.testing.assert_array_equal(data.train.inputs, reference.train.inputs)
        np.testing.assert_array_equal(data.test.targets, reference.test.targets)


def test_a_tenth_of_a_single_file_is_held_out(tmp_path: Path) -> None:
    write_csv(tmp_path / "houses.csv", houses(50))
    data = array_problem(**REGRESSION, data_dir=str(tmp_path)).data
    assert (len(data.train), len(data.test)) == (45, 5)
    together = np.concatenate([data.train.targets, data.test.targets])
    assert sorted(together) == sorted(float(row.split(",")[3]) for row in houses(50))


def test_a_group_column_is_the_writer_and_classes_may_be_words(homes: Path) -> None:
    keys = REGRESSION | {"partition": "writer", "group": "city", "num_clients": 3}
    problem = array_problem(**keys, data_dir=str(homes))
    assert problem.partition is not None and problem.data.writers is not None
    cities = [line.split(",")[2] for line in houses(40)]
    held = [{cities[row] for row in problem.partition[client]} for client in range(3)]
    assert sorted(city for one in held for city in one) == ["Aba", "Bor", "Cos"]
    keys = {**REGRESSION, "problem": "tabular-classification", "target": "city"}
    data = array_problem(**keys, data_dir=str(homes)).data
    names = ["Aba", "Bor", "Cos"]
    assert data.train.targets.tolist() == [names.index(city) for city in cities]
    assert data.facts.num_classes == 3


def test_numbers_are_divided_by_tenths() -> None:
    """With partition = "classes" and one class each, clients' targets do not overlap."""
    problem = array_problem(
        dataset="diabetes", model="logreg", num_clients=10, classes_per_client=1
    )
    assert problem.partition is not None
    held = [problem.data.train.targets[problem.partition[client]] for client in range(10)]
    held.sort(key=lambda targets: float(targets.min()))
    assert all(a.max() <= b.min() for a, b in itertools.pairwise(held))
    assert min(map(len, held)) > 25
    targets = load_diabetes().target
    assert set(np.concatenate(held)) <= set(targets)


MISTAKES = {
    "missing value": (["1,2,Aba,3", "1,,Aba,3"], {}, "line 3 of .*train.csv has nothing in its column age"),
    "word in a number": (["1,2,Aba,3", "1,3,Aba,4", "two,4,Aba,5"], {}, "line 4 of .*train.csv has 'two' in its column rooms"),
    "not finite": (["1,2,Aba,3", "1,inf,Aba,4"], {}, "line 3 of .* has inf in its column age"),
    "no such feature": (["1,2,Aba,3"], {"features": "room"}, r"features = 'room' is not a column of .* \(did you mean 'rooms'\?\): it has rooms, age, city, price"),
    "words as features": (["1,2,Aba,3"], {"features": "city"}, "has 'Aba' in its column city, which should hold numbers"),
    "no target": (["1,2,Aba,3"], {"target": ""}, "set target to the one to predict"),
    "target among features": (["1,2,Aba,3"], {"features": "price"}, "names the target price"),
    "words to predict": (["1,2,Aba,3"], {"target": "city"}, "column city, which should hold numbers"),
    "no such group": (["1,2,Aba,3"], {"group": "town"}, "group = 'town' is not a column"),
    "nothing": ([], {}, "holds no rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_table_is_one_sentence_with_its_place(name: str, tmp_path: Path) -> None:
    rows, keys, said = MISTAKES[name]
    write_csv(tmp_path / "houses" / "train.csv", rows)
    write_csv(tmp_path / "houses" / "test.csv", houses(5))
    with pytest.raises(ConfigError, match=said) as told:
        array_problem(**REGRESSION | keys, data_dir=str(tmp_path))
    assert "\n" not in str(told.value)


def test_wrong_places_are_told(homes: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset = 'house' is not in data-dir .*'houses'"):
        array_problem(**REGRESSION | {"dataset": "house"}, data_dir=str(homes))
    with pytest.raises(ConfigError, match="is a table or a text: set problem"):
        load_images("houses", str(homes))
    write_csv(homes / "houses" / "test.csv", ["1,Aba,3"], "rooms,city,price")
    with pytest.raises(ConfigError, match=r"test.csv lacks the columns age"):
        array_problem(**REGRESSION, data_dir=str(homes))
    (homes / "houses" / "test.csv").write_text("a,b\n1,2,3\n")
    with pytest.raises(ConfigError, match=r"test.csv cannot be read"):
        array_problem(**REGRESSION, data_dir=str(homes))


def test_models_that_do_not_read_tables_are_refused() -> None:
    with pytest.raises(ConfigError, match="'lenet5' does not read tables: choose logreg, mlp"):
        array_problem(dataset="wine", model="lenet5")
    with pytest.raises(ConfigError, match="'mlp-200' does not read tokens: choose bag, gru"):
        array_problem(dataset="speeches")
    with pytest.raises(ConfigError, match="does not know the order of characters"):
        array_problem(dataset="shakespeare", model="bag")


def test_any_table_of_the_hub_is_read_by_its_name(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's loader takes a local directory for a repository: the loading code is the real one."""
    (homes / "owner").mkdir()
    for split, rows in (("train", houses(30)), ("test", houses(8, seed=1))):
        columns = list(zip(*(row.split(",") for row in rows), strict=True))
        numbers = {n: list(map(float, columns[k])) for n, k in (("rooms", 0), ("price", 3))}
        (homes / "owner" / "homes").mkdir(exist_ok=True)
        pq.write_table(pa.table(numbers), homes / "owner" / "homes" / f"{split}.parquet")
    monkeypatch.chdir(homes)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(homes / "cache"))
    data = array_problem(**REGRESSION | {"dataset": "owner/homes"}).data
    assert (len(data.train), len(data.test)) == (30, 8)
    assert data.train.inputs[0, 0] == float(houses(30)[0].split(",")[0])


def test_an_unreachable_hub_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="cannot be fetched from the Hugging Face hub") as told:
        array_problem(**REGRESSION | {"dataset": "nobody/nothing-here"})
    assert "\n" not in str(told.value)
