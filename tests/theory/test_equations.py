"""Bounds that are formed inside FedCOM's, FedCOMGATE's and FedPAQ's checks, computed by hand from the papers' formulas.

A bound that is ten times too large still holds in every run; only numbers notice it.
"""

from collections.abc import Callable
from dataclasses import replace
from math import e, sqrt
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedapp.theory import fedpaq as runs_of_fedpaq
from fedapp.theory.fits import Values
from fedapp.theory.hypotheses import Conditions, Setting
from fedapp.theory.outcome import Finding, Outcome
from fedapp.theory.within import fedcom

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


def test_fedcoms_bounds() -> None:
    noise = 2 * 0.02 * 1.25 / 8 * 3 + 4 * 1e-4 * 3 * 3
    assert fedcom.equation_22(S, GAP, R) == pytest.approx(2 * 7 / (0.02 * 3 * R) + noise)
    floor = (0.5 * 4 * 3 * 1e-4 * 3 + 1.25 * 0.02 * 2 * 3 / 16) / 0.5
    shrunk = (1 - 0.02 * 0.5 * 3) ** R * 7
    assert fedcom.equation_38(S, GAP, R) == pytest.approx(shrunk + floor)


def patched_fedcom(patch: Patch) -> dict[str, list[float]]:
    """Let FedCOM's checks see the setting above, and two rounds."""
    trail = {"gap": np.array([GAP, 1.0, 1.0]), "squared_gradient": np.ones(3)}
    patch.setattr(fedcom, "exact_setting", lambda config: S)
    patch.setattr(fedcom, "mean_trail", lambda configs: trail)
    patch.setattr(fedcom, "_tracked", lambda configs: (S, trail, G_Q))
    patch.setattr(fedcom, "_own", lambda config: (OWN_GAP, OWN_DISTANCE))
    patch.setattr(fedcom, "_optimum", lambda config: OPTIMUM)
    return recorded(patch, fedcom)


def test_fedcoms_corollary_d8_and_theorem_d9(monkeypatch: Patch) -> None:
    bounds, rounds = patched_fedcom(monkeypatch), np.array([1.0, 2.0])
    fedcom.fedcom_d8([None])  # type: ignore[list-item]
    floor = (0.5 * 4 * 3 * 1e-4 * 3 + 1.25 * 0.02 * 2 * 3 / 16) / 0.5
    first = np.exp(-rounds / (2 * 1.03125 * 2 / 0.5)) * 7 + floor
    assert bounds["corollary D.8: below equation 43's first line"] == pytest.approx(first)
    fedcom.fedcom_d9([SimpleNamespace(weight_decay=1 / sqrt(24))])  # type: ignore[list-item]
    root, share = sqrt(8 * 3), 1 + 0.25 / 8
    bound = np.exp(-rounds / (2 * 2 * share * root)) * 7
    bound += sqrt(8) * 3 / (8 * sqrt(3) * 4 * share**2) + 1.25 * 3 / (4 * share * root)
    bound += 19 / (2 * root)
    assert bounds["f - f* below equation 45"] == pytest.approx(bound)


def test_fedcomgates_equation_62_with_the_factor_of_73() -> None:
    bound = 2 * 7 / (3 * 0.02 * R) + 1.25 * 2 * 0.02 * 3 / 8 + 36 * 1e-4 * 4 * 3 * 3
    bound += 10 * 1e-4 * 16 * 27 * 4e-4 * 1.25 * 3 / 8 + 10 * 1e-4 * 16 * 9 * 4e-4 * 1.25 * G_Q
    bound += 32 * 0.01 * 4 * 3 / R * OWN_GAP + 16 * 1e-6 * 4 * 9 / R * 3
    bound += 32 * 1e-4 * 8 * 9 / R * 7 + 0.02 * 2 / 3 * G_Q
    found = fedcom.equation_62(S, GAP, OWN_GAP, G_Q, R)
    assert found == pytest.approx(bound / (1 - 20 * 1e-4 * 4 * 9))


def test_fedcomgates_equations_79_and_94_with_the_term_of_88(monkeypatch: Patch) -> None:
    floor = 4 * 18 * 1e-4 * 3 * 3 + 8 * 16 * 1e-4 * 9 * OWN_DISTANCE + 16 * 8 * 9 * 1e-4 * 7
    floor += 8 * 16 * 1e-6 * 9 * 3 / (0.5 * (1 - 0.02))
    floor += 5 * 16 * 1e-4 * 27 * 4e-4 * 1.25 * 3 / 8 + 5 * 16 * 1e-4 * 9 * 4e-4 * 1.25 * G_Q
    floor += 1.25 * 0.02 * 2 / 2 * 3 / 8 + 2 * 0.02 * G_Q / 6
    expected = (1 - 0.5 * 0.02 * 3 / 3) ** R * 7 + 3 / 0.5 * floor
    assert fedcom.equation_79(S, GAP, OWN_DISTANCE, G_Q, R) == pytest.approx(expected)
    bounds, phi = patched_fedcom(monkeypatch), 1 / sqrt(24)
    fedcom.fedcomgate_e9([SimpleNamespace(weight_decay=phi)])  # type: ignore[list-item]
    rate = np.exp(-np.array([1.0, 2.0]) * 0.02 * phi * 3 / 3)
    bound = rate * 7 + 3 / phi * floor + phi / 2 * OPTIMUM
    assert bounds["f - f* below equation 94"] == pytest.approx(bound)


def line(check: Callable[[Any], Outcome], runs: Any, words: str) -> bool:
    """Say whether a line of a check on runs holds."""
    (finding,) = (one for one in check(runs).findings if one.claim.startswith(words))
    return finding.holds


def runs_named(preset: str, names: list[str], **more: float) -> list[Any]:
    config = {
        "num-clients": 8, "clients-per-round": 4, "local-steps": 3,
        "quadratic.condition": 2.0, "quadratic.dim": 3, "quadratic.noise": 1.0,
    } | more  # fmt: skip
    return [SimpleNamespace(name=f"{preset}-{name}-seed-0", config=config) for name in names]


def test_fedpaqs_equation_28_is_the_border(monkeypatch: Patch) -> None:
    # L = 1, mu = 1/2, sigma^2 = 3: k_0 = 4 * 4 n/(mu^2 tau) = 170.7.
    monkeypatch.setattr(runs_of_fedpaq, "setting_of", lambda run: replace(S, L=1.0))
    start, k = 171, np.arange(1, 201)
    C1, C2 = 16 * 4 * (1 + 0.5 + 8 * 1.25 * 8 * 4 / (4 * 7)) * 3 / 8, 16 * 4 * 3 / 8 * e
    bound = (start * 3 + 1) ** 2 / (k * 3 + 1) ** 2 * 0.5 + (C1 * 3 + C2 * 4) / (k * 3 + 1)
    runs = runs_named("fedpaq-1", ["no-quantizer", "s-8", "s-2", "r-4", "r-2"])

    def below(share: float) -> bool:
        squares = np.where(k > start, share * bound, 0.5)
        monkeypatch.setattr(runs_of_fedpaq, "figure", lambda run, name: np.sqrt(squares))
        return line(runs_of_fedpaq.fedpaq_1, runs, "below the bound")

    assert below(0.9999)
    assert not below(1.0001)


CLAIM = "that mean is below the bound of equation 84 on the mean over all local steps (quadratic)"


def test_fedpaqs_equation_84_is_the_border(monkeypatch: Patch) -> None:
    # eta = 1/(L sqrt(T)), L = 1, sigma^2 = 3, T = 3 K.
    monkeypatch.setattr(runs_of_fedpaq, "setting_of", lambda run: replace(S, L=1.0))
    start = {"gap": GAP, "squared_gradient": 0.0}
    monkeypatch.setattr(runs_of_fedpaq, "starting_point", lambda run: start | {"test_loss": 9.0})
    runs = [
        run
        for K in (4, 16)
        for run in runs_named("fedpaq-2", ["quadratic", "sigmoid"], **{"num-rounds": K})
    ]

    def below(share: float) -> bool:
        def figure(run: Any, name: str) -> Values:
            K = run.config["num-rounds"]
            T = 3 * K
            bound = 2 * 7 / sqrt(T) + 1.25 * (3 / 8 + 4 * 3 / 4 * 4 / 7) / sqrt(T)
            bound += 3 / 8 * 9 * 2 / T
            # The check adds the start, which is 0, and leaves out the last round.
            return np.full(K, share * bound * K / (K - 1))

        monkeypatch.setattr(runs_of_fedpaq, "figure", figure)
        return line(runs_of_fedpaq.fedpaq_2, runs, CLAIM)

    assert below(0.9999)
    assert not below(1.0001)
