"""Keys that are set and make no difference are named, once."""

import logging
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp import run, sweep
from fedapp.keys import declared_keys
from fedapp.parsing import config_type, parse_run_config
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from fedapp.unused import COLUMNS, USED_ABOVE_0, USED_AT_0, USED_WITH, unused_keys, warning

SMALL: dict[str, Value] = {
    "dataset": "quadratic", "num-clients": 2, "clients-per-round": 2, "num-rounds": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "unused"),
    [
        ({}, {}),
        ({"fedprox.mu": 0.5}, {"fedprox.mu": "algorithm is fedavg"}),
        ({"fedprox.mu": 0.01}, {}),  # the default
        ({"algorithm": "fedprox", "fedprox.mu": 0.5}, {}),
        ({"algorithm": "gradma-w", "gradma.beta1": 0.1}, {"gradma.beta1": "algorithm is gradma-w"}),
        ({"algorithm": "gradma-w", "gradma.scope": "model"}, {}),
        ({"algorithm": "gradma-s", "gradma.beta1": 0.1}, {}),
        ({"qsgd.levels": 7}, {"qsgd.levels": "compressor is none"}),
        ({"algorithm": "fedpaq", "qsgd.levels": 7}, {}),
        ({"compressor": "topk", "topk.ratio": 0.5}, {}),
        ({"compressor": "topk", "topk.values": "uniform", "uniform.bits": 3}, {}),
        ({"compressor": "topk", "uniform.bits": 3}, {"uniform.bits": "compressor is topk"}),
        ({"quadratic.dim": 3}, {"quadratic.dim": "the problem is classification"}),
        ({"dataset": "quadratic", "quadratic.dim": 3}, {}),
        ({"dataset": "quadratic", "model": "lenet5"}, {"model": "the problem is quadratic"}),
        ({"vit.image-size": 32}, {"vit.image-size": "model is mlp-200"}),
        ({"lr-decay": 0.5}, {"lr-decay": "lr-schedule is constant"}),
        ({"lr-decay": 0.5, "lr-schedule": "exponential"}, {}),
        ({"local-steps": 3, "local-epochs": 2}, {"local-steps": "local-epochs is 2"}),
        (
            {"features": "a b", "target": "y", "hostile": 0.2},
            {
                "features": "the problem is classification",
                "target": "the problem is classification",
                "hostile": "aggregation is mean",
            },
        ),
        ({"dataset": "wine", "features": "a b", "target": "y", "group": "g"}, {}),
        ({"problem": "text-classification", "features": "a", "target": "y", "group": "g"}, {}),
        (
            {"dataset": "shakespeare", "features": "a", "target": "y", "group": "g"},
            {"target": "the problem is next-character"},
        ),
        ({"dataset": "some.module:data", "features": "a b", "target": "y"}, {}),
        ({"model": "logistic", "group": "g"}, {"group": "the problem is linear"}),
        ({"hostile": 0.2, "aggregation": "median"}, {}),
        ({"hostile": 0.2, "mixing": "nnm"}, {}),
        ({"compressor": "dithered", "dithered.step": 0.5}, {}),
        (
            {"compressor": "dithered", "dithered.step": 0.5, "dithered.nmse": 0.1},
            {"dithered.step": "dithered.nmse is 0.1"},
        ),
        ({"compressor": "contextual", "contextual.step": 0.5}, {}),
        (
            {"compressor": "contextual", "contextual.step": 0.5, "contextual.nmse": 0.1},
            {"contextual.step": "contextual.nmse is 0.1"},
        ),
        (
            {"compressor": "contextual", "contextual.step": 0.5, "contextual.max-bytes": 900},
            {"contextual.step": "contextual.max-bytes is 900"},
        ),
        ({"dp.delta": 0.5}, {"dp.delta": "dp.clip is 0"}),
        ({"dp.delta": 0.5, "dp.clip": 1.0}, {}),
    ],
)
def test_a_key_that_makes_no_difference_is_found(
    keys: dict[str, Value], unused: dict[str, str]
) -> None:
    assert unused_keys(parse_run_config(keys)) == unused


@given(st.sampled_from(sorted(ALGORITHMS)))
def test_no_algorithm_ignores_its_own_keys(name: str) -> None:
    own = [key for key in list(ALGORITHMS[name].keys()) if "." in key]
    others = {f"{k.path}" for k in declared_keys(config_type()) if k.table == "feddyn"}
    values = parse_run_config({"algorithm": name}).flat()
    changed: dict[str, Value] = {
        key: 0.25 for key in [*own, *others] if isinstance(values[key], float)
    }
    expected = set() if name == "feddyn" else others
    assert unused_keys(parse_run_config({"algorithm": name} | changed)).keys() == expected


def test_the_keys_in_the_tables_are_declared() -> None:
    declared = {key.path for key in declared_keys(config_type())}
    assert {*USED_WITH, *(key for key, _ in USED_WITH.values())} <= declared
    assert {*USED_AT_0, *chain(*USED_AT_0.values()), *COLUMNS, "hostile"} <= declared
    assert {*USED_ABOVE_0, *USED_ABOVE_0.values()} <= declared


def test_of_several_runs_only_what_none_of_them_uses_is_named() -> None:
    runs = [
        parse_run_config({"algorithm": name, "fedprox.mu": 0.5, "feddyn.alpha": 0.5})
        for name in ("fedavg", "fedprox")
    ]
    assert warning(runs) == "Not used by any of these runs: feddyn.alpha (algorithm is fedavg)."
    assert warning(runs[:1]).startswith("Not used by this run: fed")
    assert warning([]) == warning([parse_run_config({})]) == ""


def test_a_sweep_says_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = SMALL | {"feddyn.alpha": 0.5, "results-dir": str(tmp_path)}
    with caplog.at_level(logging.WARNING, "flwr"):
        run(keys)
        sweep(keys, {"seed": [0, 1]})
    said = [r.getMessage() for r in caplog.records if "Not used by" in r.getMessage()]
    assert said == [
        "Not used by this run: feddyn.alpha (algorithm is fedavg).",
        "Not used by any of these runs: feddyn.alpha (algorithm is fedavg).",
    ]
