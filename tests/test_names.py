"""The nearest name to a mistyped one."""

import pytest

from fedapp.data.sources import find_source
from fedapp.errors import ConfigError
from fedapp.models.networks import make_network
from fedapp.names import DISPLAY_NAMES, did_you_mean, display_name
from fedapp.parsing import parse_run_config
from fedapp.registry import ALGORITHMS, find_algorithm


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("fedagv", " (did you mean 'fedavg'?)"),
        ("FedAvg", " (did you mean 'fedavg'?)"),
        ("mu", " (did you mean 'fedprox.mu'?)"),
        ("colour", ""),
    ],
)
def test_the_nearest_choice(word: str, nearest: str) -> None:
    assert did_you_mean(word, ["scaffold", "fedavg", "fedprox.mu", "moon.mu"]) == nearest


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "num-round", 3,
            "There is no config key 'num-round' (did you mean 'num-rounds'?): "
            "`fedapp config` lists those there are.",
        ),
        ("gradma.memory", 3, "There is no config key 'gradma.memory' (did you mean 'gradma.memory-size'?)"),
        ("levels", 3, "There is no config key 'levels' (did you mean 'qsgd.levels'?)"),
        ("data-path", "/data", "There is no config key 'data-path' (did you mean 'data-dir'?)"),
        ("results-folder", "/data", "(did you mean 'results-dir'?)"),
        ("colour", 3, "There is no config key 'colour': `fedapp config` lists those there are."),
        (
            "algorithm", "fedcom-gate",
            "algorithm = 'fedcom-gate' is not known (did you mean 'fedcomgate'?): "
            "`fedapp algorithms` lists those there are.",
        ),
        ("compressor", "qsdg", "compressor = 'qsdg' is not known (did you mean 'qsgd'?): choose none, float16"),
        ("partition", "diriclet", "(did you mean 'dirichlet'?)"),
        ("dataset", "fashion-mnist", "is not known (did you mean 'fashion_mnist'?): choose digits, quadratic"),
        ("model", "lenet", "is not known (did you mean 'lenet5'?): choose logreg"),
    ],
)  # fmt: skip
def test_a_mistyped_name_is_answered_with_the_nearest(
    key: str, value: int | str, said: str
) -> None:
    with pytest.raises(ConfigError) as told:
        config = parse_run_config({key: value})
        find_algorithm(config.algorithm)
        find_source(config.dataset, config.data_dir)
        make_network(config.model, (1, 8, 8), 10, "batch", 0)
    assert said in str(told.value)
    assert str(told.value).endswith(".")


def test_every_algorithm_has_a_display_name_that_is_its_name_in_the_papers_spelling() -> None:
    assert DISPLAY_NAMES.keys() == ALGORITHMS.keys()
    for name, shown in DISPLAY_NAMES.items():
        spelled = shown.lower().replace("+", "-plus")
        assert spelled in (name, "vr-diana"), name
    assert display_name("fedcomgate") == "FedCOMGATE"
    assert display_name("my.module:mine") == "mine"
