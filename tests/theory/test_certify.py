"""`fedapp certify`: constants, conditions, and the largest admissible step sizes."""

import json
import math
from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from fedapp.theory.certify import _steepness, certificate
from fedapp.theory.constants import exact_setting
from fedapp.theory.hypotheses import (
    HYPOTHESES,
    NAMES,
    Condition,
    Hypotheses,
    Setting,
    fedcet_constants,
    fedpaq_1,
    largest,
)
from fedapp.theory.played import quadratic_of
from fedapp.theory.within.trails import admissible
from tests.support.commands import fedapp

QUADRATIC: dict[str, Value] = {
    "dataset": "quadratic",
    "dtype": "float64",
    "num-clients": 4,
    "clients-per-round": 4,
    "local-steps": 4,
    "quadratic.dim": 8,
    "quadratic.condition": 5.0,
}
SETTINGS = st.builds(
    Setting,
    L=st.floats(0.1, 10),
    mu=st.floats(0.01, 0.1),
    sigma2=st.just(0.0),
    rho2=st.just(0.0),
    q=st.floats(0, 5),
    n=st.just(8),
    r=st.just(8),
    tau=st.integers(1, 8),
    eta=st.floats(1e-6, 10),
    gamma=st.floats(0.1, 10),
    beta1=st.floats(0, 0.9),
    blocks=st.integers(1, 4),
)


def compresses(theorem: Hypotheses) -> bool:
    return theorem.name.startswith(("FedPAQ", "FedCOM"))


def for_theorem(theorem: Hypotheses, s: Setting) -> Setting:
    """Return a setting that meets what no step size can."""
    if theorem.name.startswith("FedPAQ"):
        return replace(s, gamma=1.0)
    return s if compresses(theorem) else replace(s, q=0.0)


@given(SETTINGS, st.sampled_from(HYPOTHESES[1:]), st.sampled_from(["lr", "server-lr"]))
def test_the_largest_step_size_is_the_border(s: Setting, theorem: object, key: str) -> None:
    hypotheses = next(h for h in HYPOTHESES if h is theorem)
    s = for_theorem(hypotheses, s)
    found = largest(hypotheses, s, key)
    if found is None or found == inf:
        return
    assert hypotheses.hold(replace(s, **{NAMES[key]: found}))  # type: ignore[arg-type]
    assert not hypotheses.hold(replace(s, **{NAMES[key]: 1.001 * found}))  # type: ignore[arg-type]


@given(SETTINGS, st.sampled_from(HYPOTHESES[1:]))
def test_the_largest_tau_is_the_border(s: Setting, theorem: object) -> None:
    hypotheses = next(h for h in HYPOTHESES if h is theorem)
    s = for_theorem(hypotheses, replace(s, gamma=1.0))
    found = largest(hypotheses, s, "tau")
    if found is None or found == inf:
        return
    assert hypotheses.hold(replace(s, tau=int(found)))
    assert not hypotheses.hold(replace(s, tau=int(found) + 1))


def test_fedcets_constants_by_hand() -> None:
    rho, root = 0.55, sqrt(0.55)
    below = sqrt(4 * rho - (2 * rho) ** 2)
    A4 = max(2 / below, (2 * root + 2) / below, 2 * root / below * (1 + root))
    B2 = 3 + 6 * rho**2 * A4**2 / (2 * (1 - root) ** 2)
    found = fedcet_constants(1, 0.45)
    assert pytest.approx((A4, B2)) == (found.A4, found.B2)
    assert pytest.approx(6 * A4**2 / 0.9) == found.B1


def test_the_power_method_finds_the_largest_eigenvalue() -> None:
    config = parse_run_config(QUADRATIC)
    problem = quadratic_of(config)
    estimated = _steepness(problem, config, 1, torch.zeros(8, dtype=torch.float64))
    assert estimated == pytest.approx(float(np.linalg.eigvalsh(problem.A[1]).max()), rel=0.05)


def test_constants_of_quadratics_are_exact() -> None:
    more: dict[str, Value] = {"quadratic.hessians": "shared", "quadratic.noise": 0.5}
    config = parse_run_config(QUADRATIC | more | {"algorithm": "fedcom", "weight-decay": 0.1})
    s = exact_setting(config)
    assert (s.L, s.mu, s.sigma2) == pytest.approx((1.1, 0.3, 2.0))
    problem = quadratic_of(config)
    gradients = np.array([A @ b for A, b in zip(problem.A.numpy(), problem.b.numpy(), strict=True)])
    assert s.rho2 == pytest.approx(((gradients - gradients.mean(0)) ** 2).sum(1).mean())
    assert exact_setting(parse_run_config(QUADRATIC | {"algorithm": "fedcom"})).rho2 == inf


def test_a_run_within_the_hypotheses_is_certified_and_one_beyond_is_not() -> None:
    keys: dict[str, Value] = {"algorithm": "fedcomgate", "compressor": "none"}
    found = certificate(parse_run_config(QUADRATIC | keys | {"lr": 0.02}))
    assert [theorem["applies"] for theorem in found["theorems"]] == [True, True]
    most = found["theorems"][0]["largest"]["lr"]
    assert most == pytest.approx(1 / (4 * sqrt(30)), rel=1e-3)  # 30 eta^2 L^2 tau^2 = 1
    beyond = certificate(parse_run_config(QUADRATIC | keys | {"lr": 0.2}))["theorems"][0]
    failed = {c["text"]: c["factor"] for c in beyond["conditions"] if not c["holds"]}
    assert failed["30 eta^2 L^2 tau^2 <= 1"] == pytest.approx(30 * 0.8**2)


def test_the_command_speaks_in_words_and_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "certify",
        "-c",
        'algorithm="fedcom"',
        "-c",
        "num-clients=4",
        "-c",
        "clients-per-round=4",
    ]
    assert fedapp(monkeypatch, *words) == 0
    told = capsys.readouterr().out
    assert "estimate at the start" in told
    assert "FedCOM, theorem D.4 does not apply" in told
    assert "times too large" in told
    assert len(told.splitlines()) <= 40
    assert fedapp(monkeypatch, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["constants"]["L"][0] > 0
    assert found["constants"]["sigma^2"][0] > 0
    assert {"lr", "server-lr", "tau"} == set(found["theorems"][0]["largest"])


@pytest.mark.parametrize("theorem", HYPOTHESES, ids=lambda h: h.name)
def test_theorems_hold_only_for_the_messages_that_they_are_about(theorem: Hypotheses) -> None:
    within = Setting(
        L=1, mu=0.1, sigma2=0, rho2=0, q=0, n=8, r=8, tau=2, eta=1e-6, rounds=10**6
    )  # fmt: skip
    if theorem.conditions is fedpaq_1:
        within = replace(within, eta=40.0, inverse=True)
    assert theorem.hold(within)
    changing = replace(within, constant=False)
    assert theorem.hold(changing) == (theorem.conditions is fedpaq_1), "another lr in each round"
    assert not theorem.hold(replace(within, q=inf)), "a biased compressor"
    assert theorem.hold(replace(within, q=1e-9)) == compresses(theorem)
    if theorem.name.startswith("FedPAQ"):
        assert not theorem.hold(replace(within, gamma=0.25))


def test_of_several_runs_the_one_that_fails_is_shown() -> None:
    for late in ((900.0, 1000.0), (math.nan, 1.0)):
        for order in (1, -1):
            both = [Condition("k_0", *late), Condition("k_0", 500.0, 400.0)][::order]
            found = admissible([[both[0]], [both[1]]])
            assert not found.holds


def test_what_no_theorem_knows_of_is_named() -> None:
    keys: dict[str, Value] = {"algorithm": "fedcom", "downlink": "grid", "clip-gradient": 1.0}
    notes = certificate(parse_run_config(QUADRATIC | keys))["notes"]
    assert 'The theorems know nothing of downlink = "grid", clip-gradient.' in notes


@pytest.mark.parametrize(
    ("keys", "constant"),
    [
        ({}, True),
        ({"lr-schedule": "inverse-sqrt"}, True),  # 1/sqrt(num-rounds tau) in every round
        ({"lr-schedule": "exponential", "lr-decay": 1.0}, True),
        ({"lr-schedule": "exponential", "lr-decay": 0.9999}, False),
        ({"lr-schedule": "inverse"}, False),
        ({"warmup-rounds": 1}, False),
        ({"lr-schedule": "inverse-sqrt", "warmup-rounds": 50}, False),
    ],
)
def test_step_sizes_that_change_are_not_certified(keys: dict[str, Value], constant: bool) -> None:
    run = QUADRATIC | {"algorithm": "fedcet", "local-steps": 1, "lr": 0.003, "num-rounds": 100}
    found = certificate(parse_run_config(run | keys))
    assert [theorem["applies"] for theorem in found["theorems"]] == [constant, constant]
    failed = [c["text"] for c in found["theorems"][0]["conditions"] if not c["holds"]]
    assert failed == (
        [] if constant else ["the same lr in every round (lr-schedule, warmup-rounds)"]
    )
    assert any("warmup-rounds" in note for note in found["notes"]) == ("warmup-rounds" in keys)


def test_fedpaqs_theorem_1_has_no_warm_up() -> None:
    keys: dict[str, Value] = {"algorithm": "fedpaq", "lr-schedule": "inverse", "lr": 4.0}
    assert exact_setting(parse_run_config(QUADRATIC | keys)).inverse
    assert not exact_setting(parse_run_config(QUADRATIC | keys | {"warmup-rounds": 3})).inverse


def test_an_algorithm_without_a_theorem_is_told_so() -> None:
    found = certificate(parse_run_config(QUADRATIC | {"algorithm": "scaffold"}))
    assert found["theorems"] == []
