"""The declared keys: in `fedapp config`, and in pyproject.toml."""

import tomllib
from pathlib import Path

import pytest
from flwr.common.config import flatten_dict

from fedapp.cli import main
from fedapp.keys import Key, declared_keys, toml_block, with_toml_block
from fedapp.parsing import parse_run_config

ROOT = Path(__file__).parents[1]
DEFAULTS = parse_run_config({})
KEYS = list(declared_keys(type(DEFAULTS)))


def test_every_key_is_declared_once_with_its_default_and_a_description() -> None:
    assert {key.path: key.default for key in KEYS} == DEFAULTS.flat()
    assert len(KEYS) == len(DEFAULTS.flat())
    assert all(key.description for key in KEYS)


def test_a_description_begins_with_its_subject() -> None:
    """It is read beside a value, in `fedapp keys` and in pyproject.toml, not after the key's name."""
    assert not [
        key.path for key in KEYS if key.description.lower().startswith(("of ", "to ", "into "))
    ]


@pytest.mark.parametrize("key", [key for key in KEYS if key.names], ids=lambda key: key.path)
def test_a_description_says_what_the_choices_are(key: Key) -> None:
    missing = [name for name in key.names if f'"{name}"' not in key.description and name]
    assert not missing


def test_pyproject_declares_the_keys_as_they_are_generated() -> None:
    committed = (ROOT / "pyproject.toml").read_text()
    assert with_toml_block(committed, type(DEFAULTS)) == committed, (
        "run `fedapp config --write pyproject.toml`"
    )
    declared = flatten_dict(tomllib.loads(committed)["tool"]["flwr"]["app"]["config"])
    expected = DEFAULTS.flat()
    assert declared == expected
    assert {k: type(v) for k, v in declared.items()} == {k: type(v) for k, v in expected.items()}


def test_the_rest_of_a_pyproject_stays() -> None:
    block = toml_block(type(DEFAULTS))
    old = "[tool.flwr.app.config]\nold = 1\n\n[tool.flwr.app.config.older]\nkey = 2\n"
    for before in ("", "[project]\nname = 'x'\n\n"):
        for after in ("", "\n[tool.flwr.app.configs]\nb = 1\n\n[tool.ruff]\n"):
            assert with_toml_block(before + old + after, type(DEFAULTS)) == before + block + after
    assert with_toml_block("[project]\n", type(DEFAULTS)) == f"[project]\n\n{block}"


def test_the_command_shows_values_and_what_differs_from_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "preset.toml"
    preset.write_text("[fedprox]\nmu = 0.5\n")
    assert main(["config", str(preset), "-c", "num-rounds=7"]) == 0
    shown = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert set(shown) >= {key.path for key in KEYS}
    assert shown["num-rounds"][1:3] == ["7", "50"]
    assert shown["fedprox.mu"][1:3] == ["0.5", "0.01"]
    assert shown["num-clients"][1:3] == ["20", "logical"]
    assert main(["config", "-c", "num-rounds=0"]) == 2
    capsys.readouterr()
    assert main(["config", "--toml"]) == 0
    assert capsys.readouterr().out == toml_block(type(DEFAULTS))
    assert main(["config", "--write", str(tmp_path / "pyproject.toml")]) == 2
    assert "is not a file" in capsys.readouterr().err
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert main(["config", "--write", str(tmp_path / "pyproject.toml")]) == 0
    assert (tmp_path / "pyproject.toml").read_text().endswith(toml_block(type(DEFAULTS)))
