"""The example projects work outside this repository: their tests, `flwr run`, and Python, with the same bits."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.superlink import own_superlink
from deploy.processes import ROOT
from fedapp import run
from tests.support.runs import assert_same

# One after the other: each starts a SuperLink and Ray.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flwr")]
PROJECTS = ("algorithm", "table", "text")


def elsewhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy a project to another place, from where it is imported."""
    place = tmp_path / "elsewhere" / name
    unwanted = shutil.ignore_patterns("__pycache__", ".pytest_cache", ".venv")
    shutil.copytree(ROOT / "examples" / name, place, ignore=unwanted)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), str(ROOT)]))
    return place


@pytest.mark.parametrize("name", PROJECTS)
def test_its_own_tests_pass(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = elsewhere(name, tmp_path, monkeypatch)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["algorithm", "table"])  # a user's algorithm; model and data
def test_flwr_run_gives_the_same_bits_as_python(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = elsewhere(name, tmp_path, monkeypatch)
    app = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    changed = {"num-rounds": 2, "results-dir": str(tmp_path)}
    if "data-dir" in app["config"]:
        changed["data-dir"] = str(project / "data")
    # Flower unpacks the project, so nothing of it may come from elsewhere.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with own_superlink(tmp_path, project) as flwr_run:
        words = {**changed, "run-name": "flwr"}
        shown, status = flwr_run(" ".join(f"{k}={json.dumps(v)}" for k, v in words.items()))
    assert status["status"] == "finished:completed", shown
    result = run(app["config"] | changed | {"run-name": "python"}, engine="inline")
    assert_same(tmp_path / "flwr", result.directory)
