"""The example projects work outside this repository: their tests, `flwr run`, and Python, with the same bits."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from deploy.processes import ROOT, Federation, assignments
from fedapp import run
from fedapp.tables import Value
from tests.conftest import PATIENCE
from tests.support.federations import simulated
from tests.support.runs import assert_same

# One after the other: they share a SuperLink, and each starts Ray.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flwr")]
PROJECTS = ("algorithm", "table", "text")


def elsewhere(name: str, tmp_path: Path) -> Path:
    """Copy a project to another place."""
    place = tmp_path / "elsewhere" / name
    unwanted = shutil.ignore_patterns("__pycache__", ".pytest_cache", ".venv")
    shutil.copytree(ROOT / "examples" / name, place, ignore=unwanted)
    return place


def test_their_own_tests_pass(tmp_path: Path) -> None:
    """All in one process, which costs one import of torch."""
    projects = [elsewhere(name, tmp_path) for name in PROJECTS]
    paths = os.pathsep.join(map(str, [*projects, ROOT]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *(project / "tests" for project in projects)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "nodes", "keys"),
    [
        ("algorithm", 2, {"num-rounds": 2}),  # a user's algorithm
        (  # model and data; compressed, states delivered
            "table",
            5,
            {"num-rounds": 4, "algorithm": "fedcomgate", "clients-per-round": 10},
        ),
    ],
)
def test_flwr_run_gives_the_same_bits_as_python(
    name: str,
    nodes: int,
    keys: dict[str, Value],
    simulation: Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = elsewhere(name, tmp_path)
    monkeypatch.syspath_prepend(project)
    app = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    changed = keys | {"results-dir": str(tmp_path)}
    if "data-dir" in app["config"]:
        changed["data-dir"] = str(project / "data")
    words = assignments({**changed, "run-name": "flwr"})
    shown, status = simulated(simulation, words, nodes, app=project)
    assert status["status"] == "finished:completed", shown
    result = run(app["config"] | changed | {"run-name": "python"}, engine="inline")
    assert_same(tmp_path / "flwr", result.directory)
