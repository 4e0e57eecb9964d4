"""The example projects work outside this repository: their tests, `flwr run`, and Python, with the same bits."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.superlink import ONE_ACTOR
from deploy.processes import ROOT, Federation, assignments
from fedapp import run
from fedapp.tables import Value
from tests.support.runs import assert_same

# One after the other: they share a SuperLink, and each starts Ray.
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


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink with Flower's simulation."""
    with pytest.MonkeyPatch.context() as patch:
        # Flower unpacks the projects, so nothing of them may come from elsewhere.
        patch.setenv("PYTHONPATH", str(ROOT))
        started = Federation(tmp_path_factory.mktemp("home"), simulation=True)
    with started:
        yield started


@pytest.mark.parametrize("name", ["algorithm", "table"])  # a user's algorithm; model and data
def test_flwr_run_gives_the_same_bits_as_python(
    name: str, federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = elsewhere(name, tmp_path, monkeypatch)
    app = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    changed: dict[str, Value] = {"num-rounds": 2, "results-dir": str(tmp_path)}
    if "data-dir" in app["config"]:
        changed["data-dir"] = str(project / "data")
    federation.app = project
    words = assignments({**changed, "run-name": "flwr"})
    shown, status = federation.run(words, "--federation-config", f"num-supernodes=2 {ONE_ACTOR}")
    assert status["status"] == "finished:completed", shown
    result = run(app["config"] | changed | {"run-name": "python"}, engine="inline")
    assert_same(tmp_path / "flwr", result.directory)
