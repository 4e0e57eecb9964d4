"""What is published: the wheel works alone, Flower takes the app bundle, and the metadata agree."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.parser import Parser
from io import BytesIO
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from flwr.cli.build import build_fab_from_disk
from flwr.cli.utils import collect_files, filter_paths_for_publish
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES

import fedapp

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what belongs to the project, as a clone has it."""
    place = tmp_path_factory.mktemp("clone") / "fedapp"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git repository")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, place / name)
    return place


@pytest.fixture(scope="module")
def wheel(clone: Path) -> Path:
    """Build the wheel with the build backend itself, which fetches nothing."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = (clone / "dist").glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_alone_runs(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install = ["-m", "uv", "pip", "install", "--offline", "--no-deps", "--python"]
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, *install, python, wheel], check=True, capture_output=True)
    # The dependencies are those that are installed here. Python reads no .pth files of directories that another one
    # names, so the editable installation of this clone is not found.
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    clean["HOME"] = str(tmp_path)

    def run(*command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = "import fedapp, strategies, clients; print(fedapp.__file__, strategies.__file__, clients.__file__)"
    assert all(path.startswith(str(environment)) for path in run(python, "-c", where).split())
    small = "num-rounds=1 num-clients=2 clients-per-round=2 run-name='alone'"
    command = environment / "bin" / "fedapp"
    run(command, "run", "--engine", "inline", "-c", small, "--out", "results")
    record = json.loads((tmp_path / "results" / "alone" / "rounds.jsonl").read_text())
    assert record["clients"] == 2


def test_the_wheel_has_the_packages_the_licence_and_the_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        (place,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(content.read(place).decode())
    tops = {name.partition("/")[0] for name in names}
    assert {name for name in tops if "." not in name} == {"fedapp", "strategies", "clients"}
    assert any(name.endswith("/LICENSE") for name in names)
    assert "fedapp/py.typed" in names
    assert metadata["Version"] == PROJECT["project"]["version"]
    assert metadata["Keywords"]
    assert set(PROJECT["project"]["classifiers"]) <= set(metadata.get_all("Classifier") or [])
    assert all(hasattr(fedapp, name) for name in fedapp.__all__)


def test_flower_builds_the_bundle_and_its_hub_takes_the_files(clone: Path) -> None:
    bundle = zipfile.ZipFile(BytesIO(build_fab_from_disk(clone)))
    assert {"pyproject.toml", "LICENSE", "README.md", "fedapp/server_app.py"} <= set(
        bundle.namelist()
    )
    app = tomllib.loads(bundle.read("pyproject.toml").decode())["tool"]["flwr"]["app"]
    assert app["fab-format-version"] == 1
    files = filter_paths_for_publish(collect_files(clone))
    sizes = [Path(str(path)).stat().st_size for path in files.values()]
    assert len(sizes) <= MAX_FILE_COUNT
    assert max(sizes) <= MAX_FILE_BYTES
    assert sum(sizes) <= MAX_TOTAL_BYTES
    assert len(PROJECT["project"]["description"]) < 200


def test_the_citation_agrees_with_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == "Apache-2.0"
    names = [author["name"] for author in citation["authors"]]
    assert names == [author["name"] for author in PROJECT["project"]["authors"]]


def test_the_readme_s_front_matter_is_what_a_hub_reads() -> None:
    front = yaml.safe_load((ROOT / "README.md").read_text().split("---")[1])
    assert set(front) == {"tags", "dataset", "framework"}
    assert all(isinstance(value, list) and value for value in front.values())


@pytest.mark.parametrize("name", ["bug.md", "algorithm.md"])
def test_issue_templates_say_what_they_are(name: str) -> None:
    front = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / name).read_text().split("---")[1])
    assert {"name", "about"} <= set(front)
