"""How far a run is, read from its directory without touching it; and setting a partial run aside."""

import fcntl
import logging
import threading
from pathlib import Path

import numpy as np
import pytest

from fedapp import run_directory
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DivergedError
from fedapp.manifest import LOCK, read_manifest
from fedapp.parsing import parse_run_config
from fedapp.progress import has_ended, last_record, progress_of, skip_reason
from fedapp.run_directory import RunDirectory, hold, set_partial_aside
from fedapp.tables import Value
from tests.conftest import PATIENCE, kebab


def config_in(place: Path, **keys: Value) -> RunConfig:
    common: dict[str, Value] = {"results_dir": str(place), "run_name": "run", "num_rounds": 2}
    return parse_run_config(kebab(common | keys))


def write(config: RunConfig, rounds: int, model: bool = True, diverged: bool = False) -> Path:
    """Write what a run of some rounds leaves."""
    with RunDirectory(config) as directory:
        for number in range(1, rounds + 1):
            directory.write_round({"round": number, "test_accuracy": number / 10})
        if diverged:
            directory.write_divergence(DivergedError("too far"))
        if model:
            directory.write_model({"x": np.ones(2)})
    return directory.path


def content(place: Path) -> dict[Path, tuple[bytes, int]]:
    """Return every file's bytes and time."""
    files = [path for path in place.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(
    ("rounds", "planned", "target", "ended"),
    [(0, 2, 0.0, False), (1, 2, 0.0, False), (2, 2, 0.0, True), (3, 2, 0.0, True),
     (1, 2, 0.1, True), (1, 2, 0.11, False), (0, 2, 0.1, False)],
)  # fmt: skip
def test_a_run_ends_with_its_last_round_or_at_its_target(
    rounds: int, planned: int, target: float, ended: bool
) -> None:
    records = [{"round": n, "test_accuracy": n / 10} for n in range(1, rounds + 1)]
    assert has_ended(records, planned, target) is ended
    assert has_ended([{"round": 1, "test_accuracy": None}], planned, 0.1) is False


def test_a_sweep_skips_what_is_complete_or_diverged_and_nothing_else(tmp_path: Path) -> None:
    complete, partial, without_model, diverged = (config_in(tmp_path / name) for name in "abcd")
    assert skip_reason(complete) == ""  # there is nothing yet
    write(complete, 2)
    write(partial, 1)
    write(without_model, 2, model=False)
    write(diverged, 1, diverged=True)
    before = content(tmp_path)
    assert skip_reason(complete) == "is complete already"
    assert skip_reason(partial) == skip_reason(without_model) == ""
    assert skip_reason(diverged) == "diverged after 1 rounds, and would again"
    with pytest.raises(ConfigError, match="holds a run with another config"):
        skip_reason(config_in(tmp_path / "a", lr=0.5))
    assert content(tmp_path) == before


def test_asking_how_far_a_run_is_prints_and_logs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "flwr")
    config = config_in(tmp_path)
    path = write(config, 2)
    (path / "model.safetensors").write_bytes(b"damaged")
    before = content(tmp_path)
    progress = progress_of(path, read_manifest(path), config)
    assert (progress.ended, progress.complete) == (True, False)
    assert "model.safetensors cannot be read" in progress.damage[0]
    (path / "rounds.jsonl").write_text("damaged\n")
    progress = progress_of(path, read_manifest(path), config)
    assert (progress.rounds, progress.ended) == ([], False)
    assert "Line 1 of" in progress.damage[0]
    assert skip_reason(config) == ""
    assert last_record(config) == {}
    assert content(tmp_path).keys() == before.keys()
    assert capsys.readouterr().out == ""
    assert not caplog.records


def test_a_model_of_other_numbers_is_damage(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    path = write(config, 2)
    other = write(config_in(tmp_path, run_name="other"), 2)
    with RunDirectory(config_in(tmp_path, run_name="third")) as third:
        third.write_model({"x": np.zeros(2)})
    (path / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    assert progress_of(path, read_manifest(path), config).complete  # equal models are equal files
    (path / "model.safetensors").write_bytes((third.path / "model.safetensors").read_bytes())
    assert "is not what this run wrote" in progress_of(path, read_manifest(path), config).damage[0]


def test_a_look_at_a_run_does_not_keep_it_from_continuing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_directory, "HOLD_TIMEOUT", PATIENCE)
    with (tmp_path / LOCK).open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        hold(tmp_path).release()


def test_only_a_partial_run_is_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial, complete = config_in(tmp_path, run_name="a"), config_in(tmp_path, run_name="b")
    write(partial, 1)
    write(complete, 2)
    set_partial_aside(config_in(tmp_path, run_name="a", resume=True))
    set_partial_aside(complete)
    set_partial_aside(config_in(tmp_path, run_name="c"))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    set_partial_aside(partial)
    assert {path.name for path in tmp_path.iterdir()} == {"a.partial-1", "b"}
    assert "a was not complete: its 1 rounds are now in a.partial-1" in capsys.readouterr().out
