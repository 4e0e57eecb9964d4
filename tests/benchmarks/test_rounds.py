"""`benchmarks/rounds.py`: what it compares is the same work, and its ratios are those of the same block."""

import json
import sys
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import flute, rounds
from benchmarks.contestants import CONTESTANTS, data_set, in_processes
from benchmarks.plain import client_tensors, plain_model
from benchmarks.workloads import BATCH, CLASSES, SAMPLES, STEPS, WORKLOADS, Workload
from fedapp.models.networks import make_network
from fedapp.parsing import parse_run_config

TINY = "logreg, 2 of 4"


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=list(WORKLOADS))
def test_the_plain_model_is_the_one_that_we_train(workload: Workload) -> None:
    ours = make_network(workload.model, workload.shape, CLASSES, "none", 0)
    plain = [tuple(p.shape) for p in plain_model(workload).parameters()]
    assert plain == [tuple(p.shape) for p in ours.parameters()]
    images, labels = client_tensors(workload, 21)
    assert plain_model(workload)(images[:2]).shape == (2, CLASSES)
    assert len(images) == len(labels) == SAMPLES == STEPS * BATCH  # one epoch is all the steps
    assert images.equal(client_tensors(workload, 1)[0])


@given(st.integers(0, 20), st.lists(st.sampled_from(list(CONTESTANTS)), unique=True))
def test_a_block_has_everyone_once_and_bare_training_around_them(
    block: int, names: list[str]
) -> None:
    order = rounds.order_of(block, names)
    assert order[0] == order[-1] == "bare"
    assert sorted(order[1:-1]) == sorted(set(names) - {"bare"})


def test_blocks_begin_with_another_contestant() -> None:
    first = [rounds.order_of(block, ["a", "b", "c"])[1] for block in range(4)]
    assert first == ["a", "b", "c", "a"]


@pytest.mark.parametrize("order", permutations(range(4)))
def test_ratios_are_to_the_bare_training_of_the_same_block(order: tuple[int, ...]) -> None:
    """Block 1 runs at half the speed: both ratios are 2, where those of all medians would be 2.5."""
    rows = [
        {"work": "w", "block": 0, "who": "bare", "seconds": [1.0, 1.0, 9.0]},
        {"work": "w", "block": 0, "who": "ray", "seconds": [2.0]},
        {"work": "w", "block": 1, "who": "bare", "seconds": [2.0]},
        {"work": "w", "block": 1, "who": "ray", "seconds": [4.0, 4.0, 4.0]},
    ]
    found = rounds.summary([rows[index] for index in order])["w"]["ray"]
    assert found["ratios"] == [2.0, 2.0]
    assert found["ratio"] == 2.0
    assert found["quartiles"] == [3.5, 4.0, 4.0]
    assert found["rounds"] == 4


@pytest.mark.slow
def test_who_fails_is_noted_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDAPP_CACHE", "put back by monkeypatch")
    words = [
        "--quick",
        "--only",
        TINY,
        "--who",
        "bare",
        "pfl",
        "inline",
        "fedjax",
        "--workers",
        "1",
    ]
    places = ["--cache", str(tmp_path / "cache"), "--out", str(tmp_path)]
    assert rounds.main([*words, *places, "--peer", "pfl=/no/such/python"]) == 1
    report = json.loads((tmp_path / "rounds.json").read_text())
    measured = report["measurements"]
    assert [row["who"] for row in measured] == ["bare", "pfl", "inline", "bare"]
    assert ["error" in row for row in measured] == [False, True, False, False]
    assert [row["started"] for row in measured] == sorted(row["started"] for row in measured)
    assert all(len(row["seconds"]) == 2 for row in measured if "error" not in row)
    assert set(report["summary"][TINY]) == {"bare", "inline"}
    bare, ours = report["summary"][TINY]["bare"], report["summary"][TINY]["inline"]
    assert bare["rounds"] == 4
    assert bare["ratio"] == 1.0
    assert ours["ratios"] == [ours["quartiles"][1] / bare["quartiles"][1]]
    assert (tmp_path / "rounds.png").stat().st_size > 1000


def test_a_peer_may_be_several_processes_and_the_first_one_reports(tmp_path: Path) -> None:
    rank = "int(os.environ['RANK'])"
    program = f"import os, sys; print([1, 2, 3, int(sys.argv[1]) + {rank}]); sys.exit({rank} // 3)"
    (tmp_path / "peer.py").write_text(program)
    first, second, failing = ({"PYTHONPATH": str(tmp_path), "RANK": each} for each in "019")
    assert in_processes(sys.executable, ["peer", "4"], [first, second]) == [3, 4]
    with pytest.raises(RuntimeError, match="peer 5 ended with 3"):
        in_processes(sys.executable, ["peer", "5"], [first, failing])


def test_nobody_waits_for_a_process_that_has_failed(tmp_path: Path) -> None:
    program = "import os, time; os.environ['RANK'] == '0' and time.sleep(3600); raise SystemExit(4)"
    (tmp_path / "peer.py").write_text(program)
    both = [{"PYTHONPATH": str(tmp_path), "RANK": rank} for rank in "01"]
    with pytest.raises(RuntimeError, match="peer ended with 4"):
        in_processes(sys.executable, ["peer"], both)


def test_the_published_job_is_the_one_of_flutes_readme() -> None:
    config = parse_run_config(flute.JOB)
    assert (config.algorithm, config.model, config.dataset) == ("fedavg", "logreg", "mnist")
    assert (config.num_clients, config.clients_per_round, config.num_rounds) == (1000, 10, 100)
    assert (config.batch_size, config.local_epochs, config.lr) == (10, 1, 0.03)
    assert list(flute.PUBLISHED.values()) == [3 * 60 + 20, 30 * 60 + 14]


def test_workloads_that_share_a_place_in_the_cache_share_its_data() -> None:
    places: dict[str, set[tuple[object, int]]] = {}
    for workload in WORKLOADS.values():
        places.setdefault(data_set(workload), set()).add((workload.shape, workload.num_clients))
    assert all(len(kinds) == 1 for kinds in places.values())
