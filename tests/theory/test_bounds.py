"""FedCOM's bounds against numbers worked out by hand: a bound that is too large would never be missed."""

from dataclasses import replace
from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedapp.theory import fedcomgate
from fedapp.theory.hypotheses import Setting
from fedapp.theory.within import fedcom, tables
from fedapp.theory.within.fedcom import Own

# eta gamma = 0.1, eta L = 0.1, kappa = 4, q/m = 1/4, sqrt(m tau) = 4.
S = Setting(L=2, mu=0.5, sigma2=3, rho2=0, q=2, n=8, r=8, tau=2, eta=0.05, gamma=2)
GAP, OPTIMUM, G_Q, R = 5.0, 6.0, 11.0, np.array([10.0])
OWN = Own(gap=7, distance=9, mu=0.4)
# Equation 79's bracket: noise, distances, the term of 88, the gap, steps between rounds (noise, G_q), noise, G_q.
FLOOR = 1.08 + 11.52 + 0.192 / 0.36 + 6.4 + 0.018 + 0.264 + 0.1125 + 0.55


@pytest.mark.parametrize(
    ("found", "by_hand"),
    [
        (fedcom.equation_22(S, GAP, R), 5 + 0.225 + 0.06),
        (fedcom.equation_38(S, GAP, R), 5 * 0.9**10 + 2 * (0.03 + 0.1125)),
        (fedcom.equation_43(S, GAP, R), 5 * exp(-1) + 2 * (0.03 + 0.1125)),
        (fedcom.equation_45(S, GAP, OPTIMUM, R), 5 * exp(-0.5) + 0.12 + 0.45 + 0.75),
        (
            fedcom.equation_62(S, GAP, OWN, G_Q, R),
            (5 + 0.225 + 2.16 + 0.036 + 0.528 + 8.96 + 0.0192 + 1.28 + 1.1) / 0.2,
        ),
        (fedcom.equation_79(S, GAP, OWN, G_Q, R), 5 * (29 / 30) ** 10 + 6 * FLOOR),
        (
            fedcom.equation_94(S, 0.25, GAP, OWN, OPTIMUM, G_Q, R),
            5 * exp(-1 / 6) + 12 * FLOOR + 0.75,
        ),
    ],
    ids=["22", "38", "43", "45", "62", "79", "94"],
)
def test_fedcoms_bounds_by_hand(found: Any, by_hand: float) -> None:
    assert found == pytest.approx(by_hand, rel=1e-12)


def test_fedcoms_floor_is_compared_with_the_mean_of_the_seeds_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seeds start 2 and 8 above the optimum: their mean is compared with the bound from 5, not from the first's start."""
    seeds: Any = [2.0, 8.0]
    for name, found in {
        "named": lambda runs, preset: {"none": runs},
        "setting_of": lambda run: replace(S, q=0.0),
        "starting_point": lambda run: {"gap": run},
        "mean_figure": lambda runs, name: np.array([3.0, 2.0]),
    }.items():
        monkeypatch.setattr(fedcomgate, name, found)
    _, bound = fedcomgate.fedcom_q(seeds).panels[0].curves
    floor = 2 * (0.03 + 0.0375)
    assert bound.y == pytest.approx([5 * 0.9 + floor, 5 * 0.9**2 + floor])


@pytest.mark.parametrize(
    ("algorithm", "mu", "by_hand"),
    [
        ("fedcom", 0.5, 2 * 4 * 1.25 * log(1e6)),
        ("fedcomgate", 0.5, 6 * 4 * 3 * log(1e6)),
        ("diana", 0.5, 10 * log(4e6)),
        ("diana", 2.0, 6 * log(1e6)),
        ("vrdiana", 0.5, 18 * log(4e6)),
    ],
)
def test_the_tables_counts_by_hand(algorithm: str, mu: float, by_hand: float) -> None:
    s = Setting(L=2, mu=mu, sigma2=0, rho2=0, q=2, n=8, r=8, tau=2, eta=0.05, gamma=2)
    assert tables.most_rounds(algorithm, s) == pytest.approx(by_hand, rel=1e-12)


def test_the_tables_step_sizes_by_hand() -> None:
    assert tables.step_size("fedcom", S) == pytest.approx(1 / 20)
    assert tables.step_size("fedcomgate", S) == pytest.approx(1 / 48)
    assert tables.step_size("diana", S) == tables.step_size("vrdiana", S) == pytest.approx(1 / 5)


def test_g_q_by_hand() -> None:
    """With one level (3, 4) becomes 5 (0 or 1, 0 or 1) with a variance of 25 (0.6 0.4 + 0.8 0.2) = 10, and (3, 0) itself."""
    visits = {
        c: SimpleNamespace(plain=[np.array([3.0, sign * 4])]) for c, sign in enumerate([1, -1])
    }
    played: Any = SimpleNamespace(visits=visits)
    assert fedcom.unevenness(1)(played) == pytest.approx({"G_q": 5.0, "noise": 5.0})


def test_g_q_is_fixed_by_the_first_rounds() -> None:
    trail = {"noise": np.array([2.0, 4, 3, 1, 1, 50, 50]), "G_q": np.array([0, 1.0, 1, 1, 1, 3, 6])}
    assert fedcom.fixed_unevenness(trail) == 4
    assert fedcom.assumption_5(trail).value == pytest.approx(1.5)
    assert not fedcom.assumption_5(trail).holds
