"""The theorems' constants: every bound and condition at one setting, computed by hand from the papers' formulas.

A bound that is ten times too large still holds in every run; only numbers notice it.
"""

from dataclasses import replace
from math import e, inf, sqrt
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedapp.theory import hypotheses
from fedapp.theory.hypotheses import Conditions, Setting, fedpaq_start
from fedapp.theory.outcome import Finding
from fedapp.theory.within import fedbcgd, fedpaq

Patch = pytest.MonkeyPatch

# eta L = 0.02, eta gamma = 0.02, (n-r)/(r(n-1)) = 1/7; FedBCGD: K = 2, alpha = 2, beta = L.
S = Setting(
    L=2.0, mu=0.5, sigma2=3.0, rho2=5.0, q=0.25, n=8, r=4, tau=3, eta=0.01, gamma=2.0,
    beta1=0.5, blocks=2, own_mu=0.25, rounds=10,
)  # fmt: skip
GAP, OWN_GAP, G_Q, OWN_DISTANCE, OPTIMUM = 7.0, 11.0, 13.0, 17.0, 19.0
R = np.array([1.0, 10.0])


def values(conditions: Conditions, count: int) -> list[float]:
    """Return the left sides of the first conditions, which are those on step sizes."""
    return [condition.value for condition in conditions[:count]]


def recorded(patch: Patch, module: ModuleType) -> dict[str, list[float]]:
    """Record the bounds that a check compares with, by the first words of its claims."""
    bounds: dict[str, list[float]] = {}

    def below(claim: str, measured: Any, limits: Any) -> Finding:
        (bounds[claim.split(",")[0]],) = [list(np.atleast_1d(limit)) for limit in limits][-1:]
        return Finding(claim, "", "", True)

    patch.setattr(module, "below", below)
    return bounds


@pytest.mark.parametrize(
    ("condition", "key", "holding", "failing"),
    [
        (hypotheses.alike, "rho2", [0], [1e-9]),
        (hypotheses.everybody, "r", [8], [7]),
        (hypotheses.curved, "mu", [1e-9], [0, -1]),
        (hypotheses.convex, "own_mu", [0, 1], [-1e-9, -inf]),
        (hypotheses.strongly_convex, "own_mu", [1e-9], [0, -1]),
        (hypotheses.bounded, "rho2", [1e9], [inf]),
        (hypotheses.unbiased, "q", [0, 1e9], [inf]),
        (hypotheses.uncompressed, "q", [0], [1e-9, inf]),
        (hypotheses.no_server_step, "gamma", [1], [0.999, 1.001]),
        (hypotheses.exact_gradients, "sigma2", [0], [1e-9]),
        (hypotheses.constant, "constant", [True], [False]),
        (hypotheses._even_groups, "blocks", [1, 2, 4], [3]),
    ],
)
def test_a_condition_of_yes_or_no_has_its_border(
    condition: Any, key: str, holding: list[Any], failing: list[Any]
) -> None:
    for values, holds in ((holding, True), (failing, False)):
        for value in values:
            changed: dict[str, Any] = {key: value}
            assert condition(replace(S, **changed)).holds is holds, value


def test_fedbcgds_step_sizes() -> None:
    eta, eta_1 = 0.01, 2 * 0.01 * 3 / 4  # eta~ = alpha eta T/4
    drift = 2 * 3 * 2 * eta**2 * 2**2
    # Equation 51's bracket, over alpha eta T: 6 T^2 alpha eta 2 beta (eta beta + 4 T beta^2 eta^2) + 4 T beta alpha eta
    # + (1 - K/M) 4 T alpha eta beta/K.
    bracket = 6 * 9 * 0.02 * 4 * (0.02 + 12 * 4 * eta**2) + 4 * 3 * 2 * 0.02 * (1 + 0.75 / 2)
    assert values(hypotheses.fedbcgd(S), 3) == pytest.approx([8 * 2 * eta_1, drift, bracket])
    limits = [condition.limit for condition in hypotheses.fedbcgd(S)[:3]]
    assert limits == [1, 1, 0.75]


def test_fedbcgd_pluss_step_sizes() -> None:
    eta = 2 * 0.01 * 3  # eta~ = alpha eta T in the proof; mu M/K = 0.25 * 8/2
    eq_101 = 9 / 2 * 1.0 * eta + 54 * 2 * eta  # with the beta of equation 96
    expected = [81 * 2 * eta, 15 * 1.0 * eta, eq_101]
    assert values(hypotheses.fedbcgd_plus(S), 3) == pytest.approx(expected)
    assert [condition.limit for condition in hypotheses.fedbcgd_plus(S)[:3]] == [1, 1, 1]


def test_fedbcgds_equation_51(monkeypatch: Patch) -> None:
    eta = 0.015
    # [32 (1-K/M)/K G^2 + 64 sigma^2/(TK)] eta~ + [384 beta G^2 + 192 beta sigma^2/T] eta~^2/alpha^2
    # + [6144 beta^2 G^2 + 3072 beta^2 sigma^2/T] eta~^3/alpha^2
    noise = (32 * 0.75 / 2 * 5 + 64 * 3 / 6) * eta
    noise += (384 * 2 * 5 + 192 * 2 * 3 / 3) / 4 * eta**2
    noise += (6144 * 4 * 5 + 3072 * 4 * 3 / 3) / 4 * eta**3
    assert fedbcgd.noise_51(S) == pytest.approx(noise)
    trail = {name: np.array([7.0, 1.0]) for name in ("f_z", "z", "off", "drift", "slopes")}
    monkeypatch.setattr(fedbcgd, "exact_setting", lambda config: S)
    monkeypatch.setattr(fedbcgd, "_several", lambda configs: trail)
    several = {"none": [None], "half": [None], "most": [None]}
    monkeypatch.setattr(fedbcgd, "points_of", lambda configs, preset: several)
    bounds = recorded(monkeypatch, fedbcgd)
    (curve, *_) = fedbcgd.fedbcgd_51([]).panels[0].curves
    w = 1 / (1 - 0.25 * eta)
    assert curve.y == pytest.approx([7.0, (7 * w + w**2) / (w + w**2)])
    sums = [7 / (eta * w) + noise, 7 / (eta * (w + w**2)) + noise]
    assert bounds["weighted mean of f(z) - f* below equation 51"] == pytest.approx(sums)
    assert bounds["equation 51 with lambda = 0.5"] == pytest.approx(sums)
    # Lemma 5, of the four clients of a round: 6 T^3 eta^2 sum |grad f_i|^2 + 3 M T^2 eta^2 sigma^2.
    drift = [6 * 27 * 1e-4 * slopes + 3 * 4 * 9 * 1e-4 * 3 for slopes in (7, 1)]
    assert bounds["lemma 5: drift"] == pytest.approx(drift)


def test_fedbcgd_pluss_equation_102() -> None:
    assert fedbcgd.weight_of_lag(S) == pytest.approx(9 * 0.06**2 * 4)
    expected = [(1 - 0.06 * 0.25 / 2) ** rounds * 7 for rounds in (1, 10)]
    assert fedbcgd.equation_102(S, 7.0, R) == pytest.approx(expected)


def test_fedcoms_step_size() -> None:
    eq_21 = 9 * 4 * 1e-4 + (0.25 / 8 + 1) * 0.02 * 2 * 3
    assert values(hypotheses.fedcom(S), 1) == pytest.approx([eq_21])


def test_fedcomgates_step_sizes() -> None:
    cubic, linear, gate = 10 * 1e-4 * 4e-4 * 1.25 * 16 * 81, 2 * 0.02 * 3 * 1.25, 30 * 1e-4 * 4 * 9
    assert values(hypotheses.fedcomgate(S), 2) == pytest.approx([cubic + linear, gate])
    delta = 1 - 0.5 * 3 * 0.02 + 20 * 0.5 * 2 * 1e-6 * 4 * 27
    assert values(hypotheses.fedcomgate_pl(S), 2) == pytest.approx([linear + cubic / delta, gate])


@pytest.mark.parametrize(
    ("theorem", "differ", "few", "not_pl"),
    [("fedcom", False, False, True), ("fedcom_pl", False, False, False),
     ("fedcomgate", True, False, True), ("fedcomgate_pl", True, False, False)],
)  # fmt: skip
def test_fedcoms_theorems_say_whose_f_they_are_about(
    theorem: str, differ: bool, few: bool, not_pl: bool
) -> None:
    """D.4 and D.7 are for equal clients, all are for all clients in every round, and D.7 and E.6 are for PL."""

    def holds(**changed: float) -> bool:
        s = replace(S, rho2=0.0, r=8, eta=1e-3)
        conditions = getattr(hypotheses, theorem)(replace(s, **changed))  # type: ignore[arg-type]
        return all(condition.holds for condition in conditions)

    assert holds()
    assert holds(rho2=np.inf) == differ
    assert holds(r=4) == few
    assert holds(mu=0.0) == not_pl


def test_fedpaqs_conditions() -> None:
    B1 = 2 * 4 * (0.25 / 8 + 1 / 7 * 4 * 1.25)
    assert fedpaq_start(S) == pytest.approx(4 * 4 * (B1 / 0.25 + 1))
    exact = replace(S, q=0.0, r=8)  # B_1 = 0
    assert fedpaq_start(exact) == pytest.approx(4 * 4 * 8 / (0.25 * 3))
    assert fedpaq_start(replace(exact, L=100.0, mu=10.0)) == pytest.approx(4 * 100 / 10)
    eq_81 = 2 * 0.01 * (1 + (0.25 / 8 + 4 / 7 * 1.25) * 3) + 2 * 4 * 3 * 2 * 1e-4
    assert values(hypotheses.fedpaq_2(S), 1) == pytest.approx([eq_81])
    assert values(hypotheses.fedpaq_lemmas(S), 2) == pytest.approx([0.01 * 4 / 0.5, 0.01 * 2 * 3])
    inverse = replace(S, eta=9.0, inverse=True)
    assert values(hypotheses.fedpaq_1(inverse), 1) == pytest.approx([9 * 0.5 / 4 - 1])


def test_fedpaqs_lemmas() -> None:
    before, gradients = np.array([7.0]), np.array([23.0])
    last = 9 * 2 * 4 * 3 * e * 1e-8  # tau^2 (tau-1) L^2 sigma^2 e eta^4
    second = (1 + 8 * 1e-4) * (1 - 0.005) ** 3 * 7
    second += 3 * 4 * 4 * 3 / 8 * e * 1e-4 + 9 * 3 / 8 * 1e-4 + last
    assert fedpaq.lemma_2(S, before) == pytest.approx([second], rel=1e-12)
    braces = 9 * 4 * 1e-4 * 7 + 9 * 3 * 1e-4 + last
    assert fedpaq.lemma_3(S, before) == pytest.approx([2 * 0.25 / 8 * braces])
    assert fedpaq.lemma_4(S, before) == pytest.approx([8 * 1.25 / 7 * braces])
    eighth = 0.25 * 3 / 8 * 3 * 1e-4 + 0.25 / 64 * 3 * 1e-4 * 23
    assert fedpaq.lemma_8(S, gradients) == pytest.approx([eighth])
    ninth = (1 - 4 / 8) / (4 * 7) * 4 * 1.25 * (8 * 3 * 3 * 1e-4 + 3 * 1e-4 * 23)
    assert fedpaq.lemma_9(S, gradients) == pytest.approx([ninth])
    trail = {"f_average": np.array([1.0]), "f_before": np.array([2.0])}
    trail |= {"at_averages": np.array([6.0]), "gradients": gradients}
    kept = 1 / 16 - 2 * 0.01 / 16 - 4 * 3 * 2 * 1e-4 / 8
    descent = 1 - 2 + 0.005 * 6 + 0.01 * kept * 23
    assert fedpaq._descent(S, trail) == pytest.approx(descent)
    noise = 1e-4 * 2 / 2 * 3 / 8 * 3 + 1e-6 * 3 / 8 * 9 * 3 * 2 / 2 * 4
    assert fedpaq._noise_7(S, np.ones(2)) == pytest.approx([noise, noise])


def test_gradmas_step_sizes() -> None:
    step = 9 * 1e-4 * 4  # I^2 eta_l^2 L^2
    second = 0.02 * 3 * 2 * (0.5 * 4 * 7 + 4 * 8 * 3) / (0.25 * 4 * 7)
    third = 320 * step + 64 * 3 * 0.02 * 2 * (1 + 40 * step) / 0.25 * 4 / (4 * 7)
    expected = [4 * sqrt(10) * 2 * 3 * 0.01, second, third]
    assert values(hypotheses.gradma(S), 3) == pytest.approx(expected)
