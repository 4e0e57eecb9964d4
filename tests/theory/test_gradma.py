"""The bounds of GradMA's lemmas, computed by hand from its appendix at one setting."""

import numpy as np
import pytest

from fedapp.theory.hypotheses import Setting
from fedapp.theory.within.gradma import (
    Lost,
    in_part,
    lemma_2,
    lemma_3,
    lemma_4,
    lemma_5,
    lemma_6,
    most_lost,
)

# I eta_l = 1/2, (1 - beta_1)^2 = 1/16, (N - S)/(S (N - 1)) = 3/8, I^2 eta_l^2 L^2 = 9/4.
S = Setting(
    L=3.0, mu=0.0, sigma2=0.0, rho2=7.0, q=0.0, n=5, r=2, tau=2, eta=0.25, gamma=4.0, beta1=0.75
)  # fmt: skip
LOST = Lost(worker=5.0, server=20.0)
SQUARES, D, ROUNDS = np.array([1.0, 11.0]), np.array([2.0, 6.0]), np.array([1.0, 2.0])


def test_projections_take_off_no_more_than_gradients_and_momentum_are_long() -> None:
    # The momentum is at most I eta_l G/(1 - beta_1) = 2 G long.
    assert most_lost(S, 5.0) == pytest.approx(LOST)


def test_lemma_2() -> None:
    # 40 I^2 eta_l^2 = 10, times eps_l^2 + rho^2 + |grad f|^2 = 13 and 23.
    np.testing.assert_allclose(lemma_2(S, LOST, SQUARES), [130, 230])


def test_lemma_3() -> None:
    # 4 I^2 (1 + 40 I^2 eta_l^2 L^2) = 16 * 91, times 13 and 23.
    np.testing.assert_allclose(lemma_3(S, LOST, SQUARES), [18928, 33488])


def test_lemma_4() -> None:
    # 2 |d|^2 + 2 eps_g^2/(1 - beta_2)
    np.testing.assert_allclose(lemma_4(LOST, D), [44, 52])


def test_lemma_5() -> None:
    # 2 beta_1^2 eta_g^2/(1 - beta_1)^4 = 2 * 9 * 256, times 2 + 20 and 2 + 6 + 2 * 20.
    np.testing.assert_allclose(lemma_5(S, LOST, D), [101376, 221184])


def test_lemma_6() -> None:
    start = 8 * 0.25 * 10 / 2  # 8 (1 - beta_1) (f(x_0) - f*)/(I eta_g eta_l)
    drift = 320 * 9 / 4 + 64 * 6 * 91 * 16 * 3 / 8  # I eta_g eta_l L = 6
    server = 20 * 4 * 3 * 16 / 0.5 + 8 / 0.25
    floor = 8 * 5 + drift * (5 + 7) + server * 20
    assert floor == 2678888
    bound = lemma_6(S, LOST, 10.0, ROUNDS)
    np.testing.assert_allclose(bound, [floor + start, floor + start / 2], rtol=1e-12)


def test_a_projection_is_at_work_where_it_takes_off_some_of_a_vector() -> None:
    vectors = np.array([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    taken = np.array([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    assert in_part(taken, vectors) == 0.25
