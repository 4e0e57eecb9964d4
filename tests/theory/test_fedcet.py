"""FedCET's theorems: the constants of lemma 3 by hand, the borders of their conditions, and both bounds of a run that is
computed here from equation 2 of the supplement.
"""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from fedapp.theory.constants import exact_setting
from fedapp.theory.hypotheses import Setting, fedcet_1, fedcet_2, fedcet_constants
from fedapp.theory.played import play, quadratic_of
from fedapp.theory.within.fedcet import Steps, _exact, _largest_coordinate, _mean, _noisy, watch
from strategies.fedcet import exchange_gain

Matrix = NDArray[np.float64]
KEYS: dict[str, Value] = {
    "algorithm": "fedcet",
    "dataset": "quadratic",
    "dtype": "float64",
    "num-clients": 2,
    "clients-per-round": 2,
    "num-rounds": 5,
    "local-steps": 3,
    "lr": 0.1,
    "fedcet.c": 2.0,
    "quadratic.dim": 3,
    "quadratic.condition": 4.0,
}
SETTING = Setting(L=2, mu=0, sigma2=0, rho2=0, q=0, n=4, r=4, tau=2, eta=1e-9)


def by_hand(tau: int, xi: float) -> dict[str, float]:
    """Return the constants from lemma 1's theta and the sums 38 to 41, where they are not yet multiplied out."""
    rho = 1 - xi
    root = sqrt(rho)
    sine = sqrt(1 - ((rho * (tau + 1) + 1 - tau) / (2 * root)) ** 2)
    A1 = tau / (root * sine)  # the largest |F_21|, by |sin| <= 1
    A3 = max((1 + 1 / root) / sine, (1 + abs(tau * root - (tau - 1) / root)) / sine)
    squares = sum(p**2 for p in range(1, tau + 1))  # under equation 39
    third = 3 * squares * tau * (rho * tau + tau - 1) ** 2 / (1 - root) ** 2  # 38 and 41
    A4 = max(A1, A3)
    return {
        "A1": A1,
        "A3": A3,
        "A4": A4,
        "B1": 3 * squares * A4**2 / (1 - rho),
        "B2": 3 * tau**4 + third * A4**2,
    }


@pytest.mark.parametrize(
    ("tau", "xi"), [(1, 0.45), (2, 0.19), (2, 0.36), (5, 0.05), (5, 0.225), (5, 0.45)]
)
def test_the_constants_are_those_of_lemma_3(tau: int, xi: float) -> None:
    """The last xi is beyond the theorems' c, but within lemma 1: only there A_3's second part decides."""
    found = fedcet_constants(tau, xi)
    assert {key: getattr(found, key) for key in by_hand(tau, xi)} == pytest.approx(by_hand(tau, xi))


def test_the_constants_in_numbers() -> None:
    """tau = 2 and xi = 0.19: rho = 0.81, its root 0.9, and 4 rho - (3 rho - 1)^2 = 1.1951."""
    found = fedcet_constants(2, 0.19)
    assert pytest.approx(16 / 1.1951) == found.A1**2
    assert pytest.approx(3.8**2 / 1.1951) == found.A3**2
    assert pytest.approx(15 * 16 / 1.1951 / 0.19) == found.B1
    assert pytest.approx(48 + 30 * 2.62**2 * 16 / 1.1951 / 0.01) == found.B2


@pytest.mark.parametrize(("theorem", "times"), [(fedcet_1, 5), (fedcet_2, 13)])
@pytest.mark.parametrize(("tau", "xi"), [(2, 0.19), (5, 0.05)])
def test_the_largest_alpha_is_the_border(theorem, times, tau, xi) -> None:  # type: ignore[no-untyped-def]
    alpha = 1 / (sqrt(times * by_hand(tau, xi)["B2"]) * SETTING.L)

    def holds(factor: float) -> bool:
        s = replace(SETTING, tau=tau, eta=factor * alpha, c=xi / (factor * alpha))
        return all(condition.holds for condition in theorem(s))

    assert holds(1 - 1e-9)
    assert not holds(1.001)


@pytest.mark.parametrize("theorem", [fedcet_1, fedcet_2])
@pytest.mark.parametrize("tau", [1, 2, 5])
def test_the_largest_gain_is_the_border(theorem, tau) -> None:  # type: ignore[no-untyped-def]
    most = 2 / ((tau + 3) * SETTING.eta)
    for factor, holds in ((0.999, True), (1.001, False)):
        s = replace(SETTING, tau=tau, c=factor * most)
        assert all(condition.holds for condition in theorem(s)) == holds


def test_the_bound_of_c_itself_is_not_allowed() -> None:
    s = replace(SETTING, L=1e-6, tau=1, eta=0.25, c=2.0)
    assert not any(all(c.holds for c in theorem(s)) for theorem in (fedcet_1, fedcet_2))


def test_noise_is_for_theorem_2_alone() -> None:
    noisy = replace(SETTING, sigma2=0.1)
    assert not all(condition.holds for condition in fedcet_1(noisy))
    assert all(condition.holds for condition in fedcet_2(noisy))


@pytest.mark.parametrize("c", [0.0, 2.0])
def test_xi_is_that_of_the_client(c: float) -> None:
    config = parse_run_config(KEYS | {"fedcet.c": c})
    assert exact_setting(config).xi == pytest.approx(config.lr * exchange_gain(c, config))


def literal(config: RunConfig) -> dict[str, Matrix]:
    """Play a run by equation 2 and its start 5, with the noise of the recorded run."""
    problem = quadratic_of(config)
    A, b = problem.A.numpy(), problem.b.numpy()
    alpha, tau, N = 0.1, 3, 2
    noise = []  # of each client's gradients at X(-1), X(0), X(1), ...
    for client in range(N):
        visits = [played.visits[client] for played in play(config)]
        points = np.concatenate([visit.points for visit in visits])
        gradients = np.concatenate([visit.gradients for visit in visits])
        noise.append(gradients - (points - b[client]) @ A[client])

    def slopes(X: Matrix) -> Matrix:
        return np.array([A[i] @ (X[i] - b[i]) for i in range(N)])

    def G(X: Matrix, t: int) -> Matrix:  # noqa: N802
        noisy: Matrix = slopes(X) + np.array([noise[i][t + 1] for i in range(N)])
        return noisy

    xi = 2.0 * alpha
    mixing = (1 - xi) * np.eye(N) + xi / N * np.ones((N, N))
    X = [np.zeros((N, 3))]  # X(-1)
    X.append(X[0] - alpha * G(X[0], -1))
    for t in range((config.num_rounds - 1) * tau):
        W = mixing if t % tau == 0 else np.eye(N)
        X.append(W @ (2 * X[-1] - X[-2] - alpha * G(X[-1], t) + alpha * G(X[-2], t - 1)))
    models = np.array(X[1:])  # X(0), X(1), ...
    means = models.mean(1)
    H, v = A.mean(0), np.einsum("ijk,ik->j", A, b) / N
    best = np.linalg.solve(H, v)
    return {
        "models": models,
        "squares": ((means[1:] @ H - v) ** 2).sum(1),
        "disagreement": ((models - means[:, None]) ** 2).sum((1, 2))[1:],
        "mean_squares": np.array([(slopes(X).mean(0) ** 2).sum() for X in models]),
        "gap": (means[1] - best) @ H @ (means[1] - best) / 2,
        # With two clients the other eigenvector of W is (1, -1)/sqrt(2).
        "A2": sum(np.linalg.norm(X[0] - X[1]) / sqrt(2) for X in models[:2]),
    }


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_what_is_measured_is_that_of_equation_2(noise: float) -> None:
    config = parse_run_config(KEYS | {"quadratic.noise": noise})
    steps, expected = watch(config), literal(config)
    assert len(steps.squares) == 12  # four rounds of tau = 3, after the start
    for name in ("squares", "disagreement", "mean_squares", "gap", "A2"):
        assert getattr(steps, name) == pytest.approx(expected[name], rel=1e-9), name


# A run with numbers of a size that lets every term of the bounds count.
BOUNDED = replace(SETTING, eta=0.1, c=1.9, L=0.0035, sigma2=0.01)
STEPS = Steps(np.zeros(3), np.zeros(3), np.array([300.0, 100.0, 200.0, 500.0]), gap=1e-7, A2=0.01)


def test_the_bounds_of_theorem_1() -> None:
    alpha, L, N, A2, B1, B2 = 0.1, 0.0035, 4, 0.01, *(by_hand(2, 0.19)[key] for key in ("B1", "B2"))
    B3 = 1 - 4 * alpha**2 * L**2 * B2
    C1 = alpha**2 * L**2 * N * B2 * (alpha**2 * 300 + 2 * A2**2) + N * B1 * A2**2
    bound, limit = _exact(BOUNDED, STEPS)
    for T, earlier in ((1, 0), (2, 100), (3, 300)):
        equation_30 = (C1 + alpha**4 * L**2 * N * B2 * earlier) / B3
        equation_32 = 2 / (alpha * T) * 1e-7 + C1 * L**2 / (B3 * N * T)
        assert limit[T - 1] == pytest.approx(equation_30)
        assert bound[T - 1] == pytest.approx(T * equation_32)


def test_the_bounds_of_theorem_2() -> None:
    alpha, L, N, A2, B1, B2 = 0.1, 0.0035, 4, 0.01, *(by_hand(2, 0.19)[key] for key in ("B1", "B2"))
    B4 = 1 - 12 * alpha**2 * L**2 * B2
    C2 = 6 * alpha**2 * L**2 * N * B2 * (alpha**2 * 300 + A2**2) + N * B1 * A2**2
    bound, limit = _noisy(BOUNDED, STEPS)
    for T, earlier in ((1, 0), (2, 100), (3, 300)):
        lemma_5 = C2 / (B4 * N * T) + 6 * alpha**4 * L**2 * B2 / (B4 * T) * earlier
        lemma_5 += 12 * B2 / B4 * alpha**2 * 0.01
        equation_44 = 2 / (alpha * T) * 1e-7 + C2 * L**2 / (B4 * N * T) + L * alpha * 0.01
        equation_44 += 12 * B2 / B4 * alpha**2 * L**2 * 0.01
        assert limit[T - 1] == pytest.approx(N * T * lemma_5)
        assert bound[T - 1] == pytest.approx(T * equation_44)


def test_of_several_runs_the_mean_is_taken_and_the_largest_coordinate() -> None:
    steps = [
        Steps(np.full(2, k), np.full(2, 10 * k), np.full(2, 100 * k), gap=k * 1e3, A2=k * 1e4)
        for k in (1.0, 3.0)
    ]
    mean = _mean(steps)
    assert (mean.squares[0], mean.disagreement[0], mean.mean_squares[0]) == (2, 20, 200)
    assert (mean.gap, mean.A2) == (2e3, 3e4)


def test_the_largest_coordinate_leaves_the_mean_out() -> None:
    """Three models on a line: with (1, 1, 1), (-1, 2, -1) and (-1, 0, 1), normed."""
    first, second = np.array([[0.0], [3.0], [0.0]]), np.array([[0.0], [6.0], [6.0]])
    parts = (6 / sqrt(6) + 6 / sqrt(6), 0 + 6 / sqrt(2))
    assert _largest_coordinate(first, second) == pytest.approx(max(parts))
