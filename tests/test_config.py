"""The run config: its declaration, its bounds, and how mistakes are told."""

from pathlib import Path

import pytest

from fedapp.commandline import absolute_paths, read_overrides
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.registry import find_algorithm
from fedapp.tables import Value
from strategies.averaging import FedProxOptions
from tests.support.processes import start_simulation

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"clients-per-round": 0}, "clients-per-round = 0 is not allowed"),
        ({"clients-per-round": 21}, "at most num-clients = 20"),
        ({"num-clients": 4}, "at most num-clients = 4"),
        ({"min-clients": 6}, "at most clients-per-round = 5"),
        ({"lr": -0.1}, "lr = -0.1 is not allowed"),
        ({"lr": float("nan")}, "lr = nan is not allowed"),
        ({"num-rounds": True}, "num-rounds = True is not allowed"),
        ({"num-rounds": 2.5}, "num-rounds = 2.5 is not allowed"),
        ({"partition": "alphabetical"}, "'iid', 'dirichlet', 'classes' or 'writer'"),
        ({"run-name": "../up"}, "letters, digits"),
        ({"fedprox.mu": -1.0}, "fedprox.mu = -1.0 is not allowed"),
        ({"no-such-key": 1}, "There is no config key 'no-such-key'"),
        ({"algorithm": "fedsgdplus"}, "`fedapp algorithms` lists those there are"),
        ({"dataset": "imagenet22k"}, "choose digits, quadratic, diabetes"),
        ({"dataset": "mnist", "data-dir": "/no/such/place"}, "is not there"),
        ({"dataset": "mnist", "data-dir": "some/place"}, "should be a full path"),
        ({"state-dir": "some/place"}, "should be a full path"),
        ({"data-dir": 3}, "data-dir = 3 is not allowed"),
        ({"dataset": "../mnist"}, "letters, digits"),
        ({"fedprox": 1}, "set fedprox.<key> instead"),
        ({"fedprox": 1, "fedprox.mu": 2.0}, "both a value and keys"),
        ({"model": "transformer"}, "choose logreg"),
        ({"model": "mlp-0"}, "choose logreg"),
        ({"device": "tpu"}, 'should be "auto", "cpu", "cuda"'),
        ({"device": "cuda:-1"}, 'should be "auto", "cpu", "cuda"'),
        ({"precision": "fp16"}, "'fp32' or 'bf16'"),
        ({"precision": "bf16", "dtype": "float64"}, 'set dtype = "float32"'),
        ({"precision": "bf16", "dataset": "quadratic"}, 'set precision = "fp32"'),
        ({"device": "mps", "dtype": "float64"}, 'or device = "cpu"'),
        ({"compile": True, "batch-size": 0}, "set batch-size"),
        ({"compile": True, "model": "logistic"}, "compile = false"),
        ({"num-clients": 5000}, "more than the 1437 training samples"),
        ({"classes-per-client": 11}, "more than the 10 classes"),
        ({"partition": "writer"}, "does not say"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_what_is_allowed(
    values: dict[str, Value], said: str
) -> None:
    with pytest.raises(ConfigError) as told:
        config = parse_run_config(values)
        find_algorithm(config.algorithm)
        make_problem(config)
    sentence = str(told.value)
    assert said in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")


def test_the_earlier_name_of_a_key_still_counts() -> None:
    config = parse_run_config({"too-long": "clip", "on-long-update": "reject"})  # its default
    assert config.on_long_update == RunConfig(too_long="clip").on_long_update == "clip"
    assert config.flat() == parse_run_config({"on-long-update": "clip"}).flat()
    with pytest.raises(ConfigError, match="too-long is the earlier name of on-long-update"):
        parse_run_config({"too-long": "reject", "on-long-update": "clip"})


def test_an_integer_will_do_for_a_float() -> None:
    assert parse_run_config({"lr": 1}).lr == 1.0


def test_schedules() -> None:
    decaying = RunConfig(lr=0.5, lr_schedule="exponential", lr_decay=0.9)
    assert [decaying.lr_at(r) for r in (1, 2, 3)] == pytest.approx([0.5, 0.45, 0.405])
    assert RunConfig(lr=0.5, lr_decay=0.9).lr_at(100) == 0.5
    inverse = RunConfig(lr=4.0, lr_schedule="inverse", local_steps=3)  # (4/mu) / (k tau + 1)
    assert [inverse.lr_at(r) for r in (1, 2, 3)] == pytest.approx([4.0, 1.0, 4 / 7])
    root = RunConfig(lr=2.0, lr_schedule="inverse-sqrt", local_steps=4, num_rounds=25)  # T = 100
    assert [root.lr_at(r) for r in (1, 25)] == pytest.approx([0.2, 0.2])
    with pytest.raises(ConfigError, match="local-epochs = 0"):
        parse_run_config({"lr-schedule": "inverse", "local-epochs": 1})


def test_presets_and_assignments(tmp_path: Path) -> None:
    preset = tmp_path / "preset.toml"
    preset.write_text('algorithm = "fedprox"\nlr = 0.3\n[fedprox]\nmu = 0.7\n')
    values = read_overrides([preset], ["lr=0.1 seed=3", 'dataset="quadratic"'])
    config = parse_run_config(values)
    assert (config.algorithm, config.table(FedProxOptions).mu) == ("fedprox", 0.7)
    assert (config.lr, config.seed, config.dataset) == (0.1, 3, "quadratic")
    with pytest.raises(ConfigError, match="not understood"):
        read_overrides([], ["lr"])
    assert read_overrides([], ["algorithm=fedprox"]) == {"algorithm": "fedprox"}
    with pytest.raises(ConfigError, match="not understood"):
        read_overrides([], ["lr=0.1 junk"])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_overrides([tmp_path / "none.toml"], [])
    other = tmp_path / "preset.cfg"
    other.write_text("lr = 0.7")
    assert read_overrides([other], []) == {"lr": 0.7}
    other.write_text("lr = [1]")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_overrides([other], [])


def test_paths_are_seen_from_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/usr")
    assert absolute_paths({"data-dir": "lib", "results-dir": ""}) == {
        "data-dir": "/usr/lib",
        "results-dir": "",
    }


@pytest.mark.parametrize(
    "assignment",
    [
        'algorithm="nope"',
        "clients-per-round=0",
        "num-clients=2",
        'dataset="nope"',
        'dataset="mnist" data-dir="/no/such/place"',
    ],
)
def test_run_simulation_exits_with_2_and_no_traceback(assignment: str, tmp_path: Path) -> None:
    words = ["-c", assignment, "--out", str(tmp_path / "out")]
    done = start_simulation(tmp_path / "said", words).wait()
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "out").exists()
