"""FedCOM and FedCOMGATE: theorems D.4, D.7, D.9, E.4, E.6, E.9 and their corollaries.

The equations are those of FedCOM's supplement. Where it slips, the weaker statement is checked: equation 73 has
1 - 20 eta^2 L^2 tau^2 on its left side, which 62 leaves out; 88 has a term with eta^3 sigma^2, which 79 leaves out. Theorems
D.9 and E.9 run on f + phi/2 |w|^2, whose L is that of f and phi.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.config import RunConfig
from fedapp.report.panels import Curve, Panel
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, above, rounds_of, slope
from fedapp.theory.hypotheses import (
    Conditions,
    Setting,
    fedcom,
    fedcom_pl,
    fedcomgate,
    fedcomgate_pl,
)
from fedapp.theory.outcome import NO_THEOREM, Finding, Outcome, Theorem
from fedapp.theory.played import Played, quadratic_of
from fedapp.theory.within.trails import (
    Look,
    Trail,
    admissible,
    below,
    mean_trail,
    points_of,
    running_mean,
    typical_noise,
)


def equation_22(s: Setting, gap: float, R: Values) -> Values:
    """Return the bound on the mean of the first R squared gradients (theorem D.4)."""
    floor = s.L * s.eta * s.gamma * (s.q + 1) / s.n + s.L**2 * s.eta**2 * s.tau
    bound: Values = 2 * gap / (s.eta * s.gamma * s.tau * R) + floor * s.sigma2
    return bound


def equation_38(s: Setting, gap: float, R: Values) -> Values:
    """Return the bound on f - f* after R rounds (theorem D.7)."""
    floor = 0.5 * s.L**2 * s.tau * s.eta**2 + (1 + s.q) * s.gamma * s.eta * s.L / (2 * s.n)
    bound: Values = (1 - s.eta * s.gamma * s.mu * s.tau) ** R * gap + floor * s.sigma2 / s.mu
    return bound


def equation_62(s: Setting, gap: float, own_gap: float, G_q: float, R: Values) -> Values:
    """Return the bound on the mean of the first R squared gradients (theorem E.4); own_gap: mean f_j - f_j*."""
    step, server = s.eta * s.L, s.eta * s.gamma
    bound: Values = 2 * gap / (s.tau * server * R)
    bound += ((s.q + 1) * server * s.L / s.n + 36 * step**2 * s.tau) * s.sigma2
    bound += (
        10 * step**2 * s.L**2 * s.tau**2 * server**2 * (s.q + 1) * (s.tau * s.sigma2 / s.n + G_q)
    )
    bound += 32 * step * s.L * s.tau * own_gap / R
    bound += 16 * step**2 * s.eta * s.tau**2 * s.sigma2 / R
    bound += 32 * step**2 * s.L * s.tau**2 * gap / R
    bound += server * s.L / s.tau * G_q
    return bound / (1 - 20 * step**2 * s.tau**2)


def floor_79(s: Setting, gap: float, own_distance: float, G_q: float) -> float:
    """Return what is in brackets in equation 79, with the term of 88; own_distance: mean |w_0 - w_j*|^2."""
    step, server = s.eta * s.L, s.eta * s.gamma
    floor = 18 * step**2 * s.tau * s.sigma2
    floor += 8 * s.L**2 * step**2 * s.tau**2 * own_distance
    floor += 8 * s.L**2 * step**2 * s.tau**2 * s.eta * s.sigma2 / (s.mu * (1 - step))
    floor += 16 * s.L * step**2 * s.tau**2 * gap
    floor += (
        5 * s.L**2 * step**2 * s.tau**2 * server**2 * (s.q + 1) * (s.tau * s.sigma2 / s.n + G_q)
    )
    return (
        floor + (s.q + 1) * server * s.L * s.sigma2 / (2 * s.n) + s.L * server * G_q / (2 * s.tau)
    )


def equation_79(s: Setting, gap: float, own_distance: float, G_q: float, R: Values) -> Values:
    """Return the bound on f - f* after R rounds (theorem E.6)."""
    rate: Values = (1 - s.mu * s.eta * s.gamma * s.tau / 3) ** R
    return rate * gap + 3 / s.mu * floor_79(s, gap, own_distance, G_q)


def _speed_up(name: str, ends: dict[int, float]) -> Finding:
    """Compare the means at the end over m: linear speed-up is 1/sqrt(m)."""
    exponent = slope(list(ends), list(ends.values()))
    return Finding(
        f"{name}: linear speed-up in m, with server-lr = m",
        "mean |grad f|^2 at the end falls as m^-0.5 (exponent at most -0.3)",
        f"{exponent:.2f} (m = {', '.join(map(str, ends))})",
        exponent <= -0.3,
    )


def _means_outcome(
    equation: int,
    corollary: str,
    means: dict[str, Values],
    bounds: list[Values],
    conditions: list[Conditions],
    ends: dict[int, float],
) -> Outcome:
    """Compare the means of |grad f|^2 of several points with their bounds, and their ends over m."""
    curves = []
    for (name, measured), bound in zip(means.items(), bounds, strict=True):
        curves.append(Curve(name, rounds_of(measured), measured))
        curves.append(Curve("", rounds_of(bound), bound, "guide"))
    below_it = f"mean |grad f|^2 below equation {equation}, in every round"
    return Outcome(
        [
            admissible(conditions),
            below(below_it, list(means.values()), bounds),
            _speed_up(f"corollary {corollary}", ends),
        ],
        [Panel("bounds in grey", "rounds", "mean of |grad f|^2", curves)],
    )


def fedcom_d4(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem D.4 and corollaries D.5 and D.6: equal clients, mean |grad f|^2 below equation 22 in every round."""
    means, bounds, conditions, ends = {}, [], [], {}
    for name, group in points_of(configs, "fedcom-d4").items():
        trail, s = mean_trail(group), exact_setting(group[0])
        means[name] = running_mean(trail["squared_gradient"][:-1])
        bounds.append(equation_22(s, trail["gap"][0], rounds_of(means[name])))
        conditions.append(fedcom(s))
        if s.gamma >= s.n:
            ends[s.n] = float(means[name][-1])
    return _means_outcome(22, "D.5", means, bounds, conditions, ends)


def fedcom_d8(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem D.7 with corollary D.8's step sizes: server-lr = m, PL."""
    s, trail = exact_setting(configs[0]), mean_trail(configs)
    gaps, R = trail["gap"][1:], rounds_of(trail["gap"][1:])
    bound = equation_38(s, trail["gap"][0], R)
    corollary = np.exp(-R / (2 * (s.q / s.n + 1) * s.L / s.mu)) * trail["gap"][0]
    corollary += bound[-1] - (1 - s.eta * s.gamma * s.mu * s.tau) ** R[-1] * trail["gap"][0]
    return Outcome(
        [
            admissible([fedcom_pl(s)]),
            below("f - f* below equation 38, in every round", [gaps], [bound]),
            below("corollary D.8: below equation 43's first line", [gaps], [corollary]),
        ],
        [_panel(trail, bound)],
    )


def _panel(trail: Trail, bound: Values) -> Panel:
    gaps = trail["gap"][1:]
    curves = [
        Curve("f - f*", rounds_of(gaps), gaps),
        Curve("bound", rounds_of(gaps), bound, "guide"),
    ]
    return Panel("", "rounds", "f - f*", curves, log_x=False)


def fedcom_d9(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem D.9: convex, with weight decay phi = 1/sqrt(m tau)."""
    s, trail = exact_setting(configs[0]), mean_trail(configs)
    phi, gap = configs[0].weight_decay, trail["gap"][0]
    R, share = rounds_of(trail["gap"][1:]), 1 + s.q / s.n
    root = (s.n * s.tau) ** 0.5
    bound = np.exp(-R / (2 * s.L * share * root)) * gap
    bound += s.sigma2 * (s.n / s.tau) ** 0.5 / (8 * s.gamma**2 * share**2)
    bound += (1 + s.q) * s.sigma2 / (4 * share * root) + _optimum(configs[0]) / (2 * root)
    finding = below("f - f* below equation 45, in every round", [trail["gap"][1:]], [bound])
    return Outcome(
        [admissible([fedcom(s)]), _chosen(s, phi, share), finding], [_panel(trail, bound)]
    )


def _chosen(s: Setting, phi: float, share: float) -> Finding:
    """Say whether phi and eta are what the theorem chooses."""
    wanted = (s.n * s.tau) ** -0.5, 1 / (2 * s.L * s.gamma * s.tau * share)
    return Finding(
        "phi = 1/sqrt(m tau), and eta as it says",
        f"{wanted[0]:.4g}, {wanted[1]:.4g}",
        f"{phi:.4g}, {s.eta:.4g}",
        bool(np.allclose((phi, s.eta), wanted, rtol=1e-3)),
    )


def _optimum(config: RunConfig) -> float:
    return float((quadratic_of(config).optimum ** 2).sum())


def unevenness(levels: int) -> Look:
    """Return what measures G_q of assumption 5: how much E|mean Q(x_j)|^2 exceeds E|Q(mean x_j)|^2."""

    def look(played: Played) -> dict[str, float]:
        vectors = np.array([visit.plain[0] for visit in played.visits.values()])
        noises = [typical_noise(vector, levels) for vector in vectors]
        excess = sum(noises) / len(vectors) ** 2 - typical_noise(vectors.mean(0), levels)
        return {"G_q": max(excess, 0.0)}

    return look


def _tracked(configs: Sequence[RunConfig]) -> tuple[Setting, Trail, float]:
    """Return the setting, the mean trail, and the largest G_q of all runs."""
    trail = mean_trail(configs, unevenness(_levels(configs[0])))
    return exact_setting(configs[0]), trail, float(trail["G_q"].max())


def _levels(config: RunConfig) -> int:
    return int(config.flat()["qsgd.levels"])


def _own(config: RunConfig) -> tuple[float, float]:
    """Return the means over clients of f_j(w_0) - f_j* and of |w_0 - w_j*|^2; w_0 = 0. Weight decay is part of f_j."""
    problem = quadratic_of(config)
    A, b = problem.A.numpy(), problem.b.numpy()
    decayed = A + config.weight_decay * np.eye(A.shape[1])
    optima = np.array(
        [np.linalg.lstsq(H, a @ c, rcond=1e-10)[0] for H, a, c in zip(decayed, A, b, strict=True)]
    )
    gaps = 0.5 * np.einsum("ci,cij,cj->c", optima, decayed, optima)
    return float(gaps.mean()), float((optima**2).sum(1).mean())


def fedcomgate_e4(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem E.4 and corollary E.5: clients that differ, mean |grad f|^2 below equation 62."""
    means, bounds, conditions, ends = {}, [], [], {}
    for name, group in points_of(configs, "fedcomgate-e4").items():
        s, trail, G_q = _tracked(group)
        means[name] = running_mean(trail["squared_gradient"][:-1])
        own_gap, _ = _own(group[0])
        R = rounds_of(means[name])
        bounds.append(equation_62(s, trail["gap"][0], own_gap, G_q, R))
        conditions.append(fedcomgate(s))
        ends[s.n] = float(trail["squared_gradient"][len(R) // 2 :].mean())
    return _means_outcome(62, "E.5", means, bounds, conditions, ends)


def fedcomgate_e6(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem E.6 with corollary E.8's step sizes: server-lr = sqrt(m tau)."""
    s, trail, G_q = _tracked(configs)
    gaps = trail["gap"][1:]
    _, own_distance = _own(configs[0])
    bound = equation_79(s, trail["gap"][0], own_distance, G_q, rounds_of(gaps))
    return Outcome(
        [
            admissible([fedcomgate_pl(s)]),
            below("f - f* below equation 79, in every round", [gaps], [bound]),
        ],
        [_panel(trail, bound)],
    )


def fedcomgate_e9(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem E.9: convex, with weight decay phi = 1/sqrt(m tau)."""
    s, trail, G_q = _tracked(configs)
    gaps, phi = trail["gap"][1:], configs[0].weight_decay
    _, own_distance = _own(configs[0])
    rate = np.exp(-rounds_of(gaps) * s.eta * s.gamma * phi * s.tau / 3)
    floor = floor_79(s, trail["gap"][0], own_distance, G_q)
    bound = rate * trail["gap"][0] + 3 / phi * floor + phi / 2 * _optimum(configs[0])
    finding = below("f - f* below equation 94, in every round", [gaps], [bound])
    return Outcome(
        [admissible([fedcomgate_pl(s)]), _chosen(s, phi, 1 + s.q), finding], [_panel(trail, bound)]
    )


def fedcomgate_coarse(configs: Sequence[RunConfig]) -> Outcome:
    """With a coarse quantizer and a = 1 an admissible step size diverges: no G_q bounds the errors."""
    printed, damped = points_of(configs, "fedcomgate-coarse").values()
    s, trail, _ = _tracked(printed)
    _, tame, _ = _tracked(damped)
    reached = trail["G_q"][np.isfinite(trail["G_q"]) & (trail["G_q"] > 0)]
    growth, end = float(reached[-1] / reached[0]), float(tame["gap"][-1] / tame["gap"][0])
    curves = [
        Curve(name, rounds_of(t["gap"]), t["gap"])
        for name, t in (("as printed", trail), ("damped", tame))
    ]
    return Outcome(
        [
            admissible([fedcomgate(s)]),
            Finding(
                f"and it diverges (q = {s.q:.2g}): assumption 5 fails",
                "f - f* ends above its start, and G_q grows a thousandfold at least",
                f"f - f* {trail['gap'][-1] / trail['gap'][0]:.1e} times, G_q {growth:.1e} times",
                bool(trail["gap"][-1] > trail["gap"][0]) and growth > 1e3,
            ),
            Finding(
                "damped tracking (ours) converges at the same step size",
                "f - f* falls to a hundredth",
                f"{end:.1e} times",
                end < 0.01 and above([1 / end], 1),
                NO_THEOREM,
            ),
        ],
        [Panel(f"q = {s.q:.2g}", "rounds", "f - f*", curves, log_x=False)],
    )


THEOREMS = {
    "fedcom-d4": Theorem("FedCOM, theorem D.4", play=fedcom_d4),
    "fedcom-d8": Theorem("FedCOM, theorem D.7 and corollary D.8", play=fedcom_d8),
    "fedcom-d9": Theorem("FedCOM, theorem D.9", play=fedcom_d9),
    "fedcomgate-e4": Theorem("FedCOMGATE, theorem E.4", play=fedcomgate_e4),
    "fedcomgate-e6": Theorem("FedCOMGATE, theorem E.6 and corollary E.8", play=fedcomgate_e6),
    "fedcomgate-e9": Theorem("FedCOMGATE, theorem E.9", play=fedcomgate_e9),
    "fedcomgate-coarse": Theorem("FedCOMGATE, where assumption 5 fails", play=fedcomgate_coarse),
}
