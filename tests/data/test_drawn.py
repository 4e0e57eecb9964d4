"""Clients that draw their samples: as many as one likes, each for itself."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedapp.data import Partition, load_images, load_partition
from fedapp.data.drawn import Drawn
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.tables import Value
from tests.conftest import kebab

MILLION = 1_000_000


def drawn(**keys: Value) -> Partition:
    config = parse_run_config({"num-clients": MILLION, "samples-per-client": 20} | kebab(keys))
    return load_partition(load_images("digits", ""), config)


@settings(max_examples=30)
@given(
    partition=st.sampled_from(["iid", "dirichlet", "classes"]),
    client=st.integers(0, MILLION - 1),
    count=st.integers(1, 100),
    train_samples=st.sampled_from([0, 300]),
)
def test_a_client_holds_different_samples_of_those_that_take_part(
    partition: str, client: int, count: int, train_samples: int
) -> None:
    held = drawn(
        partition=partition,
        samples_per_client=count,
        train_samples=train_samples,
        classes_per_client=3,
    )
    samples, labels = held[client], load_images("digits", "").train_labels
    assert 1 <= len(samples) <= count
    assert len(set(samples)) == len(samples)
    assert list(samples) == sorted(samples)
    if partition == "iid":
        assert len(samples) == count
    if partition == "classes":
        assert len(set(labels[samples])) <= 3
    if train_samples:
        everyone = drawn(partition="iid", samples_per_client=300, train_samples=train_samples)
        assert set(samples) <= set(everyone[0])


def test_what_a_client_draws_depends_on_seed_and_client_and_not_on_how_many_there_are() -> None:
    few, many, other = drawn(num_clients=10), drawn(), drawn(seed=1)
    for client in range(10):
        np.testing.assert_array_equal(few[client], many[client])
    assert any(len(a := few[c]) != len(b := other[c]) or (a != b).any() for c in range(10))
    assert len({tuple(many[c]) for c in range(100)}) == 100
    assert len(few[10]) == len(many[-1]) == 0


def test_clients_differ_as_the_partition_says() -> None:
    labels = load_images("digits", "").train_labels

    def classes(**keys: Value) -> float:
        held = drawn(**keys)
        return float(np.mean([len(set(labels[held[c]])) for c in range(50)]))

    spread = [classes(partition="dirichlet", partition_alpha=a) for a in (0.05, 0.5, 100.0)]
    assert spread[0] < spread[1] < spread[2]
    assert classes(partition="classes", classes_per_client=2) == 2


def test_a_million_clients_take_no_memory() -> None:
    many, few = drawn(), drawn(num_clients=10)
    assert isinstance(many, Drawn) and isinstance(few, Drawn)
    tracemalloc.start()
    for client in range(0, MILLION, 10_000):
        many[client]
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000
    assert (many.order.nbytes, many.starts.nbytes) == (few.order.nbytes, few.starts.nbytes)


def test_by_writer_a_client_draws_from_one() -> None:
    config = parse_run_config(
        {"dataset": "shakespeare", "model": "gru-4", "partition": "writer", "num-clients": 1000, "samples-per-client": 5}
    )  # fmt: skip
    problem = make_problem(config).problem  # type: ignore[attr-defined]
    writers = problem.data.writers
    owners = [set(writers[problem.partition[c]]) for c in range(50)]
    assert all(len(owner) == 1 for owner in owners)
    assert len(set().union(*owners)) > 1


def test_weights_are_those_of_the_clients_samples() -> None:
    held = drawn(num_clients=200, partition="dirichlet", weighting="uniform")
    expected = np.zeros(1437)
    for client in range(200):
        expected[held[client]] += 1 / (200 * len(held[client]))
    np.testing.assert_allclose(held.weights(1437), expected)
    np.testing.assert_array_equal(held.weights(1437), held.weights(1437))  # from the disk
    counts = drawn(num_clients=200, partition="dirichlet", weighting="examples").weights(1437)
    total = sum(len(held[client]) for client in range(200))
    np.testing.assert_allclose(counts, sum(_once(held[c]) for c in range(200)) / total)


def _once(samples: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.bincount(samples, minlength=1437)


def test_more_clients_than_samples_are_told_how() -> None:
    with pytest.raises(ConfigError, match=r"choose at most 1437.* or set samples-per-client"):
        drawn(samples_per_client=0)
    with pytest.raises(ConfigError, match="more than the 10 classes"):
        drawn(partition="classes", classes_per_client=11)
