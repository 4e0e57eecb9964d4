"""Damaged files and foreign directories: the right model or one sentence, and nothing that is not ours is touched."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.damage import (
    DAMAGES,
    KEYS,
    SPECIAL,
    campaign,
    command,
    delete,
    keys_of,
    outcome,
    run,
    stateful,
    swap,
)
from fedapp import client_app, server_app
from fedapp.cli import main
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.files import seal
from fedapp.manifest import read_manifest
from fedapp.parsing import parse_run_config
from fedapp.progress import skip_reason
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value
from tests.support.processes import start_simulation


@pytest.mark.slow
@pytest.mark.parametrize("name", [*stateful(), "gradma-s"])
def test_a_damaged_run_ends_right_or_with_a_sentence(name: str, tmp_path: Path) -> None:
    often = name in ("scaffold", "fedcomgate", "fedcet")
    counts = campaign(name, tmp_path, share=0.5 if often else 0.0, least=10)
    refused = sum(count for (_, sentence), count in counts.items() if sentence)
    # With two checkpoints and two versions of each state, nearly everything can be rebuilt.
    assert refused <= counts.total() / 4


@pytest.mark.slow
@pytest.mark.long_updates
@pytest.mark.parametrize(
    ("name", "files", "refused"),
    [
        ("spilled", "undelivered/*", 0),  # the older checkpoint names other files
        ("private", "trackers.json", 0),
        ("private", "privacy.json", 6),
        ("diverged", "diverged.txt", 6),
    ],
)
def test_damage_to_what_only_some_runs_leave(
    name: str, files: str, refused: int, tmp_path: Path
) -> None:
    counts = campaign(name, tmp_path, files=files)
    assert {kind for kind, _ in counts} == {damage.__name__ for damage in DAMAGES}
    assert sum(count for (_, sentence), count in counts.items() if sentence) == refused


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_command_resumes_or_ends_with_a_sentence(damage: Any, tmp_path: Path) -> None:
    """One damaged checkpoint is no matter; with both the command must say so, as a process with an exit code."""
    keys, chance = keys_of("gradma-s"), random.Random(0)
    whole = run(tmp_path / "whole", keys)
    run(tmp_path / "killed", keys, until=6)
    run(tmp_path / "twin", keys | {"seed": 1}, until=6)
    for count in (1, 2):
        place = tmp_path / f"damaged-{count}"
        shutil.copytree(tmp_path / "killed", place)
        for path in sorted(place.rglob("round-*"))[-count:]:
            before = path.read_bytes()
            while path.exists() and path.read_bytes() == before:  # zeros may be zeroed
                damage(path, chance, tmp_path / "twin" / path.relative_to(place))
        ended = start_simulation(tmp_path / f"told-{count}", command(place, keys)[1:]).wait()
        assert "Traceback" not in ended.stdout + ended.stderr
        if count == 2 and damage is not delete:  # without checkpoints it begins at round 1
            assert ended.returncode == 2
            assert ended.stderr.splitlines()[-1].startswith(f"No checkpoint in {place}")
            continue
        assert ended.returncode == 0, ended.stderr
        model = load_file(place / "results" / "run" / "model.safetensors")
        assert model["x"].tobytes() == whole["x"].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_or_record_of_a_finished_run_is_rebuilt(
    damage: Any, tmp_path: Path
) -> None:
    keys, chance = keys_of("scaffold"), random.Random(0)
    whole = run(tmp_path / "whole", keys)
    run(tmp_path / "twin", keys | {"seed": 1})
    for name in ("model.safetensors", "rounds.jsonl", "config.json"):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "run")
        path = tmp_path / "run" / "results" / "run" / name
        damage(path, chance, tmp_path / "twin" / "results" / "run" / name)
        sentence = outcome(tmp_path / "run", keys, whole)
        assert not sentence or (damage is swap and name == "config.json")


def test_a_damaged_run_without_checkpoints_is_one_sentence(tmp_path: Path) -> None:
    keys = keys_of("fedavg") | {"checkpoint-every": 0}
    run(tmp_path, keys)
    directory = tmp_path / "results" / "run"
    model, rounds = directory / "model.safetensors", directory / "rounds.jsonl"
    before = model.read_bytes()
    model.write_bytes(before[:-1])
    with pytest.raises(
        ConfigError, match=r"model\.safetensors is damaged and the run has no check"
    ):
        run(tmp_path, keys | {"resume": True})
    model.write_bytes(before)
    rounds.write_text(rounds.read_text().replace('"clients": 3', '"clients": 4', 1))
    with pytest.raises(ConfigError, match=r"Line 1 of .*rounds\.jsonl is damaged"):
        run(tmp_path, keys | {"resume": True})


# Directories that are not ours.

FOREIGN: dict[str, dict[str, str]] = {
    "a project": {"config.json": '{"name": "mine"}', ".env": "SECRET=1", ".netrc": "machine x"},
    "a list": {"config.json": "[1, 2]", ".env": "SECRET=1"},
    "broken": {"config.json": '{"config": {', ".env": "SECRET=1"},
    "another tool's": {"config.json": '{"config": {"a": 1}, "versions": {}}', "data.csv": "1,2"},
    "without a config": {"notes.txt": "hello", ".env": "SECRET=1"},
    "someone's rounds": {"rounds.jsonl": '{"round": 1}\n', ".netrc": "machine x"},
    "another tool's lock": {".lock": "12345\n"},
}


def contents(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("by_name", [True, False])
def test_a_foreign_directory_is_refused_and_stays_as_it_is(
    kind: str, by_name: bool, tmp_path: Path
) -> None:
    place = tmp_path / "results" / "mine"
    place.mkdir(parents=True)
    for name, text in FOREIGN[kind].items():
        (place / name).write_text(text)
    before = contents(tmp_path)
    resume: dict[str, Value] = {"resume": True, "run-name": "mine"}
    keys = KEYS | (resume if by_name else {"resume": str(place), "run-name": ""})
    config = parse_run_config(keys | {"results-dir": str(tmp_path / "results")})
    with pytest.raises(ConfigError) as refused:
        server_app.run(InlineGrid(client_app.app, config.flat()), config)
    assert str(refused.value).count("\n") == 0
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_sweep_does_not_set_a_foreign_directory_aside(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "out" / "try-fedavg"
    place.mkdir(parents=True)
    for name, text in FOREIGN[kind].items():
        (place / name).write_text(text)
    preset = tmp_path / "try.toml"
    preset.write_text('dataset = "quadratic"\nnum-rounds = 1\n[sweep]\nalgorithm = ["fedavg"]\n')
    arguments = ["--engine", "inline", str(preset), "--out", str(tmp_path / "out")]
    before = contents(tmp_path / "out")
    assert main(["run", *arguments]) == 2
    refused = capsys.readouterr().err
    assert str(place) in refused
    assert refused.count("\n") == 1
    assert contents(tmp_path / "out") == before


def test_a_state_that_is_damaged_in_a_run_fails_its_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Damaging(InlineGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            messages = list(messages)
            if any(m.content["round"]["round"] == 4 for m in messages if "round" in m.content):
                for path in (tmp_path / "states").glob("*/2/*.safetensors"):
                    path.write_bytes(path.read_bytes()[:-1])
            return super().send_and_receive(messages, timeout=timeout)

    keys = keys_of("scaffold") | {"clients-per-round": 5, "checkpoint-every": 0}
    where = {"results-dir": str(tmp_path), "state-dir": str(tmp_path / "states")}
    config = parse_run_config(keys | where)
    directory = server_app.run(Damaging(client_app.app, config.flat()), config).path
    assert [record["failures"] for record in read_rounds(directory)] == [0, 0, 0, 1, 1, 1, 1]
    assert sum("Client 2 failed: its state is damaged" in text for text in caplog.messages) == 1


# What else may lie in a run's directory.


def killed(place: Path, **more: Value) -> dict[str, Value]:
    """Leave a run after five of its seven rounds; return its config."""
    keys = keys_of("scaffold") | more
    run(place, keys, until=6)
    return keys


def test_a_file_that_says_nothing_of_itself_is_not_a_state(tmp_path: Path) -> None:
    keys = killed(tmp_path / "killed")
    plain = load_file(next((tmp_path / "killed" / "states").glob("*/2/*.safetensors")))
    for path in (tmp_path / "killed" / "states").glob("*/2/*.safetensors"):
        save_file({name: array + 1 for name, array in plain.items()}, path)
    with pytest.raises(ConfigError, match=r"No checkpoint .*state of client 2"):
        run(tmp_path / "killed", keys | {"resume": True})


def test_a_checkpoint_of_an_older_version_is_not_a_new_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = Path(__file__).parents[1] / "old_runs" / "scaffold" / "checkpoint"
    keys = keys_of("scaffold") | {"quadratic.dim": 6, "num-clients": 4, "clients-per-round": 2}
    whole = run(tmp_path / "whole", keys | {"num-rounds": 9})
    run(tmp_path / "killed", keys | {"num-rounds": 9}, until=9)
    name = "round-0000008.safetensors"
    shutil.copy(old / name, tmp_path / "killed" / "results" / "run" / "checkpoint" / name)
    model = run(tmp_path / "killed", keys | {"num-rounds": 9, "resume": True})
    assert model["x"].tobytes() == whole["x"].tobytes()
    assert "is not a checkpoint of this run" in caplog.text


def test_states_under_client_side_privacy_are_checked_too(tmp_path: Path) -> None:
    private: dict[str, Value] = {
        "algorithm": "fedavg", "compressor": "topk", "error-feedback": True, "dp.clip": 1.0,
        "dp.where": "client", "dp.noise-from": "seed",
    }  # fmt: skip
    keys = killed(tmp_path, **private)
    for path in (tmp_path / "states").glob("*/*/*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match="No checkpoint"):
        run(tmp_path, keys | {"resume": True})


def test_damaged_states_restart_together_if_that_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = killed(tmp_path / "one", **{"clients-per-round": 5, "num-rounds": 9})
    whole = run(tmp_path / "whole", keys)
    newest = sorted((tmp_path / "one" / "states").glob("*/2/*"), key=lambda p: int(p.stem))
    newest[-2].write_bytes(b"")  # the newest checkpoint's; the older one is intact
    model = run(tmp_path / "one", keys | {"resume": True, "on-lost-state": "reset"})
    assert model["x"].tobytes() == whole["x"].tobytes()
    killed(tmp_path / "all", **{"clients-per-round": 5, "num-rounds": 9})
    for path in (tmp_path / "all" / "states").glob("*/2/*"):
        path.write_bytes(b"")
    run(tmp_path / "all", keys | {"resume": True, "on-lost-state": "reset"})
    assert "CLIENT STATE IS LOST" in caplog.text


def test_names_like_ours_are_left_alone(tmp_path: Path) -> None:
    keys = keys_of("scaffold")
    whole = run(tmp_path / "whole", keys)
    run(tmp_path / "killed", keys, until=3)
    directory = tmp_path / "killed" / "results" / "run"
    foreign = {
        directory / "checkpoint" / "round-best.safetensors": b"mine",
        directory / "checkpoint" / "round-99.safetensors": b"mine",
        directory / f".session-{'a' * 32}": b"mine",
        directory / f".config.json-{'a' * 32}": b"a file, where ours are directories",
        next((tmp_path / "killed" / "states").iterdir()) / "2" / "².safetensors": b"mine",
    }
    for path, content in foreign.items():
        path.write_bytes(content)
    model = run(tmp_path / "killed", keys | {"resume": True})
    assert model["x"].tobytes() == whole["x"].tobytes()
    assert {path: path.read_bytes() for path in foreign} == foreign
    assert len(list((directory / "checkpoint").glob("round-000*"))) == 2


def test_a_directory_of_hidden_files_is_not_a_run_that_was_begun(tmp_path: Path) -> None:
    place = tmp_path / "results" / "run"
    place.mkdir(parents=True)
    (place / f".session-{'a' * 32}").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="holds no run of fedapp"):
        run(tmp_path, KEYS | {"resume": True})
    assert contents(tmp_path) == before


def test_a_finished_run_without_checkpoints_keeps_its_model(tmp_path: Path) -> None:
    keys = keys_of("fedavg") | {"checkpoint-every": 0}
    run(tmp_path, keys)
    directory = tmp_path / "results" / "run"
    model = (directory / "model.safetensors").read_bytes()
    (directory / "rounds.jsonl").write_bytes(b"")
    with pytest.raises(
        ConfigError, match=r"rounds\.jsonl is damaged and the run has no checkpoint"
    ):
        run(tmp_path, keys | {"resume": True})
    assert (directory / "model.safetensors").read_bytes() == model


def test_checkpoints_count_whatever_the_last_resume_said(tmp_path: Path) -> None:
    keys = killed(tmp_path / "killed")
    whole = run(tmp_path / "whole", keys)
    run(tmp_path / "killed", keys | {"resume": True, "checkpoint-every": 0}, until=7)
    model = run(tmp_path / "killed", keys | {"resume": True})
    assert model["x"].tobytes() == whole["x"].tobytes()


def test_another_runs_note_of_a_divergence_is_ignored(tmp_path: Path) -> None:
    keys = killed(tmp_path / "killed")
    whole = run(tmp_path / "whole", keys)
    note = tmp_path / "killed" / "results" / "run" / "diverged.txt"
    note.write_text(seal({"message": "", "since": 1, "run": "another"}))
    model = run(tmp_path / "killed", keys | {"resume": True})
    assert model["x"].tobytes() == whole["x"].tobytes()
    assert not list(note.parent.glob("checkpoint/*.unusable*"))


@pytest.mark.parametrize("text", ["", "{}", '{"since": 1, "run": "run"}', None])
def test_a_damaged_note_of_a_divergence_is_refused(text: str | None, tmp_path: Path) -> None:
    """Without it the run would continue from what made it diverge."""
    keys = killed(tmp_path)
    directory = tmp_path / "results" / "run"
    note = seal({"message": "", "since": 4, "run": read_manifest(directory).identity})
    (directory / "diverged.txt").write_text(note.replace("4", "5", 1) if text is None else text)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"diverged\.txt .* says since when the run diverged"):
        run(tmp_path, keys | {"resume": True})
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.long_updates
def test_a_run_without_its_note_of_a_divergence_diverges_again_and_then_resumes(
    tmp_path: Path,
) -> None:
    case = SPECIAL["diverged"]
    whole = run(tmp_path / "whole", case.keys)
    run(tmp_path / "killed", case.keys | case.before, until=6)
    (tmp_path / "killed" / "results" / "run" / "diverged.txt").unlink()
    assert "client 0 in round 4" in outcome(tmp_path / "killed", case.keys, whole)
    assert not outcome(tmp_path / "killed", case.keys, whole)


def test_a_sweep_does_not_take_a_damaged_model_for_a_finished_run(tmp_path: Path) -> None:
    run(tmp_path, KEYS | {"algorithm": "fedavg"})
    where = {"results-dir": str(tmp_path / "results"), "state-dir": str(tmp_path / "states")}
    config = parse_run_config(KEYS | where | {"algorithm": "fedavg", "resume": True})
    assert skip_reason(config) == "is complete already"
    (tmp_path / "results" / "run" / "model.safetensors").write_bytes(b"")
    assert not skip_reason(config)


@pytest.mark.parametrize(
    "text", ['{"releases": {"server": 1}}', '{"releases": {"server": -5}}', '["x"]', '"x"', ""]
)
def test_a_count_of_releases_without_a_digest_is_refused(text: str, tmp_path: Path) -> None:
    private: dict[str, Value] = {"dp.clip": 1.0, "dp.where": "client", "dp.noise-from": "seed"}
    keys = KEYS | {"algorithm": "fedavg"} | private
    run(tmp_path, keys, until=6)
    count = tmp_path / "results" / "run" / "privacy.json"
    count.write_text(text) if text else count.unlink()
    with pytest.raises(ConfigError, match=r"privacy\.json does not say what this run has spent"):
        run(tmp_path, keys | {"resume": True})
