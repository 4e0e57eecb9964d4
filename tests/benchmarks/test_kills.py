"""A server killed at random moments: `benchmarks/kills.py`, with a few kills."""

import random
from pathlib import Path

import pytest

from benchmarks.kills import ALGORITHMS, kill_until_done, same, write_sweep
from fedapp.commandline import absolute_paths
from fedapp.parallel import run_all
from fedapp.parsing import parse_run_config
from fedapp.sweeps import read_runs
from tests.conftest import read_rounds

KILLS, ROUNDS = 3, 40


@pytest.mark.slow
def test_a_sweep_killed_again_and_again_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    preset = write_sweep(tmp_path, ROUNDS)
    campaign = kill_until_done(preset, tmp_path / "killed", KILLS, random.Random(1))
    assert 0 < campaign.kills <= KILLS
    whole = [
        parse_run_config(
            absolute_paths(
                run.values | {"run-name": run.name, "results-dir": str(tmp_path / "whole")}
            )
        )
        for run in read_runs(preset)
    ]
    assert [error for _, error in run_all(whole, workers=0)] == [None] * len(ALGORITHMS)
    assert same(tmp_path / "whole", tmp_path / "killed")
    assert len(read_rounds(tmp_path / "killed" / "kill-gradma")) == ROUNDS
