"""The `fedapp` command."""

from pathlib import Path

import pytest
from PIL import Image

from fedapp.cli import main
from fedapp.registry import ALGORITHMS


def fedapp(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["fedapp", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_algorithms_shows_every_one_with_its_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedapp(monkeypatch, "algorithms") == 0
    shown = capsys.readouterr().out
    for algorithm in ALGORITHMS.values():
        assert f"{algorithm.name} " in shown
        assert algorithm.summary in shown
    assert "server-lr = 0.02, fedadam.beta1 = 0.9" in shown


def test_partition_draws_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "partition.png"
    config = 'partition="classes" classes-per-client=3 num-clients=30'
    assert fedapp(monkeypatch, "partition", "-c", config, "-o", str(path)) == 0
    assert "3.0 classes on average" in capsys.readouterr().out
    with Image.open(path) as picture:
        assert len(set(picture.convert("L").getdata())) > 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-c", 'dataset="quadratic"'), "has no classes"),
        (("-o", "picture.abc"), "use .png, .svg or .pdf"),
        (("-c", "num-clients=0"), "num-clients = 0 is not allowed"),
        (("missing.toml",), "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert fedapp(monkeypatch, "partition", *arguments) == 2
    told = capsys.readouterr().err.strip()
    assert said in told
    assert "\n" not in told
