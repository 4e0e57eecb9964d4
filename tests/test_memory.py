"""A run that cannot fit into memory is refused before it starts, and no other."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp import client_app, memory, server_app
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.memory import Part, demand, parts
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from tests.support.cases import config_for

WIDE: dict[str, Value] = {
    "model": "mlp-2000", "num-clients": 20, "clients-per-round": 5, "num-rounds": 4, "local-steps": 1,
    "batch-size": 4, "lr": 0.05, "eval-every": 100, "gradma.memory-size": 20,
}  # fmt: skip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_declares_the_vectors_that_its_server_keeps(name: str) -> None:
    """They are the arrays with a row of the model's size in its checkpoints."""
    one_step: dict[str, Value] = {"local_steps": 1} if "diana" in name or name == "qsgd" else {}
    network: dict[str, Value] = {"dataset": "digits", "model": "mlp-10"}
    needs = ALGORITHMS[name].needs
    everyone: dict[str, Value] = {"clients_per_round": 12} if needs.all_clients else {}
    keys = one_step | everyone | (network if needs.network or "fedbcgd" in name else {})
    config = config_for(name, weight_decay=0.0, **keys)
    strategy = make_strategy(config, make_problem(config))
    found = {
        "D" if key == "memory.rows" else key.removeprefix("vector."): array.size // strategy.x.size
        for key, array in strategy.saved().items()
        if array.shape[-1:] == strategy.x.shape and key.startswith(("vector.", "memory."))
    }
    assert found.pop("x") == 1
    assert found == type(strategy).server_vectors(config)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedadam", "gradma-s"])
def test_what_is_counted_is_most_of_what_is_used_and_no_more(algorithm: str) -> None:
    config = parse_run_config(WIDE | {"algorithm": algorithm})
    problem = make_problem(config)
    grid = InlineGrid(client_app.app, config.flat(), 1)
    for _ in run_rounds(grid, make_strategy(config, problem), problem, config):
        pass  # everything is imported and compiled now
    tracemalloc.start()
    try:
        for _ in run_rounds(grid, make_strategy(config, problem), problem, config):
            pass
        used = tracemalloc.get_traced_memory()[1]  # NumPy's; torch, which trains, is not counted
    finally:
        tracemalloc.stop()
    counted = sum(part.nbytes for part in parts(config, problem, processes=0))
    assert 0.6 * used < counted < used


def test_a_process_that_trains_counts_four_vectors() -> None:
    config = parse_run_config(WIDE)
    problem = make_problem(config)
    none, two = (sum(part.nbytes for part in parts(config, problem, n)) for n in (0, 2))
    assert two - none == 8 * 4 * problem.layout.size


@given(counts=st.lists(st.integers(0, 10**13), min_size=1), free=st.integers(0, 10**14))
def test_only_more_than_there_is_is_refused(counts: list[int], free: int) -> None:
    needed = [Part(f"part {k}", count, f"lower {k}") for k, count in enumerate(counts)]
    demand("fedavg", needed, None)
    if sum(counts) <= free:
        demand("fedavg", needed, free)
        return
    with pytest.raises(ConfigError, match=f"lower {int(np.argmax(counts))}\\.$"):
        demand("fedavg", needed, free)


def test_a_run_that_does_not_fit_says_what_to_lower_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = WIDE | {"algorithm": "gradma-s", "results-dir": str(tmp_path / "results")}
    config = parse_run_config(keys)
    monkeypatch.setattr(memory, "available", lambda: 10_000_000)
    with pytest.raises(ConfigError) as refused:
        server_app.run(InlineGrid(client_app.app, config.flat(), 1), config)
    assert "gradma-s would need at least 23" in str(refused.value)
    assert "10 MB are available: set gradma.memory-size lower." in str(refused.value)
    assert not (tmp_path / "results").exists()


def test_a_limit_of_the_container_counts_and_pages_of_files_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert memory.available() == 5000 * 1024
    for name, text in {"max": "max", "current": "700", "stat": "anon 500\nfile 200"}.items():
        (tmp_path / f"memory.{name}").write_text(text + "\n")
    assert memory.available() == 5000 * 1024
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory.available() == 1000 - 700 + 200
    (tmp_path / "memory.stat").write_text("nonsense here too\n")
    (tmp_path / "meminfo").unlink()
    assert memory.available() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_states_of_many_clients_count_unless_they_are_on_a_disk() -> None:
    keys: dict[str, Value] = {"dataset": "quadratic", "num-clients": 1_000_000}
    keys |= {"algorithm": "scaffold", "clients-per-round": 1000, "num-rounds": 2000}
    config = parse_run_config(keys)
    problem = make_problem(config)
    without, with_states = (parts(config, problem, 1, states=each) for each in (False, True))
    assert [part.nbytes for part in with_states if part not in without] == [120_000_000]
    with pytest.raises(ConfigError, match=r"120 MB for the states of 1,000,000 clients.*state-dir"):
        demand("scaffold", with_states, 100_000_000)
    demand("scaffold", without, 100_000_000)
