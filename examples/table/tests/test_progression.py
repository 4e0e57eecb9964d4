"""The table and the network work with fedapp's algorithms, on two engines."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from fedapp import run

PROJECT = Path(__file__).parents[1]


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    """Return the project's config, with the table's directory and a place for results."""
    pyproject = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    places = {"data-dir": str(PROJECT / "data"), "results-dir": str(tmp_path)}
    return {**pyproject["tool"]["flwr"]["app"]["config"], **places}


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedcomgate"])
def test_it_predicts_better_than_the_mean(algorithm: str, keys: dict[str, Any]) -> None:
    result = run(keys | {"algorithm": algorithm})
    rows = (PROJECT / "data" / "progression.csv").read_text().splitlines()[1:]
    spread = torch.tensor([float(row.rpartition(",")[2]) for row in rows]).std()
    assert result.rounds[-1]["test_rmse"] < 0.85 * spread


def test_ray_gives_the_same_bits(keys: dict[str, Any]) -> None:
    keys |= {"num-rounds": 2}
    inline, ray = (run(keys, engine=engine) for engine in ("inline", "ray"))
    assert inline.model.keys() == ray.model.keys()
    assert all(torch.equal(inline.model[name], ray.model[name]) for name in inline.model)
