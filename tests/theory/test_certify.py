"""`fedapp certify`: constants, conditions, and the largest admissible step sizes."""

import json
import math
import re
from dataclasses import replace
from math import inf, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.erm import LinearERM
from fedapp.tables import Value
from fedapp.theory.certify import _steepness, as_text, certificate, constants_of
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
    blocks=st.sampled_from([1, 2, 4]),
    own_mu=st.floats(0.01, 0.1),
)


def compresses(theorem: Hypotheses) -> bool:
    return theorem.name.startswith(("FedPAQ", "FedCOM"))


def for_theorem(theorem: Hypotheses, s: Setting, key: str) -> Setting:
    """Return a setting that meets what this key cannot repair."""
    if theorem.name.startswith("FedPAQ"):
        s = replace(s, gamma=s.gamma if key == "server-lr" else 1.0)
    if theorem.conditions is fedpaq_1:
        s = replace(s, eta=s.eta if key == "lr" else 4 / s.mu, inverse=True, rounds=20_000)
    if theorem.name.startswith("FedBCGD"):
        s = replace(s, beta1=0.0)
    return s if compresses(theorem) else replace(s, q=0.0)


@given(
    SETTINGS,
    st.sampled_from(HYPOTHESES),
    st.sampled_from(["lr", "server-lr"]),
    st.floats(1.001, 1e9),
    st.floats(1e-9, 1e9),
)
def test_the_largest_step_size_is_the_border(
    s: Setting, theorem: object, key: str, larger: float, other: float
) -> None:
    hypotheses = next(h for h in HYPOTHESES if h is theorem)
    s = for_theorem(hypotheses, s, key)
    found = largest(hypotheses, s, key)

    def holds(value: float) -> bool:
        return hypotheses.hold(replace(s, **{NAMES[key]: value}))  # type: ignore[arg-type]

    if found is None:
        assert not holds(other)
    elif found == inf:
        assert holds(other)
    else:
        assert holds(found)
        assert not holds(1.001 * found)
        assert not holds(larger * found)


@given(SETTINGS, st.sampled_from(HYPOTHESES), st.integers(1, 10**6))
def test_the_largest_tau_is_the_border(s: Setting, theorem: object, larger: int) -> None:
    hypotheses = next(h for h in HYPOTHESES if h is theorem)
    s = for_theorem(hypotheses, s, "tau")
    found = largest(hypotheses, s, "tau")
    if found is None:
        assert not hypotheses.hold(replace(s, tau=larger))
    elif found == inf:
        assert hypotheses.hold(replace(s, tau=10**6))
    else:
        assert hypotheses.hold(replace(s, tau=int(found)))
        assert not hypotheses.hold(replace(s, tau=int(found) + larger))


ONE = Setting(L=1, mu=0.8, sigma2=0, rho2=0, q=0, n=8, r=8, tau=5, eta=5, rounds=100, inverse=True)


@pytest.mark.parametrize(
    ("theorem", "change", "key", "found"),
    [
        ("FedPAQ, theorem 1", {"eta": 0.1}, "lr", 5.0),
        ("FedPAQ, theorem 1", {"eta": 0.1}, "tau", None),
        ("FedPAQ, theorem 1", {"eta": 0.1, "inverse": False}, "lr", None),
        ("FedPAQ, theorem 1", {"gamma": 0.5}, "server-lr", 1.0),
        ("FedPAQ, theorem 1", {"gamma": 0.5}, "lr", None),
        # k_0 = 16 n/(mu^2 tau) = 200/tau, and 16 at least
        ("FedPAQ, theorem 1", {"tau": 1}, "tau", inf),
        ("FedPAQ, theorem 1", {"tau": 1}, "lr", None),
        ("FedPAQ, theorem 1", {"tau": 1, "rounds": 15}, "tau", None),
        ("FedPAQ, theorem 2", {"gamma": 0.5, "tau": 1, "eta": 0.5}, "server-lr", 1.0),
        # gain: lr c (tau + 3)/2 < 1; for small lr alpha L sqrt(B_2) grows
        ("FedCET, theorem 1", {"c": 1e5, "eta": 1e-9, "tau": 4}, "lr", 2 / 7e5),
        ("FedCET, theorem 1", {"c": 3000.0, "eta": 1e-9, "tau": 4}, "lr", 2 / 21e3),
        ("FedCET, theorem 1", {"c": 1e-6, "eta": 1e-9, "tau": 4}, "lr", None),
    ],
)
def test_the_largest_value_is_found_where_smaller_ones_fail(
    theorem: str, change: dict[str, float], key: str, found: float | None
) -> None:
    (hypotheses,) = [one for one in HYPOTHESES if one.name == theorem]
    s = replace(ONE, **change)  # type: ignore[arg-type]
    assert largest(hypotheses, s, key) == (found and pytest.approx(found, rel=1e-3))


def test_a_window_narrower_than_the_scan_is_found() -> None:
    def conditions(s: Setting) -> list[Condition]:
        return [Condition("near", abs(s.eta - 0.0123), 1e-5)]

    found = largest(Hypotheses("", (), conditions, ""), ONE, "lr")
    assert found == pytest.approx(0.01231, rel=1e-4)


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
        L=1, mu=0.1, sigma2=0, rho2=0, q=0, n=8, r=8, tau=2, eta=1e-6, rounds=10**6, own_mu=0.1
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


@pytest.mark.parametrize("theorem", HYPOTHESES, ids=lambda h: h.name)
def test_which_theorems_allow_some_clients_to_be_away(theorem: Hypotheses) -> None:
    within = Setting(
        L=1, mu=0.1, sigma2=0, rho2=0, q=0, n=8, r=4, tau=2, eta=1e-6, rounds=10**6, own_mu=0.1
    )  # fmt: skip
    if theorem.conditions is fedpaq_1:
        within = replace(within, eta=40.0, inverse=True)
    assert theorem.hold(within) == theorem.name.startswith(("FedPAQ", "GradMA", "FedBCGD"))
    assert theorem.hold(replace(within, r=8))


OWN: dict[str, Value] = {
    "lr": 1e-3,
    "local-steps": 2,
    "clients-per-round": 4,
    "fedbcgd.blocks": 2,
    "fedbcgd.momentum": 0.0,
}
SHARED: dict[str, Value] = {"quadratic.hessians": "shared"}
CONVEX, STRONGLY = "every f_i is convex", "every f_i is strongly convex"
BOUNDED = "bounded heterogeneity: mean |grad f_i - grad f|^2 < infinity"
MEAN = "eq. 72: c = mean c_i (fedbcgd.control)"
STILL = "z = x, as in both proofs: fedbcgd.momentum = 0"


def failing(keys: dict[str, Value], theorem: int = 0) -> set[str]:
    """Return what a config does not satisfy."""
    found = certificate(parse_run_config(OWN | keys))["theorems"][theorem]
    failed = {c["text"] for c in found["conditions"] if not c["holds"]}
    assert found["applies"] == (not failed)
    return failed


def on_quadratics(algorithm: str, **more: Value) -> dict[str, Value]:
    return QUADRATIC | OWN | {"algorithm": algorithm} | more


def test_fedbcgds_theorem_1_needs_convex_clients() -> None:
    assert failing(on_quadratics("fedbcgd") | SHARED) == set()
    flat: dict[str, Value] = {"quadratic.flat": 3}
    assert failing(on_quadratics("fedbcgd") | SHARED | flat) == set(), "convex is enough"
    few: dict[str, Value] = {"num-clients": 4, "algorithm": "fedbcgd"}
    sigmoid: dict[str, Value] = {"dataset": "digits", "model": "sigmoid-erm"}
    assert failing(few | sigmoid) == {CONVEX}
    assert failing(few | {"dataset": "digits", "model": "logistic"}) == set()
    assert CONVEX in failing(few), "a network"


def test_fedbcgds_theorem_1_needs_bounded_heterogeneity() -> None:
    assert failing(on_quadratics("fedbcgd")) == {BOUNDED}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fedbcgds_theorem_2_needs_strongly_convex_clients(dtype: str) -> None:
    keys = on_quadratics("fedbcgd-plus") | {"dtype": dtype}
    assert failing(keys) == set()
    assert failing(keys | {"quadratic.flat": 3}) == {STRONGLY}


@pytest.mark.parametrize("control", ["printed", "equation-71", "scaled"])
def test_fedbcgds_theorem_2_needs_c_to_be_the_mean(control: str) -> None:
    assert failing(on_quadratics("fedbcgd-plus") | {"fedbcgd.control": control}) == {MEAN}


def test_fedbcgds_theorems_need_z_to_be_x() -> None:
    """Lemmas 5 and 13 start local steps at z; with momentum 0.99 equation 51 fails (`fedapp theory fedbcgd-51`)."""
    heavy: dict[str, Value] = {"fedbcgd.momentum": 0.1}
    assert failing(on_quadratics("fedbcgd") | SHARED | heavy) == {STILL}
    assert failing(on_quadratics("fedbcgd-plus") | heavy) == {STILL}


def test_fedbcgds_theorems_need_equal_groups() -> None:
    uneven: dict[str, Value] = {"fedbcgd.blocks": 3}
    text = {"clients-per-round a multiple of the blocks"}
    assert failing(on_quadratics("fedbcgd") | SHARED | uneven) == text
    assert failing(on_quadratics("fedbcgd-plus") | uneven) == text


def test_fedpaqs_theorem_1_needs_strong_convexity_and_theorem_2_does_not() -> None:
    keys = on_quadratics("fedpaq", **{"quadratic.heterogeneity": 0.0}) | SHARED
    flat: dict[str, Value] = {"quadratic.flat": 3}
    assert failing(keys | flat) - failing(keys) == {STRONGLY}
    assert failing(keys | flat, 1) == set()


def test_gradmas_lemma_needs_bounded_heterogeneity() -> None:
    assert failing(on_quadratics("gradma") | SHARED) == set()
    assert failing(on_quadratics("gradma")) == {BOUNDED}


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"quadratic.noise": 0.1}, "full gradients: sigma^2 = 0"),
        ({"lr-schedule": "inverse"}, "the same lr in every round (lr-schedule, warmup-rounds)"),
        ({"compressor": "qsgd"}, "no compression: q = 0"),
    ],
)
def test_gradmas_lemma_is_about_full_gradients_one_step_size_and_no_compression(
    keys: dict[str, Value], text: str
) -> None:
    assert failing(on_quadratics("gradma") | SHARED | keys) == {text}


@pytest.mark.parametrize(
    ("algorithm", "beta1"), [("gradma", 0.3), ("gradma-s", 0.3), ("gradma-w", 0)]
)
def test_gradmas_momentum_is_its_server_s(algorithm: str, beta1: float) -> None:
    """GradMA-W's server is FedAvg's, whatever gradma.beta1 says."""
    s = exact_setting(parse_run_config(on_quadratics(algorithm) | {"gradma.beta1": 0.3}))
    assert s.beta1 == beta1


@pytest.mark.parametrize("algorithm", ["gradma", "gradma-s"])
def test_a_run_with_a_memory_of_more_vectors_than_parameters_is_not_certified(
    algorithm: str,
) -> None:
    keys = on_quadratics(algorithm) | SHARED | {"num-clients": 9, "gradma.memory-size": 8}
    assert failing(keys) == set()
    with pytest.raises(ConfigError, match=r"m = 9 .* d = 8"):
        failing(keys | {"gradma.memory-size": 9})
    assert failing(keys | {"algorithm": "gradma-w", "gradma.memory-size": 9}) == set()


def test_gradmas_lemma_is_certified_for_bounded_losses_only() -> None:
    """That eps_l and eps_g exist is an assumption which no run can be asked for before it."""
    (theorem,) = certificate(parse_run_config(on_quadratics("gradma") | SHARED))["theorems"]
    assert theorem["applies"]
    assert theorem["concludes"].endswith("if eps_l and eps_g are finite")


def test_mu_of_every_client_is_the_smallest_of_all() -> None:
    config = parse_run_config(on_quadratics("fedbcgd-plus"))
    s, smallest = exact_setting(config), np.linalg.eigvalsh(quadratic_of(config).A.numpy()).min()
    assert s.own_mu == pytest.approx(smallest)
    assert s.own_mu < 0.9 * s.mu, "the mean of the clients' quadratics is steeper"


def test_of_several_runs_the_one_that_fails_is_shown() -> None:
    for late in ((900.0, 1000.0), (math.nan, 1.0)):
        for order in (1, -1):
            both = [Condition("k_0", *late), Condition("k_0", 500.0, 400.0)][::order]
            found = admissible([[both[0]], [both[1]]])
            assert not found.holds


GATE: dict[str, Value] = {
    "algorithm": "fedcomgate",
    "compressor": "qsgd",
    "qsgd.levels": 8,
    "lr": 0.01,
}
FEDCOM: dict[str, Value] = {
    "algorithm": "fedcom",
    "compressor": "none",
    "quadratic.hessians": "shared",
}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (FEDCOM | {"clip-gradient": 1.0, "downlink": "grid"}, 'downlink = "grid", clip-gradient'),
        (FEDCOM | {"client-optimizer": "momentum"}, 'client-optimizer = "momentum"'),
        (FEDCOM | {"aggregation": "median"}, 'aggregation = "median"'),
        (FEDCOM | {"max-update-norm": 1.0}, "max-update-norm"),
        (FEDCOM | {"compressor": "qsgd", "error-feedback": True}, "error-feedback"),
        (FEDCOM | {"compressor": "qsgd", "uplink-budget": "60 B"}, "uplink-budget"),
        (GATE | {"fedcomgate.track": "own"}, 'fedcomgate.track = "own"'),
        (GATE | {"fedcomgate.memory": "paper"}, 'fedcomgate.memory = "paper"'),
        (GATE | {"fedcomgate.damping": 0.5}, "damping = 0.5 of gradient tracking"),
        (GATE | {"qsgd.levels": 1}, "of gradient tracking"),
    ],
)
def test_no_theorem_applies_to_what_none_of_them_knows_of(
    keys: dict[str, Value], named: str
) -> None:
    found = certificate(parse_run_config(QUADRATIC | keys))
    assert found["theorems"]
    for theorem in found["theorems"]:
        assert not theorem["applies"]
        (text,) = (c["text"] for c in theorem["conditions"] if c["text"].startswith("the algo"))
        assert named in text
    assert named in as_text(found)


def test_with_the_printed_rule_it_does_apply() -> None:
    coarse: dict[str, Value] = {"qsgd.levels": 1, "fedcomgate.damping": 1.0}
    for keys in (GATE, GATE | coarse):
        found = certificate(parse_run_config(QUADRATIC | keys | {"lr": 0.001}))
        assert [theorem["applies"] for theorem in found["theorems"]] == [True, True]
    assert "q = " in found["notes"][0]


def test_the_steps_of_all_clients_are_counted_not_of_a_sample() -> None:
    keys: dict[str, Value] = {
        "algorithm": "fedgate", "num-clients": 40, "partition": "dirichlet", "partition-alpha": 0.1,
        "local-epochs": 1, "batch-size": 4, "model": "logreg",
    }  # fmt: skip
    config = parse_run_config(keys)
    problem = make_problem(config)
    sizes = [problem.objective(client).num_examples for client in range(40)]
    found = certificate(config)
    assert found["run"]["tau"] == -(-max(sizes) // 4)
    text = found["theorems"][0]["conditions"][-1]["text"]
    assert f"clients take {-(-min(sizes) // 4)} to {-(-max(sizes) // 4)} steps" in text


def test_weight_decay_is_part_of_a_linear_risk() -> None:
    keys: dict[str, Value] = {"algorithm": "fedcom", "model": "logistic"}
    plain = certificate(parse_run_config(keys))["constants"]
    decayed = certificate(parse_run_config(keys | {"weight-decay": 0.5}))["constants"]
    for name in ("L", "mu"):
        assert decayed[name][0] == pytest.approx(plain[name][0] + 0.5)


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


def test_fedpaqs_theorem_1_has_no_warm_up() -> None:
    keys: dict[str, Value] = {"algorithm": "fedpaq", "lr-schedule": "inverse", "lr": 4.0}
    assert exact_setting(parse_run_config(QUADRATIC | keys)).inverse
    assert not exact_setting(parse_run_config(QUADRATIC | keys | {"warmup-rounds": 3})).inverse


def test_an_algorithm_without_a_theorem_is_told_so() -> None:
    found = certificate(parse_run_config(QUADRATIC | {"algorithm": "scaffold"}))
    assert found["theorems"] == []


CET: dict[str, Value] = QUADRATIC | {"algorithm": "fedcet", "local-steps": 1}


def test_keys_that_an_algorithm_does_not_have_have_no_largest_value() -> None:
    for algorithm, keys in {
        "fedcet": {"lr", "tau", "fedcet.c"},
        "fedbcgd": {"lr", "tau"},
        "qsgd": {"lr", "server-lr"},
        "fedcom": {"lr", "server-lr", "tau"},
    }.items():
        one = certificate(parse_run_config(CET | {"algorithm": algorithm}))
        assert {key for theorem in one["theorems"] for key in theorem["largest"]} == keys
        assert ("server-lr" in one["run"]) == ("server-lr" in keys)


@pytest.mark.parametrize("c", [0.0, 3.0])
def test_fedcets_c_and_its_bound(c: float) -> None:
    found = certificate(parse_run_config(CET | {"lr": 0.02, "fedcet.c": c}))
    assert found["run"]["fedcet.c"] == pytest.approx(c or 0.9 * 25)
    theorem, noisy = found["theorems"]
    assert theorem["largest"]["fedcet.c"] == pytest.approx(25, rel=1e-3)  # 2/((1 + 3) 0.02)
    assert noisy["largest"]["fedcet.c"] == pytest.approx(25, rel=1e-3)
    assert "fedcet.c 25" in as_text(found)


def test_where_nine_tenths_of_the_bound_are_too_little_a_larger_c_is_found() -> None:
    """tau = 1: alpha L is at most 0.0343 with nine tenths of the bound, and 0.0437 with all of it."""
    (hypotheses,) = [one for one in HYPOTHESES if one.name == "FedCET, theorem 1"]
    for alpha, found in ((0.0434, 2 / 4 / 0.0434), (0.0438, None)):
        s = replace(ONE, tau=1, eta=alpha)
        assert not hypotheses.hold(s)
        assert largest(hypotheses, s, "fedcet.c") == (found and pytest.approx(found, rel=1e-3))


def test_a_factor_is_not_rounded_to_one() -> None:
    most = certificate(parse_run_config(CET))["theorems"][0]["largest"]["lr"]
    told = as_text(certificate(parse_run_config(CET | {"lr": 1.0005 * most})))
    assert re.search(r"sqrt\(5 B_2\) <= 1: 1\.000[45]\d* times too large", told)


def test_estimates_are_no_proof() -> None:
    keys: dict[str, Value] = {"algorithm": "fedcet", "clients-per-round": 20, "lr": 1e-7}
    assert "theorem 2 applies if these estimates are right" in (
        as_text(certificate(parse_run_config(keys)))
    )
    assert "theorem 2 applies: " in as_text(certificate(parse_run_config(CET | {"lr": 0.01})))


ERM: dict[str, Value] = {
    "algorithm": "fedcom", "model": "logistic", "num-clients": 4, "clients-per-round": 4,
    "dtype": "float64", "samples-per-client": 8, "batch-size": 1,
}  # fmt: skip


def test_the_sampled_constants_are_those_of_the_samples() -> None:
    """Eight batches of one of eight samples are all samples, so that sigma^2 is exact."""
    config = parse_run_config(ERM)
    problem = make_problem(config)
    assert isinstance(problem, LinearERM)
    x = torch.zeros(64, dtype=torch.float64)
    gradients = torch.stack([problem.objective(client).full_gradient(x) for client in range(4)])
    each = []
    for client in range(4):
        rows, signs = (
            problem.rows[problem.partition[client]],
            problem.signs[problem.partition[client]],
        )
        samples = -signs[:, None] * rows / 2
        assert torch.allclose(samples.mean(0), gradients[client])
        each.append(float((samples - samples.mean(0)).square().sum(1).mean()))
    found = certificate(config)["constants"]
    assert found["sigma^2"][0] == pytest.approx(max(each))
    assert max(each) > 1.05 * min(each)
    spread = (gradients - gradients.mean(0)).square().sum(1).mean()
    assert found["heterogeneity"][0] == pytest.approx(float(spread))


def test_a_risk_that_is_not_convex_has_no_mu() -> None:
    found = certificate(parse_run_config(ERM | {"model": "sigmoid-erm"}))["constants"]
    assert found["mu"] == [0.0, "not convex"]


def test_the_steepest_client_and_weight_decay_count_in_a_network() -> None:
    keys: dict[str, Value] = {"num-clients": 3, "clients-per-round": 3, "model": "mlp-8"}
    config = parse_run_config(keys)
    problem = make_problem(config)
    torch.manual_seed(0)
    x = torch.tensor(problem.initial()[0])
    steep = [_steepness(problem, config, client, x) for client in range(3)]
    assert pytest.approx(max(steep), rel=1e-3) == constants_of(config).setting.L
    assert max(steep) > 1.05 * min(steep)
    decayed = constants_of(parse_run_config(keys | {"weight-decay": 2.0})).setting.L
    assert decayed == pytest.approx(max(steep) + 2, rel=1e-3)


def test_q_is_measured_on_the_mean_gradient() -> None:
    """Top-k leaves out all but the largest."""
    keys: dict[str, Value] = {
        "compressor": "topk",
        "topk.ratio": 0.25,
        "quadratic.hessians": "shared",
    }
    config = parse_run_config(QUADRATIC | keys)
    problem = quadratic_of(config)
    gradient = np.einsum("cij,cj->i", problem.A.numpy(), problem.b.numpy())
    squares = np.sort(gradient**2)
    measured = constants_of(config).measured_q
    assert measured == pytest.approx(squares[:-2].sum() / squares.sum(), rel=1e-3)


def test_with_a_fixed_c_the_lr_of_a_chosen_one_is_told() -> None:
    """c = 0.2 is so small that no lr is admissible; with c = 0 alpha L is at most 0.0343 and 0.0213."""
    found = certificate(parse_run_config(CET | {"lr": 0.3, "fedcet.c": 0.2}))
    assert found["theorems"][0]["largest"]["lr"] is None
    (note,) = found["notes"]
    assert "theorem 1: 0.03434, FedCET, theorem 2: 0.0213)" in note
    assert not certificate(parse_run_config(CET | {"lr": 0.3}))["notes"]
