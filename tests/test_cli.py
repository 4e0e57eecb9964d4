"""The `fedapp` command."""

import json
import re
import tomllib
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedapp import reference
from fedapp.building import make_strategy
from fedapp.commandline import flat_keys, read_config
from fedapp.errors import ConfigError
from fedapp.keys import Key, declared_keys
from fedapp.parsing import parse_run_config
from fedapp.problems import kind_of, make_problem
from fedapp.registry import ALGORITHMS
from fedapp.report.similarity import cosine_similarities
from fedapp.tables import Value
from tests.conftest import RunInline
from tests.support.commands import fedapp


def test_algorithms_shows_every_one_with_its_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedapp(monkeypatch, "algorithms") == 0
    shown = capsys.readouterr().out
    for algorithm in ALGORITHMS.values():
        assert f"{algorithm.name} " in shown
        assert algorithm.summary in shown
    assert "server-lr = 0.02, fedadam.beta1 = 0.9" in shown


def printed_keys(text: str) -> dict[str, dict[str, Value]]:
    """Return what `fedapp algorithms` prints: each algorithm's keys and values."""
    beside = ("needs ", "keeps on the server: ")
    lines = [line for line in text.splitlines() if not line.strip().startswith(beside)]
    found: dict[str, dict[str, Value]] = {}
    for head, keys in zip(lines[::2], lines[1::2], strict=True):
        pairs = [pair.split(" = ") for pair in keys.strip().split(", ") if " = " in pair]
        found[head.split()[0]] = {key: typed(value) for key, value in pairs}
    return found


def typed(value: str) -> Value:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


SMALL: dict[str, Value] = {
    "model": "mlp-10", "num-clients": 3, "clients-per-round": 3, "local-steps": 1, "num-rounds": 2,
    "train-samples": 30, "partition": "iid",
}  # fmt: skip


def test_every_key_that_is_listed_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedapp(monkeypatch, "algorithms") == 0
    listed = printed_keys(capsys.readouterr().out)
    assert list(listed) == list(ALGORITHMS)
    assert set(listed["gradma-w"]) == {"server-lr", "gradma.scope"}
    assert set(listed["gradma-s"]) == {
        "server-lr", "gradma.beta1", "gradma.beta2", "gradma.memory-size", "gradma.scope",
    }  # fmt: skip
    assert set(listed["fedbcgd-plus"]) == {
        "fedbcgd.blocks", "fedbcgd.momentum", "fedbcgd.control", "fedbcgd.start",
    }  # fmt: skip
    for name, keys in listed.items():
        config = parse_run_config(SMALL | {"algorithm": name} | keys)
        make_strategy(config, kind_of(config).outline(config))
        slower = config.model_copy(update={"server_lr": 0.5})
        if "server-lr" in keys:
            make_strategy(slower, kind_of(slower).outline(slower))
        else:
            with pytest.raises(ConfigError, match="server-lr"):
                make_strategy(slower, kind_of(slower).outline(slower))


def other_value(key: Key, printed: Value) -> Value:
    """Return another value that the printed key takes."""
    if key.choices:
        return next((c for c in key.choices if c != printed and isinstance(c, Value)), printed)
    if isinstance(printed, bool):
        return not printed
    return printed if isinstance(printed, str) else type(printed)(0.9 * printed)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_key_of_an_algorithm_is_printed_as_a_preset_that_is_accepted(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert fedapp(monkeypatch, "keys", name) == 0
    printed = capsys.readouterr().out
    preset = tmp_path / "preset.toml"
    preset.write_text(printed)
    keys = flat_keys(preset, tomllib.loads(printed))
    config = read_config([preset], [])
    make_strategy(config, kind_of(config).outline(config))
    assert keys["algorithm"] == config.algorithm == name
    assert {k: v for k, v in config.flat().items() if k in keys} == keys
    declared = {key.path: key for key in declared_keys(type(config))}
    others = {known.table for known in ALGORITHMS.values()} - {ALGORITHMS[name].table, "qsgd"}
    silent = {f"{ALGORITHMS[name].table}.{key}" for key in ALGORITHMS[name].unread}
    expected = {key for key in declared if key.partition(".")[0] not in others} - silent
    assert set(keys) == expected
    for key in keys.keys() & declared.keys() - {"algorithm"}:
        changed = {key: other_value(declared[key], keys[key])}
        # Two keys may be at odds; one that is not known is another error.
        with suppress(ConfigError):
            parse_run_config({"algorithm": name} | changed)
            continue
        with pytest.raises(ConfigError) as refused:
            parse_run_config({"algorithm": name} | changed)
        assert "There is no config key" not in str(refused.value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_is_described_with_its_paper_what_travels_and_its_keys(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert fedapp(monkeypatch, "algorithms", name) == 0
    shown = capsys.readouterr().out
    algorithm = ALGORITHMS[name]
    assert shown.startswith(f"{name}: {algorithm.summary}.")
    assert "Down: x" in shown
    assert "Up: " in shown
    assert re.search(r"\b20[12][0-9]\b|supplement", shown), "the paper"
    for key, value in algorithm.keys().items():
        assert f"\n{key} = {json.dumps(value)}  # " in shown
    prose = [line for line in shown.splitlines() if "  # " not in line]
    assert max(map(len, prose)) <= 80


@pytest.mark.parametrize(
    ("name", "paper"),
    [
        ("gradma-s", "GradMA: A Gradient-Memory-based"),  # FedAvg's client
        ("gradma-w", "GradMA: A Gradient-Memory-based"),  # FedAvg's server
        ("moonm", "Model-Contrastive Federated Learning"),
        ("fedmlb", "Multi-Level Branched Regularization"),
    ],
)
def test_a_variant_with_another_algorithm_s_server_or_client_has_its_own_paper(
    name: str, paper: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedapp(monkeypatch, "algorithms", name) == 0
    assert paper in " ".join(capsys.readouterr().out.split())
    before, _, _ = reference.algorithms_page().partition(f"\n### {name}\n")
    assert paper in " ".join(before[before.rindex("\n## ") :].split())


def test_ranges_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedapp(monkeypatch, "algorithms", "fedbcgd") == 0
    shown = capsys.readouterr().out
    assert "fedbcgd.blocks = 5  # whole number at least 1\n" in shown
    assert "fedbcgd.momentum = 0.5  # number at least 0 and below 1\n" in shown
    assert fedapp(monkeypatch, "algorithms", "scafold") == 2
    assert "(did you mean 'scaffold'?)" in capsys.readouterr().err
    assert fedapp(monkeypatch, "keys", "fedbgcd") == 2
    assert "(did you mean 'fedbcgd'?)" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fedapp(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"fedapp {version('fedapp')}\n"


@pytest.mark.parametrize("name", [name for name, known in ALGORITHMS.items() if known.has_options])
def test_the_keys_that_are_listed_are_those_that_are_read(
    name: str, monkeypatch: pytest.MonkeyPatch, run_inline: RunInline
) -> None:
    table = name.partition("-")[0]
    listed = {key.partition(".")[2] for key in list(ALGORITHMS[name].keys()) if "." in key}
    options = ALGORITHMS[name].options
    read = set()

    def traced(self: object, attribute: str) -> object:
        if attribute in options.model_fields and type(self) is options:
            read.add(attribute.replace("_", "-"))
        return object.__getattribute__(self, attribute)

    monkeypatch.setattr(options, "__getattribute__", traced)
    run_inline(**{k.replace("-", "_"): v for k, v in SMALL.items()}, algorithm=name)
    if name == "fedcet":  # asked when a client fails
        source = Path(__file__).parents[1] / "strategies" / "fedcet.py"
        assert "self.options.on_failure" in source.read_text()
        read.add("on-failure")
    assert read == listed, f"the keys of [{table}] that {name} reads"


def test_partition_draws_a_picture(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "partition.png"
    config = 'partition="classes" classes-per-client=3 num-clients=30'
    assert fedapp(monkeypatch, "partition", "-c", config, "-o", str(path)) == 0
    assert "3.0 classes on average" in capsys.readouterr().out
    with Image.open(path) as picture:
        assert len(set(picture.convert("L").getdata())) > 10


def test_the_median_of_two_clients_is_halfway_between_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = 'partition="dirichlet" partition-alpha=0.5 num-clients=2 clients-per-round=2'
    path = tmp_path / "partition.png"
    assert fedapp(monkeypatch, "partition", "-c", config, "-o", str(path)) == 0
    told = re.search(r"hold (\d+) to (\d+) samples each \(median (\S+)\)", capsys.readouterr().out)
    assert told
    least, most, median = map(float, told.groups())
    assert least < median == (least + most) / 2


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
