"""Shell completion of presets, keys and their values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedapp.commandline import complete_assignment, complete_key, complete_preset
from fedapp.models.networks import NETWORKS
from fedapp.registry import ALGORITHMS

ROOT = Path(__file__).parents[1]


def test_keys_and_their_names_are_completed() -> None:
    assert complete_key("qsgd.") == ["qsgd.levels", "qsgd.norm", "qsgd.bucket"]
    assert complete_assignment("clients-p") == ["clients-per-round="]
    assert complete_assignment('algorithm="fedprox') == [
        'algorithm="fedprox"',
        'algorithm="fedproxm"',
    ]
    assert len(complete_assignment("algorithm=")) == len(ALGORITHMS)
    assert complete_assignment('dataset="cifar') == ['dataset="cifar10"', 'dataset="cifar100"']
    assert complete_assignment('model="vgg') == ['model="vgg11"', 'model="vgg19"']
    assert [v for v in complete_assignment("model=") if v[7:-1] in NETWORKS] == [
        f'model="{name}"' for name in NETWORKS
    ]
    assert complete_assignment("qsgd.norm=") == ['qsgd.norm="l2"', 'qsgd.norm="max"']
    assert complete_assignment("lr=") == []
    assert complete_assignment("no-such-key=") == []


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
