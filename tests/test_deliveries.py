"""What the server keeps for clients that have not come back: bounded in memory, and named by checkpoints."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.damage import KEYS, run
from fedapp import client_app, deliveries
from fedapp.building import make_strategy
from fedapp.checkpoint import Checkpoints
from fedapp.deliveries import IN_MEMORY, Deliveries
from fedapp.engine import InlineGrid
from fedapp.files import DamagedFileError
from fedapp.ledger import Place
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds

MANY = {"num-clients": 40, "clients-per-round": 2, "num-rounds": 40, "eval-every": 40}


@pytest.mark.parametrize("name", ["fedgate", "fedcomgate"])
def test_memory_and_checkpoints_do_not_grow_with_what_waits(name: str, tmp_path: Path) -> None:
    config = parse_run_config(KEYS | MANY | {"algorithm": name, "run-name": ""})
    problem = make_problem(config)
    place = Place("run", undelivered=tmp_path / "undelivered")
    strategy, plain = make_strategy(config, problem, place), make_strategy(config, problem)
    checkpoints = Checkpoints(tmp_path, "run")
    sizes: list[int] = []
    for _ in run_rounds(InlineGrid(client_app.app, config.flat()), strategy, problem, config):
        assert strategy.ledger.deliveries.held <= IN_MEMORY
        if len(strategy.ledger.deliveries.tags) > IN_MEMORY:
            checkpoints.write(len(sizes) + 1, strategy)
            sizes.append(checkpoints.paths()[0].stat().st_size)
    assert len(strategy.ledger.deliveries.tags) > 2 * IN_MEMORY
    assert max(sizes) < sizes[0] + 3000  # tags, digests and accepted clients, not vectors
    for _ in run_rounds(InlineGrid(client_app.app, config.flat()), plain, problem, config):
        pass
    np.testing.assert_array_equal(strategy.x, plain.x)
    files = {int(path.stem) for path in (tmp_path / "undelivered").iterdir()}
    assert strategy.ledger.deliveries.tags - files == set(
        sorted(strategy.ledger.deliveries.tags)[-IN_MEMORY:]
    )


def test_a_resumed_run_finds_what_waits_and_removes_what_nobody_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KEYS | MANY | {"algorithm": "fedcomgate"}
    whole = run(tmp_path / "whole", keys)
    run(tmp_path / "killed", keys, until=33)
    directory = tmp_path / "killed" / "results" / "run" / "undelivered"
    stray = directory / "1.safetensors"
    stray.write_bytes(b"of a round that nobody waits for")
    foreign = directory / "notes.txt"
    foreign.write_text("mine")
    assert len(list(directory.iterdir())) > IN_MEMORY
    model = run(tmp_path / "killed", keys | {"resume": True})
    np.testing.assert_array_equal(model["x"], whole["x"])
    assert not stray.exists()
    assert foreign.exists()


def test_a_run_without_checkpoints_leaves_no_files(tmp_path: Path) -> None:
    run(tmp_path, KEYS | MANY | {"algorithm": "fedgate", "checkpoint-every": 0})
    assert not (tmp_path / "results" / "run" / "undelivered").exists()


def test_a_file_stays_while_a_kept_checkpoint_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "IN_MEMORY", 1)
    kept = Deliveries(tmp_path / "undelivered", "run")
    vector = {"D": np.arange(4.0)}
    kept.put(1, vector, {1})
    kept.put(2, vector, {1, 2})
    saved = kept.saved()
    kept.checkpointed(deliveries.files_of(saved))
    kept.put(3, vector, {2, 3})  # nobody waits for round 1 any more
    assert (tmp_path / "undelivered" / "1.safetensors").is_file()
    resumed = Deliveries(tmp_path / "undelivered", "run")
    resumed.restore(saved)
    np.testing.assert_array_equal(resumed.get(1)["D"], vector["D"])
    for _ in range(2):
        kept.checkpointed(deliveries.files_of(kept.saved()))
    assert not (tmp_path / "undelivered" / "1.safetensors").is_file()
    with pytest.raises(DamagedFileError, match="missing"):
        resumed.restore(saved)
