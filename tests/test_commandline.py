"""Keys on a command line: how they are read, and how a shell completes them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from hypothesis import given, strategies

from fedapp.commandline import (
    complete_assignment,
    complete_key,
    complete_preset,
    read_config,
    read_overrides,
)
from fedapp.errors import ConfigError
from fedapp.keys import Key, declared_keys
from fedapp.models.networks import NETWORKS
from fedapp.parsing import config_type
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS

ROOT = Path(__file__).parents[1]


def test_keys_and_their_names_are_completed() -> None:
    assert complete_key("qsgd.") == ["qsgd.levels", "qsgd.norm", "qsgd.bucket"]
    assert complete_assignment("clients-p") == ["clients-per-round="]
    assert complete_assignment("algorithm=fedprox") == ["algorithm=fedprox", "algorithm=fedproxm"]
    assert len(complete_assignment("algorithm=")) == len(ALGORITHMS)
    assert complete_assignment("dataset=cifar") == ["dataset=cifar10", "dataset=cifar100"]
    assert complete_assignment("model=vgg") == ["model=vgg11", "model=vgg19"]
    assert [v for v in complete_assignment("model=") if v[6:] in NETWORKS] == [
        f"model={name}" for name in NETWORKS
    ]
    assert complete_assignment("qsgd.norm=") == ["qsgd.norm=l2", "qsgd.norm=max"]
    assert complete_assignment("lr=") == []
    assert complete_assignment("no-such-key=") == []


KEYS = list(declared_keys(config_type()))
WORDS = strategies.text("abcz019.:/_-", min_size=1, max_size=12)


@given(strategies.sampled_from([key for key in KEYS if isinstance(key.default, str)]), WORDS)
def test_a_text_needs_no_quotes(key: Key, word: str) -> None:
    assert read_overrides([], [f"{key.path}={word}"]) == {key.path: word}
    for quote in "'\"":
        assert read_overrides([], [f"{key.path}={quote}{word}{quote}"]) == {key.path: word}


@given(strategies.sampled_from(KEYS))
def test_what_toml_writes_is_read_as_toml_and_as_flower_reads_it(key: Key) -> None:
    text = f"{key.path}={json.dumps(key.default)}"
    assert read_overrides([], [text]) == {key.path: key.default} == parse_config_args([text])


def test_several_keys_and_bare_words_stand_in_one_text() -> None:
    read = read_overrides([], ["model=mlp-10 lr=0.5 compile=true seed=3 error-feedback=ef21"])
    assert read == {
        "model": "mlp-10", "lr": 0.5, "compile": True, "seed": 3, "error-feedback": "ef21",
    }  # fmt: skip
    assert read_overrides([], ["run-name=2026-01-02", "mine.since=2026-01-02"]) == {
        "run-name": "2026-01-02", "mine.since": "2026-01-02",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("lr", "write key=value, for example -c algorithm=fedprox or -c lr=0.05."),
        ("uplink-budget=50 kB", "put quotes around a value with spaces"),
        ("preset.toml", "give a preset without -c, as in fedapp run preset.toml."),
        ("lr=[0.1,0.2]", "write key=value"),
        ('dataset="mnist', "write key=value"),
        ("num-rounds=ten", "num-rounds = 'ten' is not allowed: it should be a valid integer."),
        ("compile=True", "compile = 'True' is not allowed (did you mean true?)"),
        ("dataset=Cifar10", "(did you mean 'cifar10'?)"),
        ("datset=cifar10", "There is no config key 'datset' (did you mean 'dataset'?)"),
        ("partition=dirichelt", "(did you mean 'dirichlet'?)"),
        ("compressor=qsdg", "(did you mean 'qsgd'?)"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ConfigError) as error:
        config = read_config([], [text])
        make_problem(config)
    assert advice in str(error.value)
    assert "\n" not in str(error.value)


def test_a_preset_without_quotes_says_that_toml_wants_them(tmp_path: Path) -> None:
    preset = tmp_path / "preset.toml"
    preset.write_text("algorithm = fedprox\n")
    with pytest.raises(ConfigError, match="wants quotes around words"):
        read_config([preset], [])


def test_presets_are_toml_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").mkdir()
    for name in ("try.toml", "try.txt", "tables/one.toml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert complete_preset("") == ["tables/", "try.toml"]
    assert complete_preset("tables/") == ["tables/one.toml"]
    assert complete_preset(f"{tmp_path}/tr") == [f"{tmp_path}/try.toml"]
    assert complete_preset("nowhere/") == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fedapp", "ru"], ["run"]),
        (["fedapp", "run", "--engine", "i"], ["inline"]),
        (["fedapp", "run", "-c", "num-c"], ["num-clients="]),
        (["fedapp", "run", "experiments/fedpaq/fig4"], ["experiments/fedpaq/fig4.toml"]),
    ],
)
def test_a_shell_is_answered(words: list[str], expected: list[str]) -> None:
    asked = {
        "_FEDAPP_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from fedapp.cli import main; sys.exit(main())"],
        cwd=ROOT, env=os.environ | asked, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == expected
