"""Two runs at once, as real processes, in one results directory or on one state-dir; and who takes a directory first."""

import json
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from fedapp import client_app, run_directory, server_app
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.run_directory import RunDirectory
from fedapp.tables import Value
from tests.conftest import kebab, read_rounds
from tests.support.processes import Forked, start_simulation
from tests.support.runs import assert_same

KEYS: dict[str, Value] = {
    "algorithm": "scaffold",
    "dataset": "quadratic",
    "num_rounds": 30,
    "num_clients": 6,
    "clients_per_round": 3,
    "lr": 0.1,
}


def start(place: Path, out: Path, **keys: Value) -> Forked:
    config = " ".join(f"{k}={json.dumps(v)}" for k, v in kebab(KEYS | keys).items())
    return start_simulation(place, ["--engine", "inline", "--out", str(out), "-c", config])


def test_two_processes_of_one_name_and_two_without(tmp_path: Path) -> None:
    """All four at once."""
    named = [start(tmp_path / f"{n}", tmp_path / "named", run_name="one") for n in range(2)]
    unnamed = [start(tmp_path / f"{n}", tmp_path / "unnamed") for n in (2, 3)]
    ended = [process.wait() for process in named + unnamed]
    refused = [process.stderr for process in ended[:2] if process.returncode]
    assert sorted(process.returncode for process in ended) == [0, 0, 0, 2]
    assert len(refused) == 1
    assert refused[0].count("\n") == 1
    assert "run-name = 'one' has results already" in refused[0]
    assert len(read_rounds(tmp_path / "named" / "one")) == 30
    one, other = (tmp_path / "unnamed").iterdir()
    assert_same(one, other)


def take(results: str, resume: bool, barrier: Barrier, ended: Barrier, said: Any) -> None:
    """Take a run's directory at the same moment as others, and hold it until all have tried."""
    config = parse_run_config({"results-dir": results, "run-name": "run", "resume": resume})
    barrier.wait()
    try:
        directory = RunDirectory(config)
    except ConfigError as error:
        said.put(str(error))
        ended.wait()
    else:
        said.put(directory.identity)
        ended.wait()
        directory.close()


@pytest.mark.slow
@pytest.mark.parametrize("resumes", [(True, True, True), (False, True, True), (False, False, True)])
def test_a_directory_has_one_taker(resumes: tuple[bool, ...], tmp_path: Path) -> None:
    fork, count = multiprocessing.get_context("fork"), len(resumes)
    for number in range(15):
        said, barrier, ended = fork.Queue(), fork.Barrier(count), fork.Barrier(count)
        place = str(tmp_path / str(number))
        takers = [fork.Process(target=take, args=(place, r, barrier, ended, said)) for r in resumes]
        for taker in takers:
            taker.start()
        texts = [said.get(timeout=600) for _ in takers]
        for taker in takers:
            taker.join()
        assert sum(text.startswith("run-") and len(text) == 12 for text in texts) == 1, texts
        others = [text for text in texts if "Another process" in text or "has results" in text]
        assert len(others) == count - 1, texts


def test_a_creator_that_is_overtaken_does_not_write_into_what_another_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process resumes, ends and leaves between the creator's making and taking of the directory."""
    config = parse_run_config({"results-dir": str(tmp_path), "run-name": "run"})
    held = run_directory.hold

    def overtaken(directory: Path) -> Any:
        monkeypatch.setattr(run_directory, "hold", held)
        RunDirectory(parse_run_config(config.flat() | {"resume": True})).close()
        return held(directory)

    monkeypatch.setattr(run_directory, "hold", overtaken)
    with pytest.raises(ConfigError, match="has results already"):
        RunDirectory(config)
    before = (tmp_path / "run" / "config.json").read_text()
    resumed = RunDirectory(parse_run_config(config.flat() | {"resume": True}))
    resumed.close()
    assert json.loads(before)["identity"] == resumed.identity


def run(
    results: Path, state_dir: Path, grid_type: type[InlineGrid] = InlineGrid, /, **keys: Value
) -> Path:
    config = parse_run_config(
        kebab(KEYS | keys)
        | {"results-dir": str(results), "state-dir": str(state_dir), "run-name": "same"}
    )
    return server_app.run(grid_type(client_app.app, config.flat()), config).path


def test_runs_of_one_name_may_share_a_state_dir(tmp_path: Path) -> None:
    """One run begins, ends and leaves its states while another of the same name is in its tenth round."""
    other_keys: dict[str, Value] = {"seed": 5, "num_rounds": 25}

    class Interrupted(InlineGrid):
        done = False

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            messages = list(messages)
            heads = [m.content["round"]["round"] for m in messages if "round" in m.content]
            if max(heads, default=0) == 10 and not self.done:
                self.done = True
                run(tmp_path / "b", tmp_path / "state", **other_keys)
            return super().send_and_receive(messages, timeout=timeout)

    first = run(tmp_path / "a", tmp_path / "state", Interrupted)
    assert_same(first, run(tmp_path / "alone", tmp_path / "state-alone"))
    alone = run(tmp_path / "b-alone", tmp_path / "state-b", **other_keys)
    assert_same(tmp_path / "b" / "same", alone)
    assert len(list((tmp_path / "state").iterdir())) == 2


def test_a_run_keeps_its_identity(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"checkpoint_every": 5}
    whole = run(tmp_path / "whole", tmp_path / "state-whole", **keys, num_rounds=40)
    new = run(tmp_path / "new", tmp_path / "state", **keys)
    identity = json.loads((new / "config.json").read_text())["identity"]
    assert_same(
        whole, run(tmp_path / "new", tmp_path / "state", resume=True, **keys, num_rounds=40)
    )
    assert json.loads((new / "config.json").read_text())["identity"] == identity
