"""What runs are called, and which keys of their configs are compared."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.errors import ConfigError
from fedapp.names import DISPLAY_NAMES, display_name
from fedapp.parsing import parse_run_config
from fedapp.registry import ALGORITHMS
from fedapp.report.labels import (
    differing_keys,
    labels_of,
    read_labels,
    readable,
    unread,
    what_varies,
)
from fedapp.report.runs import Group, Run
from fedapp.tables import Value
from tests.conftest import kebab


def run(name: str, **keys: Value) -> Run:
    return Run(name, parse_run_config(kebab(keys)).flat(), [])


def test_every_algorithm_has_a_name_for_people() -> None:
    assert DISPLAY_NAMES.keys() == ALGORITHMS.keys()
    for name, shown in DISPLAY_NAMES.items():
        letters = shown.lower().replace("+", "plus").replace("-", "")
        assert letters == name.replace("-", "")
    assert display_name("own.module:Mine") == "Mine"


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("fedcomgate-qsgd8", {"algorithm": "fedcomgate"}, "FedCOMGATE, qsgd8"),
        ("fedavg-lr-0.1", {"lr": 0.1}, "FedAvg, lr = 0.1"),
        ("lr-0.1-fedavg", {"lr": 0.1}, "lr = 0.1, FedAvg"),
        ("levels-8", {"algorithm": "fedpaq", "qsgd.levels": 8}, "levels = 8"),
        ("fedavgish-lr-0.15", {"lr": 0.1}, "fedavgish-lr-0.15"),
        ("fedbcgd-plus", {"algorithm": "fedbcgd-plus"}, "FedBCGD+"),
    ],
)
def test_names_are_made_readable(name: str, keys: dict[str, Value], said: str) -> None:
    assert readable(name, parse_run_config(keys).flat()) == said


@given(st.text(max_size=30), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_any_name_has_a_label(name: str, config: dict[str, str]) -> None:
    assert readable(name, config) or not name.strip("-")


def test_two_runs_never_share_a_label() -> None:
    groups = [Group(name, [run(name)]) for name in ("fedavg", "FedAvg")]
    assert labels_of(groups, {}) == ["fedavg", "FedAvg"]


def test_labels_are_given_by_the_name_of_a_run_or_of_what_the_legend_shows() -> None:
    two = [run("x-fedavg-seed-0"), run("x-fedavg-seed-1", seed=1)]
    groups = [Group("fedavg", two), Group("lr-0.5", [run("x-lr-0.5", lr=0.5)], "1 of 2")]
    for known in ("fedavg", "FedAvg", "x-fedavg-seed-1"):
        given = read_labels([f"{known}=a = b", "lr = 0.5=large steps"], groups)
        assert labels_of(groups, given) == ["a = b", "large steps (1 of 2)"]
    with pytest.raises(
        ConfigError, match=r"names no run: write RUN=NAME with one of fedavg, lr-0\.5"
    ):
        read_labels(["other=x"], groups)


def test_tables_of_other_algorithms_and_compressors_are_not_compared() -> None:
    paq = {"algorithm": "fedpaq", "compressor": "qsgd"}
    one = run("a", **paq, **{"qsgd.levels": 1, "topk.ratio": 0.1, "fedprox.mu": 0.1})
    two = run("b", **paq, **{"qsgd.levels": 2, "topk.ratio": 0.2, "fedprox.mu": 0.2})
    assert differing_keys([one, two]) == ["qsgd.levels"]
    assert what_varies([one, two]) == "quantization levels"
    quadratic = one.config | {"dataset": "quadratic"}
    for key, config, read in (
        ("results-dir", one.config, False),
        ("seed", one.config, True),
        ("data-dir", one.config | {"dataset": "mnist"}, False),
        ("data-dir", one.config | {"dataset": "elsewhere"}, True),
        ("partition-alpha", one.config | {"partition": "iid"}, False),
        ("partition-alpha", one.config | {"partition": "dirichlet"}, True),
        ("partition-alpha", {}, True),  # who knows
        ("quadratic.heterogeneity", quadratic, True),
        ("quadratic.heterogeneity", one.config | {"dataset": "mnist"}, False),
        ("model", quadratic, False),
    ):
        assert (key not in unread([key], config)) is read, (key, config)


def test_titles_name_the_algorithm_alone_if_every_curve_has_another() -> None:
    paq = run("a", algorithm="fedpaq", lr=0.1, local_steps=5)
    other = run("b", algorithm="fedpaq", lr=0.2, local_steps=2)
    avg = run("c", lr=0.3, local_steps=1)
    assert what_varies([paq, avg], ["algorithm", "local-steps"]) == "algorithm"
    assert what_varies([paq, other, avg], ["algorithm", "local-steps"]) == (
        "local steps per round, algorithm"
    )


def test_a_key_that_one_run_reads_does_not_differ() -> None:
    avg, prox = run("a"), run("b", algorithm="fedprox", **{"fedprox.mu": 0.5})
    assert differing_keys([avg, prox]) == ["algorithm"]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_key_of_an_algorithm_is_read_by_it(name: str) -> None:
    config = run("a", algorithm=name).config
    keys = ALGORITHMS[name].keys()
    assert not unread(keys, config)
