"""The `fedapp` command."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedapp.cli import main
from fedapp.config import parse_run_config
from fedapp.models import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.report.similarity import cosine_similarities


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


def test_similarity_is_the_cosine_of_full_gradients(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "similarity.png"
    keys = 'num-clients=6 classes-per-client=2 model="logreg"'
    assert fedapp(monkeypatch, "similarity", "-c", keys, "-o", str(picture)) == 0
    assert "between different clients" in capsys.readouterr().out
    with Image.open(picture) as drawn:
        assert len(set(drawn.convert("RGB").getdata())) > 50
    problem = make_problem(
        parse_run_config({"num-clients": 6, "classes-per-client": 2, "model": "logreg"})
    )
    cosines = cosine_similarities(problem, range(6))
    x = torch.tensor(problem.initial()[0])
    one, two = (problem.objective(c).full_gradient(x).clone() for c in (1, 4))
    assert cosines[1, 4] == pytest.approx(float(one @ two / one.norm() / two.norm()), abs=1e-6)
    np.testing.assert_allclose(np.diag(cosines), 1)
    alike = make_problem(parse_run_config({"num-clients": 6, "partition": "iid"}))
    apart = ~np.eye(6, dtype=bool)
    assert cosine_similarities(alike, range(6))[apart].min() > 0.5 > cosines[apart].mean()
    assert fedapp(monkeypatch, "similarity", "-c", "num-clients=1 clients-per-round=1") == 2
    assert "2 or more" in capsys.readouterr().err
