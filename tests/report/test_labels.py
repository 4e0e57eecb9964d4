"""What runs are called, and which keys of their configs are compared."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.errors import ConfigError
from fedapp.names import DISPLAY_NAMES, display_name
from fedapp.parsing import parse_run_config
from fedapp.registry import ALGORITHMS
from fedapp.report.labels import (
    dataset_name,
    differing_keys,
    in_words,
    labelled,
    labels_of,
    names_of,
    read_labels,
    runs_named,
    unread,
    what_runs_are,
    what_varies,
)
from fedapp.report.runs import Group, Run
from fedapp.report.status import State, Status
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


def names(*runs: Run) -> list[str]:
    return [label for label, _ in labelled(runs)]


def test_a_name_is_the_algorithm_and_the_keys_that_tell_its_settings_apart() -> None:
    avg = [run(f"x-{lr}", lr=lr) for lr in (0.1, 0.2)]
    assert names(avg[0], run("y", algorithm="fedpaq", lr=0.5)) == ["FedAvg", "FedPAQ"]
    paq: dict[str, Value] = {"algorithm": "fedpaq", "compressor": "qsgd", "lr": 0.5}
    two = [run(f"z-{k}", **paq | {"qsgd.levels": k, "fedprox.mu": 0.1 * k}) for k in (1, 8)]
    assert names(*avg, *two) == [
        "FedAvg, lr = 0.1",
        "FedAvg, lr = 0.2",
        "FedPAQ, levels = 1",
        "FedPAQ, levels = 8",
    ]


def test_keys_that_go_with_another_one_are_left_out() -> None:
    two = [run(str(k), local_steps=k, num_rounds=60 // k, batch_size=5 * k) for k in (1, 2)]
    assert names(*two) == ["FedAvg, local-steps = 1", "FedAvg, local-steps = 2"]
    three = [run("a", batch_size=10, num_rounds=5), run("b", num_rounds=6), run("c", num_rounds=7)]
    assert names(*three) == [f"FedAvg, num-rounds = {k}" for k in (5, 6, 7)]
    prox: dict[str, Value] = {"algorithm": "fedprox", "moon.mu": 0.1, "server_data": True}
    both = [run("a", **prox), run("b", **prox | {"moon.mu": 1.0, "server_data": False})]
    assert names(*both) == ["FedProx, server-data = true", "FedProx, server-data = false"]


def test_runs_of_one_setting_have_their_seeds_or_what_is_special_in_their_names() -> None:
    assert names(run("a", lr=0.1), run("a", algorithm="fedprox")) == ["FedAvg", "FedProx"]
    running = Status(State.RUNNING, 1, 2)
    one, two = (Run(f"x-{k}", run("x", seed=k).config, [], running) for k in (0, 1))
    assert names(one, two) == [
        "FedAvg, seed = 0 (running, 1 of 2 rounds)",
        "FedAvg, seed = 1 (running, 1 of 2 rounds)",
    ]
    assert names(run("x-0"), two) == [
        "FedAvg, seed = 0 (1 of 2 seeds complete)",
        "FedAvg, seed = 1 (running, 1 of 2 rounds)",
    ]
    again = "same config and seed as"
    assert names(run("old-try"), run("new-try")) == [
        "FedAvg, old",
        f"FedAvg, new ({again} old-try)",
    ]
    times = [f"digits-20261119-03315{k}" for k in (0, 4)]
    assert names(run(times[0]), run(f"better-{times[1]}")) == [
        "FedAvg",
        f"FedAvg, better ({again} {times[0]})",
    ]
    assert names(*map(run, times)) == [
        "FedAvg, 20261119-033150",
        f"FedAvg, 20261119-033154 ({again} {times[0]})",
    ]


def test_keys_that_a_run_does_not_read_are_named_only_where_nothing_else_differs() -> None:
    prox = [run(f"p-{mu}", algorithm="fedprox", **{"fedprox.mu": mu}) for mu in (0.1, 1.0)]
    avg = [run(f"a-{mu}", **{"fedprox.mu": mu}) for mu in (0.1, 1.0)]
    assert names(*prox, avg[0]) == ["FedProx, mu = 0.1", "FedProx, mu = 1.0", "FedAvg"]
    assert names(*prox, *avg)[2:] == ["FedAvg, fedprox.mu = 0.1", "FedAvg, fedprox.mu = 1.0"]


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=5, unique=True))
def test_two_runs_never_share_a_name(given: list[str]) -> None:
    groups = [Group(name, [replace(run("x"), name=name)]) for name in given]
    found = names_of(groups)
    assert len(set(found)) == len(found)
    assert all(found)


def test_panels_are_found_by_the_beginning_of_any_name() -> None:
    runs = [run(f"try-{name}", algorithm=name) for name in ("fedprox", "fedproxm", "scaffold")]
    runs += [run("try-s-1", lr=0.3)]
    for word, found in {
        "fedprox": [0],
        "FedProxM": [1],
        "fedp": [0, 1],
        "sca": [2],
        "s": [3],
        "try-s": [3],
        "try-fed": [0, 1],
        "FedAvg": [3],
        "fed": [0, 1, 3],
    }.items():
        assert runs_named(word, runs) == [runs[k] for k in found], word
    with pytest.raises(ConfigError, match=r"FedProx; FedProxM; SCAFFOLD; FedAvg; .* try-fedprox;"):
        runs_named("rho", runs)


def test_labels_are_given_by_the_name_of_a_run_or_of_what_the_legend_shows() -> None:
    two = [run("x-fedavg-seed-0"), run("x-fedavg-seed-1", seed=1)]
    groups = [Group("fedavg", two), Group("lr-0.5", [run("x-lr-0.5", lr=0.5)], "1 of 2")]
    for known in ("fedavg", "FedAvg, lr = 0.2", "x-fedavg-seed-1"):
        given = read_labels([f"{known}=a = b", "FedAvg, lr = 0.5=large steps"], [groups])
        assert labels_of(groups, given) == ["a = b", "large steps (1 of 2)"]
    with pytest.raises(ConfigError, match=r"write RUN=NAME with one of FedAvg, lr = 0\.2; "):
        read_labels(["other=x"], [groups])


def test_tables_of_other_algorithms_and_compressors_are_not_compared() -> None:
    paq: dict[str, Value] = {"algorithm": "fedpaq", "compressor": "qsgd"}
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


def test_axes_and_titles_use_words() -> None:
    keys = ("gradma.beta1", "batch-size", "lr")
    assert [in_words(key) for key in keys] == ["beta1", "batch size", "local step size"]
    assert dataset_name("cifar100") == "CIFAR-100"
    assert dataset_name("own.module:scans") == "scans"
    runs = [run("a", algorithm="gradma", dataset="fashion_mnist"), run("b", dataset="mnist")]
    assert what_runs_are(runs[:1]) == "GradMA, Fashion-MNIST"
    assert what_runs_are(runs) == "GradMA and FedAvg, Fashion-MNIST and MNIST"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_key_of_an_algorithm_is_read_by_it(name: str) -> None:
    config = run("a", algorithm=name).config
    keys = ALGORITHMS[name].keys()
    assert not unread(keys, config)
