"""Runs inline, and whether two of them are the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapp import client_app, server_app
from fedapp.engine import InlineGrid
from fedapp.explaining import OF_SINGLE_VECTORS
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from tests.conftest import read_rounds


def run(directory: Path, keys: dict[str, Value], **more: Value) -> Path:
    """Run, or go on with, a config; its results are in the directory."""
    config = parse_run_config(keys | more | {"results-dir": str(directory)})
    return server_app.run(InlineGrid(client_app.app, config.flat(), 2), config).path


def trained(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a run's model, and its rounds without the time they took."""
    rounds = [{**line, "wall_seconds": 0} for line in read_rounds(directory)]
    return load_file(directory / "model.safetensors"), rounds


def _without_vectors(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in OF_SINGLE_VECTORS}


def assert_same(one: Path, other: Path, sums: bool = False) -> None:
    """Compare models and rounds, bit for bit. With `sums`, the vectors of one of them were added up by nodes."""
    (model, rounds), (model_too, rounds_too) = trained(one), trained(other)
    if sums:
        rounds, rounds_too = ([_without_vectors(r) for r in each] for each in (rounds, rounds_too))
    assert rounds == rounds_too
    assert list(model) == list(model_too)
    for name in model:
        np.testing.assert_array_equal(model[name], model_too[name])
        assert model[name].tobytes() == model_too[name].tobytes()


def assert_goes_on(new: Path, old: Path) -> None:
    """Compare with a run that an older version began, with fewer columns, on a processor that rounds differently."""
    (model, rounds), (model_too, rounds_too) = trained(new), trained(old)
    for record, begun in zip(rounds, rounds_too, strict=True):
        assert {column: record[column] for column in begun} == pytest.approx(begun, rel=1e-9)
    assert list(model) == list(model_too)
    for name in model:
        np.testing.assert_allclose(model[name], model_too[name], rtol=1e-9)
