"""A disk that is really full: one sentence, what is there is whole, and after space is made a run goes on to the same end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# One process tries all scenarios, once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("disk")]
FULL = r"No space left on device|File too large"
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
Found = dict[str, Any]


def may_mount() -> bool:
    """Tell whether a process here can have a mount namespace of its own."""
    try:
        command = [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What came of all the scenarios, tried in a process of their own."""
    work = tmp_path_factory.mktemp("disk")
    own = [*UNSHARE] if may_mount() else []
    command = [*own, sys.executable, "-m", "tests.disk_scenarios", str(work)]
    command += [] if own else ["--limit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    read: Found = json.loads((work / "found.json").read_text())
    assert read["mounted"] == bool(own)
    return read


def assert_one_sentence(kind: str, said: list[str], *parts: str) -> None:
    assert said[0] == kind
    assert "\n" not in said[1]
    assert said[1].endswith(".")
    assert any(reason in said[1] for reason in FULL.split("|")) or "written)" in said[1]
    for part in parts:
        assert part in said[1]


@pytest.mark.parametrize("name", ["rounds", "model"])
def test_a_run_ends_and_can_go_on(name: str, found: Found) -> None:
    seen = found[name]
    assert_one_sentence("RunError", seen["said"], "what is there is whole", "resume = true")
    assert seen["rounds"] >= (5 if name == "rounds" else 8)
    assert seen["checkpoints"] == ([4, 2] if name == "rounds" else [6, 4])
    assert seen["strays"] == []
    assert seen["config"]
    assert seen["same"]


def test_a_checkpoint_is_all_that_is_lost(found: Found) -> None:
    seen = found["checkpoint"]
    assert [text.partition(" could")[0] for text in seen["said"]] == [
        "The checkpoint of round 4",
        "The checkpoint of round 6",
    ]
    assert (seen["rounds"], seen["checkpoints"], seen["strays"]) == (7, [2], [])
    assert seen["same"]


def test_a_node_without_space_for_states_has_failed_clients(found: Found) -> None:
    if not found["mounted"]:
        pytest.skip("no disk of its own can be mounted here")
    seen = found["client_state"]
    assert seen["figures"] == [[4, 0]] * 3 + [[2, 2]] * 2 + [[4, 0]] * 3
    assert seen["same"]
    assert seen["strays"] == []
    told = [text for text in seen["said"] if "its state cannot be written in" in text]
    assert len(told) == len(seen["said"]) == 5  # four on the node, and once on the server
    assert all("make space there, or choose another state-dir" in text for text in told)
    assert all("\n" not in text for text in told)


def test_no_space_for_the_data(found: Found) -> None:
    seen = found["data_cache"]
    assert_one_sentence("ConfigError", seen["said"], "FEDAPP_CACHE", "make space")
    assert seen["left"] == ["data"]  # an empty directory
    assert seen["images"] == 1437


def test_no_space_to_begin(found: Found) -> None:
    seen = found["start"]
    assert (seen["code"], seen["left"], seen["again"]) == (2, [], 0)
    assert seen["said"].count("\n") == 1
    assert "cannot be written" in seen["said"]


def test_no_space_to_go_on(found: Found) -> None:
    seen = found["resume"]
    assert_one_sentence("ConfigError", seen["said"][0], "make space")
    assert_one_sentence("RunError", seen["said"][1], "what is there is whole")
    assert seen["kept"], "the model and the rounds that were there"
    assert seen["same"]


def test_no_space_to_note_a_divergence(found: Found) -> None:
    seen = found["divergence"]
    assert_one_sentence("RunError", seen["said"])
    assert sum("That the run diverged could not be noted" in text for text in seen["logged"]) == 1
    assert seen["files"] == [".lock", "config.json", "rounds.jsonl"]
