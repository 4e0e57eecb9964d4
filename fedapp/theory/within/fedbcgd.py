"""FedBCGD and FedBCGD+: theorems 1 and 2 in their explicit forms, equations 51 and 102 of the supplement.

z = x + lambda/(1 - lambda) (x - the x before). Theorem 1's bound is equation 51, summed with the weights (1 - mu eta~)^-r; the
theorem prints eta~ <= 1/beta, its proof needs the bracket of equation 51. Theorem 2's rate is lemma 15's.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.config import RunConfig
from fedapp.report.panels import Curve, Panel
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, rounds_of
from fedapp.theory.hypotheses import Setting, fedbcgd, fedbcgd_plus
from fedapp.theory.outcome import Finding, Outcome, Theorem
from fedapp.theory.played import Played, quadratic_of
from fedapp.theory.within.trails import Look, admissible, below, mean_trail


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
    K, eta, alpha = s.per_block, s.effective, 1 / (1 - s.beta1)
    first = 32 * (1 - K / s.n) / K * s.rho2 + 64 * s.sigma2 / (s.tau * K)
    second = 384 * s.L * s.rho2 + 192 * s.L * s.sigma2 / s.tau
    third = 6144 * s.L**2 * s.rho2 + 3072 * s.L**2 * s.sigma2 / s.tau
    return first * eta + (second * eta**2 + third * eta**3) / alpha**2


def fedbcgd_51(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem 1: the weighted mean of f(z) - f* after every round."""
    s, trail = exact_setting(configs[0]), _several(configs)
    weights = (1 - s.mu * s.effective) ** -rounds_of(trail["f_z"])
    totals = np.cumsum(weights)
    means = np.cumsum(weights * trail["f_z"]) / totals
    bound = trail["z"][0] / (s.effective * totals) + noise_51(s)
    drift = 6 * s.tau**3 * s.eta**2 * trail["slopes"] + 3 * s.r * s.tau**2 * s.eta**2 * s.sigma2
    off = float(trail["off"].max())
    rounds = rounds_of(means)
    return Outcome(
        [
            admissible([fedbcgd(s)]),
            below("weighted mean of f(z) - f* below equation 51, in every round", [means], [bound]),
            Finding("lemma 10: z moves by -eta G/(1 - lambda)", "to 1e-12", f"{off:.0e}", off < 1e-12),
            below("lemma 5: drift, in every round", [trail["drift"]], [drift]),
        ],
        [
            Panel(
                "", "rounds", "f(z) - f*",
                [Curve("weighted mean", rounds, means), Curve("bound", rounds, bound, "guide")],
            )
        ],
    )  # fmt: skip


def _several(configs: Sequence[RunConfig]) -> dict[str, Values]:
    """Return the mean over seeds; each run needs a look of its own, because it remembers the x before."""
    trails = [mean_trail([config], look_at_z(config)) for config in configs]
    return {name: np.mean([trail[name] for trail in trails], axis=0) for name in trails[0]}


def fedbcgd_102(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem 2: |z - x*|^2 and the control variates' lag shrink together."""
    s, trail = exact_setting(configs[0]), _several(configs)
    weight = 9 * s.effective**2 * s.n / s.per_block
    problem = quadratic_of(configs[0])
    A, b = problem.A.numpy(), problem.b.numpy()
    lag = float((np.einsum("cij,cj->ci", A, problem.optimum - b) ** 2).sum(1).mean())  # c_i = 0
    together = trail["z_next"] + weight * trail["C"]
    start = trail["z"][0] + weight * lag
    rounds = rounds_of(together)
    bound = (1 - s.effective * s.mu / 2) ** rounds * start
    return Outcome(
        [
            admissible([fedbcgd_plus(s)]),
            below("|z - x*|^2 + 9 eta~^2 (M/K) C below equation 102, in every round", [together], [bound]),
        ],
        [
            Panel(
                "", "rounds", "|z - x*|^2 + 9 eta~^2 (M/K) C",
                [Curve("measured", rounds, together), Curve("bound", rounds, bound, "guide")],
                log_x=False,
            )
        ],
    )  # fmt: skip


THEOREMS = {
    "fedbcgd-51": Theorem("FedBCGD, theorem 1", play=fedbcgd_51),
    "fedbcgd-102": Theorem("FedBCGD+, theorem 2", play=fedbcgd_102),
}
