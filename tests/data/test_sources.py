"""Sources, the cache and the partitions."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data import ImageData, load_images, load_partition, samples, sources
from fedapp.data.partitions import fill_empty
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.datasets import write_parquet

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A data-dir with one data set: 40 + 10 images of 6x5 pixels in 4 classes, 8 writers."""
    rng = np.random.default_rng(1)
    for split, count in (("train", 40), ("test", 10)):
        write_parquet(
            tmp_path / "data" / "tiny" / f"{split}-00000-of-00001.parquet",
            rng.integers(0, 256, (count, 6, 5), dtype=np.uint8),
            [i % 4 for i in range(count)],
            writer_id=[100 - i % 8 for i in range(count)],
        )
    return tmp_path / "data"


def test_digits_are_split_evenly() -> None:
    data = load_images("digits", "")
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert data.test_images.shape == (360, 1, 8, 8)
    assert data.num_classes == 10
    assert np.bincount(data.test_labels).min() >= 34


def test_parquet_pixels_survive(tiny: Path) -> None:
    data = load_images("tiny", str(tiny))
    expected = np.random.default_rng(1).integers(0, 256, (40, 6, 5), dtype=np.uint8)
    np.testing.assert_array_equal(data.train_images[:, 0], expected)
    np.testing.assert_array_equal(data.train_labels, [i % 4 for i in range(40)])
    assert data.mean == pytest.approx([expected.mean()])
    assert data.std == pytest.approx([expected.std()])


def test_colour_images_and_shards(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    for shard in range(2):
        name = f"train-0000{shard}-of-00002.parquet"
        part = slice(3 * shard, 3 * shard + 3)
        write_parquet(tmp_path / "colour" / name, images[part], [0, 1, 2], column="img")
    write_parquet(tmp_path / "colour" / "test-00000-of-00001.parquet", images[:2], [0, 1], "img")
    data = load_images("colour", str(tmp_path))
    np.testing.assert_array_equal(data.train_images, images.transpose(0, 3, 1, 2))
    assert len(data.mean) == 3


def test_decoding_happens_once(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_images("tiny", str(tiny))

    def refuse(_: bytes) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(samples, "decode_image", refuse)
    again = load_images("tiny", str(tiny))
    np.testing.assert_array_equal(first.train_images, again.train_images)
    assert isinstance(again.train_images, np.memmap)


def test_changed_files_are_decoded_anew(tiny: Path) -> None:
    before = load_images("tiny", str(tiny))
    path = tiny / "tiny" / "test-00000-of-00001.parquet"
    write_parquet(path, np.zeros((3, 6, 5), np.uint8), [0, 1, 2])
    after = load_images("tiny", str(tiny))
    assert (len(before.test_labels), len(after.test_labels)) == (10, 3)


def test_incomplete_and_wrong_directories_are_told(tiny: Path) -> None:
    with pytest.raises(ConfigError, match="it holds tiny"):
        load_images("other", str(tiny))
    (tiny / "tiny" / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(ConfigError, match="incomplete"):
        load_images("tiny", str(tiny))
    (tiny / "tiny" / "test-00000-of-00001.parquet").write_text("no parquet")
    with pytest.raises(ConfigError, match="cannot be read as parquet"):
        load_images("tiny", str(tiny))
    for split in ("train", "test"):
        path = tiny / "tiny" / f"{split}-00000-of-00001.parquet"
        pq.write_table(pa.table({"picture": [1], "label": [1]}), path)
    with pytest.raises(ConfigError, match="has the columns picture, label"):
        load_images("tiny", str(tiny))


def test_images_of_different_sizes_are_told(tiny: Path) -> None:
    write_parquet(tiny / "tiny" / "train-1.parquet", np.zeros((1, 9, 9), np.uint8), [0])
    with pytest.raises(ConfigError, match="different sizes"):
        load_images("tiny", str(tiny))


def test_an_unwritable_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="FEDAPP_CACHE"):
        load_images("digits", "")


def test_the_hub_loader_reads_what_flwr_datasets_gives(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A local directory stands in for a hub repository: the loading code is the real one."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.setitem(sources.HUB, "tiny-hub", sources.HubSet(str(tiny / "tiny")))
    data = load_images("tiny-hub", "")
    reference = load_images("tiny", str(tiny))
    np.testing.assert_array_equal(data.train_images, reference.train_images)
    np.testing.assert_array_equal(data.test_labels, reference.test_labels)
    without_test = sources.HubSet(str(tiny / "tiny"), test=None)
    monkeypatch.setitem(sources.HUB, "tiny-held-out", without_test)
    data = load_images("tiny-held-out", "")
    assert (len(data.train_labels), len(data.test_labels)) == (36, 4)
    assert data.writers is not None and len(data.writers) == 36


def test_an_unreachable_hub_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = sources.HubSet(str(tmp_path / "nothing-here"))
    monkeypatch.setitem(sources.HUB, "nowhere", nowhere)
    with pytest.raises(ConfigError, match="set data-dir to a directory that holds nowhere/"):
        load_images("nowhere", "")


def partition_counts(
    data: ImageData, **keys: Value
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    partition = load_partition(data, parse_run_config(kebab(keys)))
    groups = [partition[c] for c in range(len(partition))]
    return partition.class_counts(data.train_labels, data.num_classes), groups


@pytest.mark.parametrize(
    "keys",
    [
        {"partition": "iid"},
        {"partition": "dirichlet", "partition_alpha": 0.5},
        {"partition": "dirichlet", "partition_alpha": 0.01, "num_clients": 100},
        {"partition": "classes", "classes_per_client": 2},
        {"partition": "classes", "classes_per_client": 3, "num_clients": 50},
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_partitions_deal_every_sample_once(keys: dict[str, Value], seed: int) -> None:
    data = load_images("digits", "")
    counts, groups = partition_counts(data, seed=seed, **keys)
    assert counts.sum(1).min() >= 1
    everything = np.sort(np.concatenate(groups))
    np.testing.assert_array_equal(everything, np.arange(len(data.train_labels)))


def test_partitions_are_what_they_say() -> None:
    data = load_images("digits", "")
    iid, _ = partition_counts(data, partition="iid", num_clients=10)
    assert iid.sum(1).max() - iid.sum(1).min() <= 1
    assert (iid > 0).all()
    classes, _ = partition_counts(data, partition="classes", classes_per_client=2)
    assert ((classes > 0).sum(1) == 2).all()
    spread = [
        (partition_counts(data, partition="dirichlet", partition_alpha=a)[0] > 0).sum(1).mean()
        for a in (0.05, 0.5, 100.0)
    ]
    assert spread[0] < spread[1] < spread[2]


def test_partitions_depend_on_the_seed_alone() -> None:
    data = load_images("digits", "")
    for how in ("iid", "dirichlet", "classes"):
        (_, a), (_, b) = (partition_counts(data, partition=how, seed=s) for s in (0, 1))
        assert any(len(x) != len(y) or (x != y).any() for x, y in zip(a, b, strict=True))


def test_by_writer(tiny: Path) -> None:
    data = load_images("tiny", str(tiny))
    keys: dict[str, Value] = {"dataset": "tiny", "data_dir": str(tiny), "partition": "writer"}
    _, groups = partition_counts(data, **keys, num_clients=8)
    assert data.writers is not None
    owners = [set(data.writers[g]) for g in groups]
    assert sorted(owners, key=min) == [{w} for w in range(8)]
    assert all(len(g) == 5 for g in groups)
    some = [
        partition_counts(data, **keys, num_clients=3, clients_per_round=1, seed=s)[1]
        for s in range(3)
    ]
    assert len({tuple(int(data.writers[g[0]]) for g in groups) for groups in some}) > 1
    with pytest.raises(ConfigError, match="more than the 8 writers"):
        partition_counts(data, **keys, num_clients=9)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "classes"])
def test_so_many_samples_at_random(partition: str) -> None:
    keys: dict[str, Value] = {"partition": partition, "num-clients": 10}
    config = parse_run_config(keys | {"train-samples": 200})
    data = load_images("digits", "")
    other_seed = parse_run_config(keys | {"train-samples": 200, "seed": 1})
    some, other, whole = (
        np.concatenate([partition[client] for client in range(10)])
        for partition in (
            load_partition(data, chosen) for chosen in (config, other_seed, parse_run_config(keys))
        )
    )
    assert len(some) == len(set(some)) == 200
    assert len(set(data.train_labels[some])) == data.num_classes
    assert set(other) != set(some)
    assert len(whole) > 1000
    with pytest.raises(ConfigError, match="train-samples = 2000 is more than the 1437 of digits"):
        load_partition(data, parse_run_config(keys | {"train-samples": 2000}))


def test_evaluation_on_the_clients_samples() -> None:
    keys: dict[str, Value] = {"train-samples": 200, "num-clients": 10, "partition": "iid"}
    problem = make_problem(parse_run_config(keys | {"eval-train": True}))
    x, buffers = problem.initial()
    figures = problem.evaluate(x, buffers)
    losses, counts = [], []
    for client in range(10):
        objective = problem.objective(client)
        loss, _ = objective.loss_gradient(torch.tensor(x), problem.partition[client])  # type: ignore[attr-defined]
        losses.append(float(loss))
        counts.append(objective.num_examples)
    assert figures["objective"] == pytest.approx(np.average(losses, weights=counts), rel=1e-5)
    assert figures["objective"] != pytest.approx(figures["test_loss"], rel=1e-5)
    assert "objective" not in make_problem(parse_run_config(keys)).evaluate(x, buffers)


def test_fill_empty_takes_from_the_richest() -> None:
    groups = [np.array([], np.int64), np.arange(4), np.array([], np.int64), np.array([9])]
    assert [g.tolist() for g in fill_empty(groups)] == [[3], [0, 1], [2], [9]]


def test_a_class_too_small_for_its_holders_is_told(tmp_path: Path) -> None:
    images = np.zeros((12, 4, 4), np.uint8)
    for split in ("train", "test"):
        write_parquet(tmp_path / "small" / f"{split}-0.parquet", images, [0] * 11 + [1])
    keys: dict[str, Value] = {"dataset": "small", "data_dir": str(tmp_path), "num_clients": 5}
    with pytest.raises(ConfigError, match="cannot be made"):
        make_problem(parse_run_config(kebab(keys)))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data are not here")
def test_real_mnist_learns_and_starts_fast_the_second_time(run_inline: RunInline) -> None:
    keys: dict[str, Value] = {
        "dataset": "mnist", "data_dir": str(SHARED.resolve()), "partition": "iid",
        "model": "mlp-200-200", "num_clients": 100, "clients_per_round": 10, "num_rounds": 5,
        "local_steps": 10, "batch_size": 50, "lr": 0.1,
    }  # fmt: skip
    records = read_rounds(run_inline(**keys))
    assert records[-1]["test_accuracy"] > 0.75
    started = time.process_time()
    load_images("mnist", str(SHARED.resolve()))
    assert time.process_time() - started < 5


def test_config_defaults_are_a_valid_run() -> None:
    assert make_problem(RunConfig()).objective(0).num_examples > 0


def test_tiny_imagenet_s_layout(tmp_path: Path) -> None:
    """64x64, colour with some grey ones between, and `valid-*` where others have `test-*`."""
    rng = np.random.default_rng(0)
    colour = list(rng.integers(0, 256, (20, 64, 64, 3), dtype=np.uint8))
    images = [*colour, rng.integers(0, 256, (64, 64), dtype=np.uint8)]
    labels = [*range(0, 200, 10), 199]
    for split in ("train", "valid"):
        path = tmp_path / "tiny-imagenet" / f"{split}-00000-of-00001.parquet"
        write_parquet(path, images, labels)  # type: ignore[arg-type]
    data = load_images("tiny-imagenet", str(tmp_path))
    assert data.train_images.shape == data.test_images.shape == (21, 3, 64, 64)
    assert data.num_classes == 200
    np.testing.assert_array_equal(data.train_images[3], colour[3].transpose(2, 0, 1))
    np.testing.assert_array_equal(data.train_images[20], np.stack([images[20]] * 3))
    keys: dict[str, Value] = {"dataset": "tiny-imagenet", "data_dir": str(tmp_path)}
    keys |= {"model": "vgg11", "partition": "iid", "num_clients": 3, "clients_per_round": 1}
    problem = make_problem(parse_run_config(kebab(keys)))
    assert problem.layout.tensors[-2:] == (1024 * 200, 200)
