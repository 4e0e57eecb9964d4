"""FedCET: the bounds 32 and 44 of its supplement, and the consensus error (equation 30 and lemma 5).

X(0) is what the clients hold after the common start's first step; its first exchange is at t = 0. Equation 32 divides the
sum that 31 bounds by tau K; here both sides are sums, at every t.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedapp.config import RunConfig
from fedapp.report.panels import Curve, Panel
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, rounds_of
from fedapp.theory.hypotheses import Setting, fedcet_1, fedcet_2, fedcet_constants
from fedapp.theory.outcome import Outcome, Theorem
from fedapp.theory.played import play, quadratic_of
from fedapp.theory.within.trails import admissible, below, points_of


@dataclass(frozen=True)
class Steps:
    """What the bounds speak of, at t = 1, 2, ..., T."""

    squares: Values  # |grad f(mean x_i)|^2
    disagreement: Values  # sum over i of |mean x_j - x_i|^2
    mean_squares: Values  # |mean grad f_i(x_i)|^2; the first is that at t = 0
    gap: float  # f(mean x_i(1)) - f*
    A2: float


def watch(config: RunConfig) -> Steps:
    """Play a run, and look at all clients' models after every step."""
    problem = quadratic_of(config)
    X: list[Values] = []
    for played in play(config):
        visits = [visit.points for visit in played.visits.values()]
        several = np.array([points[1:] if played.number == 1 else points for points in visits])
        X.extend(several.swapaxes(0, 1))  # one matrix of the clients' models for each t
    models = np.array(X)
    A, b = problem.A.numpy(), problem.b.numpy()
    means = models.mean(1)
    gradients = np.einsum("cij,tcj->tci", A, models - b).mean(1)
    at_means = np.einsum("cij,tcj->ti", A, means[:, None] - b) / len(A)
    return Steps(
        (at_means[1:] ** 2).sum(1),
        ((models - means[:, None]) ** 2).sum((1, 2))[1:],
        (gradients**2).sum(1),
        problem.evaluate(means[1], means[1][:0])["gap"],
        _largest_coordinate(models[0], models[1]),
    )


def _largest_coordinate(first: Values, second: Values) -> float:
    """Return A_2: the largest |y_i(1)| + |y_i(0)|, i from 2 on, in the eigenvectors of W."""
    count = len(first)
    basis = np.linalg.qr(np.column_stack([np.ones(count), np.eye(count)[:, 1:]]))[0]
    norms = [np.linalg.norm(X.T @ basis, axis=0)[1:] for X in (first, second)]
    return float((norms[0] + norms[1]).max())


def _mean(steps: Sequence[Steps]) -> Steps:
    """Return the mean over seeds, which draw other quadratics and other noise; of A_2 the largest."""
    return Steps(
        np.mean([s.squares for s in steps], axis=0),
        np.mean([s.disagreement for s in steps], axis=0),
        np.mean([s.mean_squares for s in steps], axis=0),
        float(np.mean([s.gap for s in steps])),
        max(s.A2 for s in steps),
    )


def _check(configs: Sequence[RunConfig], preset: str, stochastic: bool) -> Outcome:
    hypotheses = fedcet_2 if stochastic else fedcet_1
    conditions, sums, bounds, errors, limits, curves = [], [], [], [], [], []
    for name, group in points_of(configs, preset).items():
        s, steps = exact_setting(group[0]), _mean([watch(config) for config in group])
        conditions.append(hypotheses(s))
        bound, limit = (_noisy if stochastic else _exact)(s, steps)
        sums.append(np.cumsum(steps.squares))
        errors.append(np.cumsum(steps.disagreement))
        bounds.append(bound)
        limits.append(limit)
        t = rounds_of(bound)
        curves += [Curve(name, t, sums[-1] / t), Curve("", t, bound / t, "guide")]
    equation, consensus = ("44", "lemma 5") if stochastic else ("32", "equation 30")
    return Outcome(
        [
            admissible(conditions),
            below(f"mean |grad f|^2 below equation {equation}, after every step", sums, bounds),
            below(f"consensus error below {consensus}, after every step", errors, limits),
        ],
        [Panel("bounds in grey", "steps", "mean of |grad f|^2", curves)],
    )


def _exact(s: Setting, steps: Steps) -> tuple[Values, Values]:
    """Return the right sides of equations 31 and 30 after every step."""
    constants = fedcet_constants(s.tau, s.xi)
    step, B2 = (s.eta * s.L) ** 2, constants.B2
    B3 = 1 - 4 * step * B2
    C1 = step * s.n * B2 * (s.eta**2 * steps.mean_squares[0] + 2 * steps.A2**2)
    C1 += s.n * constants.B1 * steps.A2**2
    before = np.concatenate([[0.0], np.cumsum(steps.mean_squares[1:-1])])
    limit: Values = (C1 + s.eta**2 * step * s.n * B2 * before) / B3
    bound = 2 / s.eta * steps.gap + C1 * s.L**2 / (B3 * s.n)
    return np.full(len(limit), bound), limit


def _noisy(s: Setting, steps: Steps) -> tuple[Values, Values]:
    """Return the right sides of equation 44 and lemma 5 after every step, times T and N T."""
    constants = fedcet_constants(s.tau, s.xi)
    step, B2 = (s.eta * s.L) ** 2, constants.B2
    B4 = 1 - 12 * step * B2
    C2 = 6 * step * s.n * B2 * (s.eta**2 * steps.mean_squares[0] + steps.A2**2)
    C2 += s.n * constants.B1 * steps.A2**2
    T = rounds_of(steps.squares)
    before = np.concatenate([[0.0], np.cumsum(steps.mean_squares[1:-1])])
    noise = 12 * B2 * s.eta**2 * s.sigma2 / B4
    limit: Values = (C2 + 6 * s.eta**2 * step * B2 * s.n * before) / B4 + noise * s.n * T
    bound: Values = 2 / s.eta * steps.gap + C2 * s.L**2 / (B4 * s.n)
    return bound + (s.L * s.eta * s.sigma2 + noise * s.L**2) * T, limit


def fedcet_32(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem 1, with full gradients."""
    return _check(configs, "fedcet-32", stochastic=False)


def fedcet_44(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem 2, with gradient noise."""
    return _check(configs, "fedcet-44", stochastic=True)


THEOREMS = {
    "fedcet-32": Theorem("FedCET, theorem 1", play=fedcet_32),
    "fedcet-44": Theorem("FedCET, theorem 2", play=fedcet_44),
}
