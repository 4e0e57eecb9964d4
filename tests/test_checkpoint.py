"""Checkpoints: a server that is killed and resumes ends with the same model, bit for bit.

Long, because it has one test for each way in which a run can be interrupted and resumed.
"""

import json
import shutil
import signal
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from filelock import FileLock

from fedapp import client_app, files, run_directory
from fedapp.building import make_strategy
from fedapp.checkpoint import Checkpoints
from fedapp.config import RENAMED
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.ledger import Place
from fedapp.manifest import read_manifest
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.progress import skip_reason
from fedapp.registry import ALGORITHMS, keeps_state
from fedapp.report.runs import load_runs
from fedapp.run_directory import set_partial_aside
from fedapp.tables import Value
from tests.conftest import kebab, read_rounds
from tests.support.deaths import before_checkpoint, in_round, killed, within_checkpoint
from tests.support.processes import start_simulation
from tests.support.runs import assert_goes_on, assert_same, run, trained

KEYS: dict[str, Value] = {
    "model": "mlp-10",
    "num-clients": 6,
    "clients-per-round": 3,
    "local-steps": 2,
    "lr": 0.05,
    "num-rounds": 9,
    "eval-every": 3,
    "checkpoint-every": 2,
    "run-name": "run",
    "gradma.memory-size": 4,
}


def keys_of(name: str) -> dict[str, Value]:
    """Return a config that the algorithm allows; whatever it keeps is used."""
    keys = KEYS | {"algorithm": name}
    if name in ("fedcet", "qsgd"):
        keys["clients-per-round"] = 6
    if name in ("qsgd", "diana", "vrdiana"):
        keys["local-steps"] = 1
    if name == "fedcomgate":
        keys |= {"compressor": "topk", "fedcomgate.memory": "paper"}
    if name == "fedavg":
        keys |= {"compressor": "topk", "error-feedback": True}
    if name == "fedpaq":
        keys |= {"compressor": "topk", "error-feedback": "ef21", "on-lost-state": "reset"}
    return keys


DEATHS = {
    "in-round-1": [in_round(1)],
    "in-round-6": [in_round(6)],
    "before-checkpoint-4": [before_checkpoint(4)],
    "within-checkpoint-6": [within_checkpoint(6)],
    "thrice": [in_round(4), before_checkpoint(6), in_round(9)],
    "twice": [in_round(4), before_checkpoint(6)],
}


# Algorithms with one vector on the server, with memories on both sides, and with blocks: every death; the rest: twice.
EVERY_DEATH = ("scaffold", "gradma", "fedbcgd-plus")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_run_ends_as_if_nothing_had_happened(name: str, tmp_path: Path) -> None:
    often = name in EVERY_DEATH
    keys = keys_of(name) | {"num-rounds": 9 if often else 7}
    whole = run(tmp_path / "whole", keys | {"checkpoint-every": 0})
    for place in DEATHS.keys() - {"twice"} if often else ["twice"]:
        for death in DEATHS[place]:
            with pytest.MonkeyPatch.context() as patch:
                death(patch)
                killed(lambda place=place: run(tmp_path / place, keys, resume=True))  # type: ignore[misc]
        resumed = run(tmp_path / place, keys, resume=True)
        assert_same(whole, resumed)
        if place != "in-round-1":  # it did not begin anew
            assert len(list((resumed / "checkpoint").iterdir())) == 2  # and nothing half written


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_that_changes_is_saved(name: str) -> None:
    """A new strategy that takes up what is saved is the same in every attribute that rounds change."""
    config = parse_run_config(keys_of(name) | {"run-name": "", "num-rounds": 6})
    problem = make_problem(config)
    place = Place("a-run", config.state_dir)
    used, new = (make_strategy(config, problem, place) for _ in range(2))
    grid = InlineGrid(client_app.app, config.flat())
    from fedapp.rounds import run_rounds

    list(run_rounds(grid, used, problem, config))
    changed = differences(used, new)
    new.restore(used.saved())
    assert not differences(used.saved(), new.saved())
    left = differences(used, new)
    assert {path for path in left if not path.startswith(PASSING)} == set()
    assert "x" in changed


# About the attempt under way, the nodes, and what lies in files; or set in each round.
PASSING = (
    "hosting",
    "lr",
    "group",
    "_round",
    "_exchange",
    "_cohort",
    "nodes_add_up",
    "ledger.tag",
    "delivered",
    "_explained",
    "_explanations._c",
    "D.active",
    "ledger.deliveries",
    "ledger._checkpoints",
    "admission._",
    "admission.ledger.",  # the same as above
    *(f"downlink.{name}" for name in ("_shared", "_asked", "_records", "_on_node", "_digests")),
    "evaluation._",  # likewise
)


def differences(one: Any, other: Any, path: str = "") -> set[str]:
    """Return the paths of all that differs: attributes of our objects, and values of dicts, at any depth."""
    if one is other:
        return set()
    if isinstance(one, np.ndarray):
        return set() if np.array_equal(one, other) else {path}
    if isinstance(one, dict) and isinstance(other, dict):
        ours, theirs = one, other
    elif type(one) is type(other) and is_part(one):
        ours, theirs = vars(one), vars(other)
    else:
        return set() if one == other else {path}
    if ours.keys() != theirs.keys():
        return {path}
    below = [differences(ours[key], theirs[key], f"{path}.{key}".lstrip(".")) for key in ours]
    return set().union(*below)


def is_part(thing: object) -> bool:
    """Tell whether something is an object of ours that has to be compared by its attributes."""
    kinds = type(thing).__mro__[:-1]
    ours = kinds[0].__module__.partition(".")[0] in ("fedapp", "strategies")
    return ours and (is_dataclass(thing) or not any("__eq__" in vars(kind) for kind in kinds))


def test_a_damaged_checkpoint_is_left_out_and_the_older_one_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = keys_of("scaffold")
    whole = run(tmp_path / "whole", keys)
    for number, damage in enumerate((_cut, _flip, _empty)):
        place = tmp_path / str(number)
        with pytest.MonkeyPatch.context() as patch:
            in_round(9)(patch)
            killed(lambda place=place: run(place, keys))  # type: ignore[misc]
        newest, older = Checkpoints(place / "run").paths()
        assert (newest.name, older.name) == (
            "round-0000008.safetensors",
            "round-0000006.safetensors",
        )
        damage(newest)
        caplog.clear()
        assert_same(whole, run(place, keys, resume=True))
        assert "Skipping unusable checkpoint" in caplog.text


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(bytes(content))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def test_a_checkpoint_of_another_model_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path / "other", keys_of("fedavgm") | {"model": "mlp-11"})
    run(tmp_path, keys_of("fedavgm") | {"num-rounds": 2})
    there = tmp_path / "other" / "run" / "checkpoint" / "round-0000008.safetensors"
    there.rename(tmp_path / "run" / "checkpoint" / there.name)
    run(tmp_path, keys_of("fedavgm") | {"num-rounds": 3}, resume=True)
    assert "belongs to run run-" in caplog.text
    assert [line["round"] for line in read_rounds(tmp_path / "run")] == [1, 2, 3]


def test_a_full_disk_costs_a_checkpoint_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = keys_of("fedavgm")
    save = safetensors.numpy.save_file

    def full(arrays: Any, path: Path, metadata: dict[str, str]) -> None:
        if metadata.get("round") in ("6", "8"):
            path.write_bytes(b"some of it")
            raise OSError(28, "No space left on device")
        save(arrays, path, metadata)

    monkeypatch.setattr(files, "save_file", full)
    directory = run(tmp_path, keys)
    assert "The checkpoint of round 8 could not be written" in caplog.text
    names = sorted(path.name for path in (directory / "checkpoint").iterdir())
    assert names == ["round-0000002.safetensors", "round-0000004.safetensors"]
    assert_same(run(tmp_path / "whole", keys | {"checkpoint-every": 0}), directory)


def test_a_run_goes_on_longer_but_not_otherwise(tmp_path: Path) -> None:
    keys = keys_of("fedcomgate")
    whole = run(tmp_path / "whole", keys | {"num-rounds": 12})
    directory = run(tmp_path, keys | {"checkpoint-every": 3})
    longer = keys | {"num-rounds": 12, "run-name": "", "resume": str(directory)}
    assert_same(whole, run(tmp_path / "elsewhere", longer))
    for key, value in (("lr", 0.1), ("seed", 3), ("algorithm", "fedgate")):
        with pytest.raises(ConfigError, match=f"cannot go on with another {key}"):
            run(tmp_path, keys | {key: value}, resume=True)
    with pytest.raises(ConfigError, match="holds no run"):
        run(tmp_path, keys | {"resume": str(tmp_path)})
    with pytest.raises(ConfigError, match="set run-name"):
        run(tmp_path, keys | {"run-name": ""}, resume=True)


def test_two_processes_on_one_run_are_told_apart(tmp_path: Path) -> None:
    keys = keys_of("fedavg")
    directory = run(tmp_path, keys)
    with pytest.raises(ConfigError, match=r"has results already.*resume = true"):
        run(tmp_path, keys)
    with FileLock(directory / ".lock"), pytest.raises(ConfigError, match="Another process"):
        run(tmp_path, keys | {"num-rounds": 12}, resume=True)
    assert len(read_rounds(directory)) == 9


def test_states_that_no_checkpoint_asks_for_are_dropped(tmp_path: Path) -> None:
    directory = run(tmp_path, keys_of("scaffold") | {"num-rounds": 30, "clients-per-round": 6})
    (states,) = (directory / "client-state").iterdir()
    assert len(list(states.iterdir())) == 6
    for client in states.iterdir():
        assert len(list(client.iterdir())) <= 4  # this round's, the last's, two checkpoints'


def test_a_sweep_that_is_killed_goes_on_in_the_middle_of_a_run(tmp_path: Path) -> None:
    preset = tmp_path / "try.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in kebab(KEYS).items()]
    preset.write_text("\n".join(lines[:-2]) + '\n[sweep]\nalgorithm = ["scaffold", "fedavgm"]\n')
    words = ["--engine", "inline", str(preset), "--out", str(tmp_path / "out")]
    with pytest.MonkeyPatch.context() as patch:
        in_round(7)(patch)
        first = start_simulation(tmp_path / "first", words).wait()
    assert first.returncode == -signal.SIGKILL
    second = start_simulation(tmp_path / "second", words).wait()
    assert second.returncode == 0, second.stderr
    assert "Continuing after round 6." in second.stdout
    whole = run(tmp_path / "whole", keys_of("scaffold"))
    assert_same(whole, tmp_path / "out" / "try-scaffold")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    directory = run(tmp_path, keys_of("fedavgm"))
    for place in (directory, directory / "checkpoint"):
        left = place / f".model.safetensors-{'a' * 32}"
        left.mkdir()
        (left / ".tmpXyZ").write_bytes(b"half of a model")
        (place / ".env").write_bytes(b"a stranger's")
    run(tmp_path, keys_of("fedavgm") | {"num-rounds": 12}, resume=True)
    assert {path.name for path in directory.glob(".*")} == {".lock", ".env"}
    assert {path.name for path in (directory / "checkpoint").glob(".*")} == {".env"}


def test_only_algorithms_with_state_keep_some(tmp_path: Path) -> None:
    for name in ("fedavgm", "mifa"):
        directory = run(tmp_path / name, keys_of(name))
        stateful = keeps_state(parse_run_config(keys_of(name)))
        assert (directory / "client-state").is_dir() == stateful == (name == "mifa")


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    keys = keys_of("scaffold") | {"checkpoint-every": 0}
    directory = run(tmp_path, keys)
    before = trained(directory)
    run(tmp_path, keys, resume=True)  # complete: nothing to do
    with pytest.raises(ConfigError, match="made without checkpoints"):
        run(tmp_path, keys | {"num-rounds": 20}, resume=True)
    assert trained(directory)[1] == before[1]
    assert (directory / "model.safetensors").is_file()


def test_resuming_without_checkpoints_finds_the_clients_states(tmp_path: Path) -> None:
    keys = keys_of("scaffold")
    whole = run(tmp_path / "whole", keys)
    with pytest.MonkeyPatch.context() as patch:
        in_round(7)(patch)
        killed(lambda: run(tmp_path / "killed", keys))
    resumed = run(tmp_path / "killed", keys | {"checkpoint-every": 0}, resume=True)
    assert_same(whole, resumed)
    assert (resumed / "client-state").is_dir()


def test_a_run_at_work_is_not_set_aside(tmp_path: Path) -> None:
    keys = keys_of("fedavg") | {"checkpoint-every": 0}
    with pytest.MonkeyPatch.context() as patch:
        in_round(4)(patch)
        killed(lambda: run(tmp_path, keys))
    config = parse_run_config(keys | {"results-dir": str(tmp_path)})
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(ConfigError, match="Another process"):
        set_partial_aside(config)
    assert len(read_rounds(tmp_path / "run")) == 3
    assert not skip_reason(config)
    assert len(read_rounds(tmp_path / "run")) == 3  # asking changes nothing
    set_partial_aside(config)
    assert len(read_rounds(tmp_path / "run.partial-1")) == 3


def test_a_disk_that_takes_no_more_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of("fedavgm")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_directory, "save_file", full)
    with pytest.raises(RunError, match=r"No space left on device.*resume = true"):
        run(tmp_path, keys)
    monkeypatch.undo()
    resumed = run(tmp_path, keys | {"num-rounds": 12}, resume=True)  # the lock is free again
    assert_same(run(tmp_path / "whole", keys | {"num-rounds": 12}), resumed)


def test_a_schedule_that_depends_on_all_rounds_cannot_be_made_longer(tmp_path: Path) -> None:
    keys = keys_of("fedavg") | {"lr-schedule": "inverse-sqrt"}
    run(tmp_path, keys)
    with pytest.raises(ConfigError, match="another num-rounds"):
        run(tmp_path, keys | {"num-rounds": 12}, resume=True)


@pytest.mark.parametrize("key", [*RENAMED, *RENAMED.values()])
def test_a_run_with_the_earlier_name_of_a_key_goes_on(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = KEYS | {"max-update-norm": 0.05}
    new = run(tmp_path, keys | {"on-long-update": "clip"})
    manifest = read_manifest(new)
    old = {k: v for k, v in manifest.config.items() if k != "on-long-update"}
    replace(manifest, config=old | dict.fromkeys(RENAMED, "clip")).write(new)
    assert load_runs([new])[0].config["on-long-update"] == "clip"
    with pytest.raises(ConfigError, match="another on-long-update"):
        run(tmp_path, keys | {"num-rounds": 12}, resume=True)
    resumed = run(tmp_path, keys | {"num-rounds": 12, key: "clip"}, resume=True)
    hint = 'too-long = "clip" still works; it is now on-long-update.'
    assert (hint in capsys.readouterr().out) == (key in RENAMED)
    assert read_manifest(resumed).config["on-long-update"] == "clip"
    whole = run(tmp_path / "whole", keys | {"num-rounds": 12, "on-long-update": "clip"})
    assert_same(whole, resumed)


@pytest.mark.parametrize("name", ["scaffold", "fedcomgate"])
def test_a_run_of_an_older_version_goes_on(name: str, tmp_path: Path) -> None:
    """`old_runs` was written before files had digests: 8 rounds, on two nodes."""
    shutil.copytree(Path(__file__).parent / "old_runs" / name, tmp_path / "old" / name)
    keys: dict[str, Value] = {
        "algorithm": name,
        "dataset": "quadratic",
        "num-clients": 4,
        "clients-per-round": 2,
        "lr": 0.1,
        "quadratic.dim": 6,
        "checkpoint-every": 2,
        "run-name": name,
    }
    assert len(read_rounds(tmp_path / "old" / name)) == 8
    with pytest.raises(ConfigError, match="cannot go on with another seed"):
        run(tmp_path / "old", keys | {"seed": 3, "num-rounds": 12}, resume=True)
    resumed = run(tmp_path / "old", keys | {"num-rounds": 12}, resume=True)
    assert_goes_on(run(tmp_path / "whole", keys | {"num-rounds": 12}), resumed)
    assert [record["round"] for record in read_rounds(resumed)] == list(range(1, 13))
