"""FedBCGD and FedBCGD+: theorems 1 and 2, strongly convex, in their explicit forms, equations 51 and 102 of the supplement.

z = x + lambda/(1 - lambda) (x - the x before). Theorem 1's bound is equation 51, summed with the weights (1 - mu eta~)^-r; the
theorem prints eta~ <= 1/beta, its proof needs the bracket of equation 51. Theorem 2's rate is lemma 15's, with the
eta~ = alpha eta T of its proof; the theorem prints alpha eta T/4. Both proofs let local steps start at z; they start at x, so
that the proofs are for lambda = 0.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedapp.config import RunConfig
from fedapp.report.panels import Curve, Panel
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, rounds_of
from fedapp.theory.hypotheses import Setting, fedbcgd, fedbcgd_plus
from fedapp.theory.outcome import BEYOND, Finding, Outcome, Theorem
from fedapp.theory.played import Played, quadratic_of
from fedapp.theory.within.trails import Look, admissible, below, mean_trail, points_of

CONVERGED = (
    1e-6  # plain local SGD stays above 0.1, and so does FedBCGD+ with wrong signs or a wrong c
)


def look_at_z(config: RunConfig) -> Look:
    """Return what measures z after a round, how far lemma 10 is off, the drift, and the control variates."""
    problem, s = quadratic_of(config), exact_setting(config)
    A, b, best = problem.A.numpy(), problem.b.numpy(), problem.optimum
    at_best = np.einsum("cij,cj->ci", A, best - b)
    gamma = s.beta1 / (1 - s.beta1)
    last = np.zeros_like(best)  # the x before; x_0 = 0

    def look(played: Played) -> dict[str, float]:
        nonlocal last
        z = played.before + gamma * (played.before - last)
        moved = played.after + gamma * (played.after - played.before)
        last = played.before
        slopes = np.einsum("cij,cj->ci", A, played.before - b)
        figures = problem.evaluate(z, z[:0])
        clients = list(played.visits)
        paths = [np.array(played.visits[c].points) - played.before for c in clients]
        own = np.array([_control(played, c, len(best)) for c in range(config.num_clients)])
        return {
            "f_z": figures["gap"],
            "z": figures["distance"] ** 2,
            "z_next": float(((moved - best) ** 2).sum()),
            "off": float(np.abs(moved - z + s.eta / (1 - s.beta1) * _gradients(played)).max()),
            "drift": float(sum((path**2).sum() for path in paths)),
            "slopes": float((slopes[clients] ** 2).sum()),
            "C": float(((own - at_best) ** 2).sum(1).mean()),
        }

    return look


def _control(played: Played, client: int, size: int) -> Values:
    c_i = played.states[client].get("c_i")
    return np.zeros(size) if c_i is None else c_i.numpy()


def _gradients(played: Played) -> Values:
    """Return G of equation 9: each block's mean over its clients of the summed gradients."""
    total, reports = np.zeros_like(played.before), np.zeros_like(played.before)
    for client, visit in played.visits.items():
        summed = np.sum(visit.gradients, axis=0)
        for place in played.strategy.places(client):
            total[place] += summed[place]
            reports[place] += 1
    return total / np.maximum(reports, 1)


def noise_51(s: Setting) -> float:
    """Return what equation 51 adds every round."""
    K, eta, alpha = s.per_block, s.effective_1, 1 / (1 - s.beta1)
    first = 32 * (1 - K / s.n) / K * s.rho2 + 64 * s.sigma2 / (s.tau * K)
    second = 384 * s.L * s.rho2 + 192 * s.L * s.sigma2 / s.tau
    third = 6144 * s.L**2 * s.rho2 + 3072 * s.L**2 * s.sigma2 / s.tau
    return first * eta + (second * eta**2 + third * eta**3) / alpha**2


def weights_51(s: Setting, rounds: Values) -> Values:
    """Return what the rounds weigh when equation 51 is summed."""
    weights: Values = (1 - s.own_mu * s.effective_1) ** -rounds
    return weights


def equation_51(s: Setting, start: float, rounds: Values) -> Values:
    """Return the bound on the weighted mean of f(z) - f*; start: |z_0 - x*|^2."""
    bound: Values = start / (s.effective_1 * np.cumsum(weights_51(s, rounds))) + noise_51(s)
    return bound


def fedbcgd_51(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem 1: the weighted mean of f(z) - f* after every round, without momentum and with it."""
    points = [_against_51(several) for several in points_of(configs, "fedbcgd-51").values()]
    (s, trail, means, bound), (half, moved, *half_below), (most, _, most_means, most_bound) = points
    drift = 6 * s.tau**3 * s.eta**2 * trail["slopes"] + 3 * s.r * s.tau**2 * s.eta**2 * s.sigma2
    off, beyond = float(moved["off"].max()), float((most_means / most_bound).max())
    rounds = rounds_of(means)
    return Outcome(
        [
            admissible([fedbcgd(s)]),
            below("weighted mean of f(z) - f* below equation 51, in every round", [means], [bound]),
            Finding("lemma 10: z moves by -eta G/(1 - lambda)", "to 1e-12", f"{off:.0e}", off < 1e-12),
            below("lemma 5: drift, in every round", [trail["drift"]], [drift]),
            replace(
                below(f"equation 51 with lambda = {half.beta1:g}, in every round", *([v] for v in half_below)),
                scope=BEYOND,
            ),
            Finding(
                f"equation 51 fails with lambda = {most.beta1:g}, where z is far from x",
                "measured/bound above 1",
                f"{beyond:.2g}",
                bool(np.isfinite(beyond) and beyond > 1),
                BEYOND,
            ),
        ],
        [
            Panel(
                "", "rounds", "f(z) - f*",
                [
                    Curve("weighted mean", rounds, means),
                    Curve(f"lambda = {most.beta1:g}", rounds, most_means),
                    Curve("bound", rounds, bound, "guide"),
                ],
            )
        ],
    )  # fmt: skip


def _against_51(configs: Sequence[RunConfig]) -> tuple[Setting, dict[str, Values], Values, Values]:
    """Return the setting, what was measured, the weighted mean of f(z) - f* and its bound."""
    s, trail = exact_setting(configs[0]), _several(configs)
    weights = weights_51(s, rounds_of(trail["f_z"]))
    means = np.cumsum(weights * trail["f_z"]) / np.cumsum(weights)
    return s, trail, means, equation_51(s, trail["z"][0], rounds_of(means))


def _several(configs: Sequence[RunConfig]) -> dict[str, Values]:
    """Return the mean over seeds; each run needs a look of its own, because it remembers the x before."""
    trails = [mean_trail([config], look_at_z(config)) for config in configs]
    return {name: np.mean([trail[name] for trail in trails], axis=0) for name in trails[0]}


def equation_102(s: Setting, start: float, rounds: Values) -> Values:
    """Return the bound on |z - x*|^2 + 9 eta~^2 (M/K) C after some rounds."""
    bound: Values = (1 - s.effective_2 * s.own_mu / 2) ** rounds * start
    return bound


def weight_of_lag(s: Setting) -> float:
    """Return 9 eta~^2 M/K, by which lemma 15 multiplies the control variates' lag."""
    return 9 * s.effective_2**2 * s.n / s.per_block


def fedbcgd_102(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem 2: |z - x*|^2 and the control variates' lag shrink together.

    The step size that the proof allows is so small that the bound is nearly flat, and holds without control variates too. So
    a practical step size shows that they work: they alone make the noise and the clients' differences vanish.
    """
    admitted, practical = points_of(configs, "fedbcgd-102").values()
    s = exact_setting(admitted[0])
    together, start = _with_lag(admitted)
    rounds = rounds_of(together)
    bound = equation_102(s, start, rounds)
    linear, _ = _with_lag(practical)
    lr = practical[0].lr
    return Outcome(
        [
            admissible([fedbcgd_plus(s)]),
            below("|z - x*|^2 + 9 eta~^2 (M/K) C below equation 102, in every round", [together], [bound]),
            Finding(
                f"with lr = {lr:g} the same sum vanishes, as the control variates must make it",
                f"below {CONVERGED:.0e} at the end",
                f"{linear[-1]:.0e}",
                bool(linear[-1] < CONVERGED),
                BEYOND,
            ),
        ],
        [
            Panel(
                "", "rounds", "|z - x*|^2 + 9 eta~^2 (M/K) C",
                [
                    Curve("measured", rounds, together),
                    Curve("bound", rounds, bound, "guide"),
                    Curve(f"lr = {lr:g}", rounds_of(linear), linear),
                ],
                log_x=False,
            )
        ],
    )  # fmt: skip


def _with_lag(configs: Sequence[RunConfig]) -> tuple[Values, float]:
    """Return |z - x*|^2 + 9 eta~^2 (M/K) C after every round, and at the start, where every c_i is 0."""
    s, trail = exact_setting(configs[0]), _several(configs)
    problem = quadratic_of(configs[0])
    A, b = problem.A.numpy(), problem.b.numpy()
    lag = float((np.einsum("cij,cj->ci", A, problem.optimum - b) ** 2).sum(1).mean())
    weight = weight_of_lag(s)
    return trail["z_next"] + weight * trail["C"], float(trail["z"][0] + weight * lag)


THEOREMS = {
    "fedbcgd-51": Theorem("FedBCGD, theorem 1, strongly convex", play=fedbcgd_51),
    "fedbcgd-102": Theorem("FedBCGD+, theorem 2, strongly convex", play=fedbcgd_102),
}
