"""Runs on Ray workers."""

from pathlib import Path

from fedapp import server_app
from fedapp.engine.ray import RayGrid
from fedapp.engine.ray_workers import RayWorkers
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from tests.conftest import kebab


def run_on(workers: RayWorkers, results: Path, **keys: Value) -> Path:
    config = parse_run_config(kebab(keys) | {"results-dir": str(results)})
    return server_app.run(RayGrid(workers, config.flat()), config).path
