"""FedCOM and FedCOMGATE: theorems D.4, D.7, D.9, E.4, E.6, E.9 and their corollaries.

The equations are those of FedCOM's supplement. Where it slips, what its proof gives is checked: equation 73 has
1 - 20 eta^2 L^2 tau^2 on its left side, which 62 leaves out; in 62 the term 16 eta^3 L^2 tau^2 sigma^2/R lacks a factor L, which
step 2 of 74 loses; 88 has a term with eta^3 sigma^2, which 79 leaves out, and in which mu is that of the clients' own f_j.
Theorems D.9 and E.9 run on f + phi/2 |w|^2, whose L is that of f and phi.

Seeds differ in their quadratics: each has a bound of its own, and the mean of the runs is compared with that of the bounds.
G_q of assumption 5 is fixed by what quantization costs in a run's first rounds, E|mean Q(x_j) - mean x_j|^2, which exceeds
the difference that it is to bound: so a run that diverges cannot raise its own bound.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedapp.config import RunConfig
from fedapp.report.panels import Curve, Panel
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, above, rounds_of, slope
from fedapp.theory.hypotheses import (
    Condition,
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
    follow,
    mean_trail,
    points_of,
    running_mean,
    typical_noise,
)

FIRST_ROUNDS = 5  # that fix G_q


@dataclass(frozen=True)
class Own:
    """What the bounds of theorems E.4 to E.9 ask of the clients' own f_j; w_0 = 0."""

    gap: float  # mean f_j(w_0) - f_j*
    distance: float  # mean |w_0 - w_j*|^2
    mu: float  # every f_j is strongly convex, or PL, with mu


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


def equation_43(s: Setting, gap: float, R: Values) -> Values:
    """Return the first line of corollary D.8, with its eta in the rate."""
    rate: Values = np.exp(-R / (2 * (s.q / s.n + 1) * s.L / s.mu))
    return rate * gap + equation_38(s, 0.0, R)


def equation_45(s: Setting, gap: float, optimum: float, R: Values) -> Values:
    """Return the bound on f - f* after R rounds (theorem D.9); optimum: |w*|^2."""
    share, root = 1 + s.q / s.n, (s.n * s.tau) ** 0.5
    bound: Values = np.exp(-R / (2 * s.L * share * root)) * gap
    bound += s.sigma2 * (s.n / s.tau) ** 0.5 / (8 * s.gamma**2 * share**2)
    bound += (1 + s.q) * s.sigma2 / (4 * share * root) + optimum / (2 * root)
    return bound


def equation_62(s: Setting, gap: float, own: Own, G_q: float, R: Values) -> Values:
    """Return the bound on the mean of the first R squared gradients (theorem E.4)."""
    step, server = s.eta * s.L, s.eta * s.gamma
    bound: Values = 2 * gap / (s.tau * server * R)
    bound += ((s.q + 1) * server * s.L / s.n + 36 * step**2 * s.tau) * s.sigma2
    bound += (
        10 * step**2 * s.L**2 * s.tau**2 * server**2 * (s.q + 1) * (s.tau * s.sigma2 / s.n + G_q)
    )
    bound += 32 * step * s.L * s.tau * own.gap / R
    bound += 16 * step**3 * s.tau**2 * s.sigma2 / R
    bound += 32 * step**2 * s.L * s.tau**2 * gap / R
    bound += server * s.L / s.tau * G_q
    return bound / (1 - 20 * step**2 * s.tau**2)


def floor_79(s: Setting, gap: float, own: Own, G_q: float) -> float:
    """Return what is in brackets in equation 79, with the term of 88."""
    step, server = s.eta * s.L, s.eta * s.gamma
    floor = 18 * step**2 * s.tau * s.sigma2
    floor += 8 * s.L**2 * step**2 * s.tau**2 * own.distance
    floor += 8 * s.L**2 * step**2 * s.tau**2 * s.eta * s.sigma2 / (own.mu * (1 - step))
    floor += 16 * s.L * step**2 * s.tau**2 * gap
    floor += (
        5 * s.L**2 * step**2 * s.tau**2 * server**2 * (s.q + 1) * (s.tau * s.sigma2 / s.n + G_q)
    )
    return (
        floor + (s.q + 1) * server * s.L * s.sigma2 / (2 * s.n) + s.L * server * G_q / (2 * s.tau)
    )


def equation_79(s: Setting, gap: float, own: Own, G_q: float, R: Values) -> Values:
    """Return the bound on f - f* after R rounds (theorem E.6)."""
    rate: Values = (1 - s.mu * s.eta * s.gamma * s.tau / 3) ** R
    return rate * gap + 3 / s.mu * floor_79(s, gap, own, G_q)


def equation_94(
    s: Setting, phi: float, gap: float, own: Own, optimum: float, G_q: float, R: Values
) -> Values:
    """Return the bound on f - f* after R rounds (theorem E.9); optimum: |w*|^2."""
    rate: Values = np.exp(-R * s.eta * s.gamma * phi * s.tau / 3)
    return rate * gap + 3 / phi * floor_79(s, gap, own, G_q) + phi / 2 * optimum


def _speed_up(name: str, ends: dict[int, float]) -> Finding:
    """Compare the means at the end, over their starts, for several m: linear speed-up is 1/sqrt(m)."""
    exponent = slope(list(ends), list(ends.values()))
    return Finding(
        f"{name}: linear speed-up in m, with server-lr = m",
        "mean |grad f|^2 of all rounds, over its start, falls as m^-0.5 (exponent at most -0.3)",
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


@dataclass(frozen=True)
class Compared:
    """Runs that differ in their seeds: each one's setting and trail, the mean trail, and the mean of their bounds."""

    settings: list[Setting]
    trails: list[Trail]
    trail: Trail
    bound: Values

    @property
    def gaps(self) -> Values:
        """Return f - f* after every round."""
        return self.trail["gap"][1:]


def _compared(
    configs: Sequence[RunConfig],
    bound: Callable[[RunConfig, Setting, Trail, Values], Values],
    look: Look | None = None,
) -> Compared:
    """Play runs, and average them and their bounds."""
    settings = [exact_setting(config) for config in configs]
    trails = [follow(config, look) for config in configs]
    R = rounds_of(trails[0]["gap"][1:])
    bounds = [bound(c, s, trail, R) for c, s, trail in zip(configs, settings, trails, strict=True)]
    mean = {name: np.mean([trail[name] for trail in trails], axis=0) for name in trails[0]}
    return Compared(settings, trails, mean, np.mean(bounds, axis=0))


def fedcom_d4(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem D.4 and corollaries D.5 and D.6: equal clients, mean |grad f|^2 below equation 22 in every round."""
    means, bounds, conditions, ends = {}, [], [], {}

    def bound(_: RunConfig, s: Setting, trail: Trail, R: Values) -> Values:
        return equation_22(s, trail["gap"][0], R)

    for name, group in points_of(configs, "fedcom-d4").items():
        seen, s = _compared(group, bound), exact_setting(group[0])
        means[name] = running_mean(seen.trail["squared_gradient"][:-1])
        bounds.append(seen.bound)
        conditions += [fedcom(setting) for setting in seen.settings]
        if s.gamma >= s.n:
            ends[s.n] = float(means[name][-1] / means[name][0])
    return _means_outcome(22, "D.5", means, bounds, conditions, ends)


def fedcom_d8(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem D.7 with corollary D.8's step sizes: server-lr >= m, PL."""

    def both(_: RunConfig, s: Setting, trail: Trail, R: Values) -> Values:
        gap = trail["gap"][0]
        return np.array([equation_38(s, gap, R), equation_43(s, gap, R)])

    seen = _compared(configs, both)
    bound, corollary = seen.bound
    return Outcome(
        [
            admissible([fedcom_pl(s) for s in seen.settings]),
            below("f - f* below equation 38, in every round", [seen.gaps], [bound]),
            below("corollary D.8: below equation 43's first line", [seen.gaps], [corollary]),
        ],
        [_panel(seen.gaps, bound)],
    )


def _panel(gaps: Values, bound: Values) -> Panel:
    curves = [
        Curve("f - f*", rounds_of(gaps), gaps),
        Curve("bound", rounds_of(gaps), bound, "guide"),
    ]
    return Panel("", "rounds", "f - f*", curves, log_x=False)


def fedcom_d9(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem D.9: convex, with weight decay phi = 1/sqrt(m tau)."""

    def bound(config: RunConfig, s: Setting, trail: Trail, R: Values) -> Values:
        return equation_45(s, trail["gap"][0], _optimum(config), R)

    seen, s = _compared(configs, bound), exact_setting(configs[0])
    return Outcome(
        [
            admissible([fedcom(setting) for setting in seen.settings]),
            _chosen(s, configs[0].weight_decay, 1 + s.q / s.n),
            below("f - f* below equation 45, in every round", [seen.gaps], [seen.bound]),
        ],
        [_panel(seen.gaps, seen.bound)],
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
    """Return what measures G_q of assumption 5: how much E|mean Q(x_j)|^2 exceeds E|Q(mean x_j)|^2; and the first's noise."""

    def look(played: Played) -> dict[str, float]:
        vectors = np.array([visit.plain[0] for visit in played.visits.values()])
        noises = [typical_noise(vector, levels) for vector in vectors]
        noise = sum(noises) / len(vectors) ** 2
        excess = noise - typical_noise(vectors.mean(0), levels)
        return {"G_q": max(excess, 0.0), "noise": noise}

    return look


def _look(config: RunConfig) -> Look:
    return unevenness(int(config.flat()["qsgd.levels"]))


def fixed_unevenness(trail: Trail) -> float:
    """Return the G_q that a run's first rounds fix."""
    return float(trail["noise"][:FIRST_ROUNDS].max())


def assumption_5(trail: Trail) -> Condition:
    """Return that no round exceeds the G_q that the first ones fix."""
    text = f"assumption 5: G_q over the quantization noise of rounds 1 to {FIRST_ROUNDS} <= 1"
    return Condition(text, float(trail["G_q"].max()) / fixed_unevenness(trail))


def _hypotheses(conditions: Callable[[Setting], Conditions], seen: Compared) -> list[Conditions]:
    return [
        [*conditions(s), assumption_5(trail)]
        for s, trail in zip(seen.settings, seen.trails, strict=True)
    ]


def _fades(trail: Trail) -> Finding:
    """Say whether the quantization noise fades; without tracking, D_j stays as large as clients are uneven."""
    noise, some = trail["noise"], FIRST_ROUNDS
    share = float(noise[-some:].mean() / noise[:some].mean())
    return Finding(
        f"tracking: quantization noise fades (last {some} rounds over first {some})",
        "at most 0.1",
        f"{share:.2g}",
        share <= 0.1,
        NO_THEOREM,
    )


def _own(config: RunConfig) -> Own:
    """Return what the bounds ask of the clients' own f_j. Weight decay is part of f_j."""
    problem = quadratic_of(config)
    A, b = problem.A.numpy(), problem.b.numpy()
    decayed = A + config.weight_decay * np.eye(A.shape[1])
    optima = np.array(
        [np.linalg.lstsq(H, a @ c, rcond=1e-10)[0] for H, a, c in zip(decayed, A, b, strict=True)]
    )
    gaps = 0.5 * np.einsum("ci,cij,cj->c", optima, decayed, optima)
    curvatures = np.linalg.eigvalsh(decayed)
    mu = float(curvatures[curvatures > 1e-10].min())
    return Own(float(gaps.mean()), float((optima**2).sum(1).mean()), mu)


def fedcomgate_e4(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem E.4 and corollary E.5: clients that differ, mean |grad f|^2 below equation 62."""
    means, bounds, conditions, ends = {}, [], [], {}

    def bound(config: RunConfig, s: Setting, trail: Trail, R: Values) -> Values:
        return equation_62(s, trail["gap"][0], _own(config), fixed_unevenness(trail), R)

    for name, group in points_of(configs, "fedcomgate-e4").items():
        seen = _compared(group, bound, _look(group[0]))
        means[name] = running_mean(seen.trail["squared_gradient"][:-1])
        bounds.append(seen.bound)
        conditions += _hypotheses(fedcomgate, seen)
        ends[seen.settings[0].n] = float(means[name][-1] / means[name][0])
    return _means_outcome(62, "E.5", means, bounds, conditions, ends)


def fedcomgate_e6(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem E.6 with corollary E.8's step sizes: server-lr >= sqrt(m tau)."""

    def bound(config: RunConfig, s: Setting, trail: Trail, R: Values) -> Values:
        return equation_79(s, trail["gap"][0], _own(config), fixed_unevenness(trail), R)

    seen = _compared(configs, bound, _look(configs[0]))
    return Outcome(
        [
            admissible(_hypotheses(fedcomgate_pl, seen)),
            below("f - f* below equation 79, in every round", [seen.gaps], [seen.bound]),
            _fades(seen.trail),
        ],
        [_panel(seen.gaps, seen.bound)],
    )


def fedcomgate_e9(configs: Sequence[RunConfig]) -> Outcome:
    """Theorem E.9: convex, with weight decay phi = 1/sqrt(m tau)."""
    phi = configs[0].weight_decay

    def bound(config: RunConfig, s: Setting, trail: Trail, R: Values) -> Values:
        gap, own, G_q = trail["gap"][0], _own(config), fixed_unevenness(trail)
        return equation_94(s, phi, gap, own, _optimum(config), G_q, R)

    seen, s = _compared(configs, bound, _look(configs[0])), exact_setting(configs[0])
    return Outcome(
        [
            admissible(_hypotheses(fedcomgate_pl, seen)),
            _chosen(s, phi, 1 + s.q),
            below("f - f* below equation 94, in every round", [seen.gaps], [seen.bound]),
            _fades(seen.trail),
        ],
        [_panel(seen.gaps, seen.bound)],
    )


def fedcomgate_coarse(configs: Sequence[RunConfig]) -> Outcome:
    """With a coarse quantizer and a = 1 an admissible step size diverges: no G_q bounds the errors."""
    printed, damped = points_of(configs, "fedcomgate-coarse").values()
    s = exact_setting(printed[0])
    trail, tame = (mean_trail(group, _look(group[0])) for group in (printed, damped))
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
