"""Rounds upon rounds among failing clients: `benchmarks/soak.py`, shorter; SCAFFOLD for all of its 500 rounds."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks import soak
from benchmarks.faults import EARLY, KINDS, Kept, fault_of
from benchmarks.soak import Outcome
from fedapp.registry import ALGORITHMS
from fedapp.rounds_file import read_rounds

ROUNDS, NETWORK_ROUNDS = 50, 75  # networks take longer to learn
# A missing client matters most to what uses all of them and is not exact.
FARTHER = {"qsgd": 6.0}


def assert_nothing_grew(early: Kept, last: Kept) -> None:
    assert last.megabytes - early.megabytes < 20
    assert last.undelivered <= 8  # at most one for each client
    assert last.said <= 10
    assert last.states <= 2 * 8  # the accepted one of each client, and the one after


def assert_all_counted(outcome: Outcome) -> None:
    assert outcome.injected == outcome.counted
    assert sum(outcome.counted.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_lives_with_failing_clients(name: str, tmp_path: Path) -> None:
    rounds = NETWORK_ROUNDS if ALGORITHMS[name].needs.network else ROUNDS
    outcome = soak.soak(name, rounds, tmp_path)
    assert_all_counted(outcome)
    assert_nothing_grew(outcome.watch.early, outcome.watch.last)
    if outcome.figure == "test_accuracy":
        assert outcome.with_faults > outcome.without - 0.05
        assert outcome.with_faults > 0.8
    else:
        assert outcome.with_faults < FARTHER.get(name, 2.0) * outcome.without


@pytest.mark.slow
def test_five_hundred_rounds(tmp_path: Path) -> None:
    """To the optimum, whatever fails: each kind of fault, and about one client in twenty."""
    directory, watch = soak.run("scaffold", tmp_path, 500, faults=True)
    rounds = read_rounds(directory)
    assert {r["round"]: r["failures"] for r in rounds} == {
        k: watch.failures[k] for k in range(1, 501)
    }
    assert set(watch.kinds) == set(KINDS)
    assert 0.04 < sum(watch.kinds.values()) / (5 * 500) < 0.06
    assert rounds[-1]["distance"] < 1e-12
    assert np.isfinite(load_file(directory / "model.safetensors")["x"]).all()
    assert_nothing_grew(watch.early, watch.last)
    assert watch.early.megabytes > 0


def test_faults_are_drawn_by_round_attempt_and_client() -> None:
    drawn = [fault_of(0, 0.05, 7, 1, client) for client in range(1000)]
    assert drawn == [fault_of(0, 0.05, 7, 1, client) for client in range(1000)]
    assert drawn != [fault_of(0, 0.05, 7, 2, client) for client in range(1000)]
    assert 20 < sum(kind is not None for kind in drawn) < 80
    assert EARLY < 500
