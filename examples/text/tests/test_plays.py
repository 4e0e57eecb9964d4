"""The task works with fedapp's algorithms, and the model learns."""

from pathlib import Path

import numpy as np
import pytest
from plays.problem import NextCharacter

from fedapp import run

KEYS = {
    "problem": NextCharacter,
    "num-clients": 8,
    "clients-per-round": 4,
    "num-rounds": 2,
    "local-steps": 3,
    "batch-size": 32,
    "lr": 1.0,
}


@pytest.mark.parametrize("algorithm", ["fedavg", "fedpaq", "scaffold", "fedcomgate", "gradma"])
def test_algorithms_train_it(algorithm: str, tmp_path: Path) -> None:
    result = run(KEYS | {"algorithm": algorithm, "results-dir": str(tmp_path)})
    assert result.rounds[-1]["clients"] == 4
    assert result.model["speaker.weight"].shape == (8, 64)


def test_it_learns_more_than_the_commonest_character(tmp_path: Path) -> None:
    keys = {"num-rounds": 8, "local-steps": 20, "results-dir": str(tmp_path)}
    result = run(KEYS | keys)
    *_, targets = NextCharacter(result.config).test_data()
    commonest = np.bincount(targets).max() / len(targets)
    assert result.rounds[-1]["test_accuracy"] > commonest + 0.05
