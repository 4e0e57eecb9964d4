"""What the theorems' checks measure, at numbers worked out by hand: a measured side that is too small stays below its bound."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedapp.theory.hypotheses import Setting
from fedapp.theory.played import Visit
from fedapp.theory.within import fedbcgd, fedcom, gradma, trails

S = Setting(L=2, mu=0.5, sigma2=3, rho2=0, q=1, n=4, r=4, tau=4, eta=0.01, gamma=2)


@pytest.mark.parametrize(
    ("decay", "gap", "distance"),
    [
        # w_j = (3, 1) and, because the second direction of the second client is flat, (2, 0).
        (0.0, (11 + 2) / 2, (10 + 4) / 2),
        # H = diag(3, 5) and diag(2, 1): w_j = (2, 0.8) and (1, 0).
        (1.0, (7.6 + 1) / 2, (4.64 + 1) / 2),
    ],
)
def test_what_fedcomgates_bounds_ask_of_the_clients(
    decay: float, gap: float, distance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hessians = torch.diag_embed(torch.tensor([[2.0, 4.0], [1.0, 0.0]], dtype=torch.float64))
    centres = torch.tensor([[3.0, 1.0], [2.0, 5.0]], dtype=torch.float64)
    problem = SimpleNamespace(A=hessians, b=centres, optimum=np.array([3.0, 4.0]))
    monkeypatch.setattr(fedcom, "quadratic_of", lambda config: problem)
    config: Any = SimpleNamespace(weight_decay=decay)
    own = fedcom._own(config)
    assert (own.gap, own.distance, own.mu) == pytest.approx((gap, distance, 1.0))
    assert fedcom._optimum(config) == 25


@pytest.mark.parametrize(
    ("phi", "eta", "holds"),
    [(0.25, 1 / 48, True), (0.25, 1 / 47, False), (0.26, 1 / 48, False)],
)
def test_the_choice_of_theorems_d9_and_e9(phi: float, eta: float, holds: bool) -> None:
    """1/sqrt(m tau) = 1/4 and 1/(2 L gamma tau 1.5) = 1/48."""
    chosen = Setting(**{**vars(S), "eta": eta})
    assert fedcom._chosen(chosen, phi, 1.5).holds is holds


@pytest.mark.parametrize(("last", "holds"), [(0.5, True), (0.69, False)])
def test_speed_up_is_an_exponent_over_m(last: float, holds: bool) -> None:
    """1 to 0.5 over a factor of 4 is m^-0.5; 0.69 is m^-0.27."""
    assert fedcom._speed_up("", {1: 1.0, 2: last**0.5, 4: last}).holds is holds


@pytest.mark.parametrize(("last", "holds"), [(0.19, True), (0.21, False)])
def test_noise_fades_from_the_first_five_rounds_to_the_last_five(last: float, holds: bool) -> None:
    noise = np.array([4.0, 1, 2, 1, 2, 9, 9, last, last, last, last, last])
    assert fedcom._fades({"noise": noise}).holds is holds  # the first five have a mean of 2


def test_running_means_and_padding() -> None:
    np.testing.assert_allclose(trails.running_mean(np.array([2.0, 4.0, 9.0])), [2, 3, 5])
    np.testing.assert_array_equal(trails._padded([1.0, 2.0], 3), [1, 2, np.inf])


@pytest.mark.parametrize(
    ("points", "models"),
    [
        ("a", "a"),
        ("ap", "a"),
        ("abx", "ab"),
        ("apbx", "ab"),
        ("abxcxb", "abc"),
        ("apbxcxb", "abc"),
        ("abxcxbdxc", "abcd"),
    ],
)
def test_gradmas_local_models_are_those_of_each_step_s_first_gradient(
    points: str, models: str
) -> None:
    """Of models a, b, ..., x, and p, the one before the round, in the order in which gradients were asked for."""
    visit = Visit([np.array([float(ord(point))]) for point in points])
    found = gradma.local_models(visit, np.array([0.0]), len(models))
    np.testing.assert_array_equal(found[:, 0], [*map(ord, models), 0])


def test_fedbcgds_g_is_each_blocks_mean_of_summed_gradients() -> None:
    """Two clients upload number 0, one number 1, and all three number 2; nobody number 3."""
    visits = {c: Visit(gradients=[np.full(4, 1.0 + c), np.full(4, 10.0)]) for c in range(3)}
    places = {0: [0, 2], 1: [0, 2], 2: [1, 2]}
    strategy = SimpleNamespace(places=lambda c: [slice(p, p + 1) for p in places[c]])
    played: Any = SimpleNamespace(before=np.zeros(4), visits=visits, strategy=strategy)
    np.testing.assert_allclose(fedbcgd._gradients(played), [11.5, 13, 12, 0])


def test_a_client_that_has_not_taken_part_has_no_control_variate() -> None:
    played: Any = SimpleNamespace(states={0: {}, 1: {"c_i": torch.tensor([1.0, 2.0])}})
    np.testing.assert_array_equal(fedbcgd._control(played, 0, 2), [0, 0])
    np.testing.assert_array_equal(fedbcgd._control(played, 1, 2), [1, 2])
