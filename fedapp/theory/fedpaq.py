"""FedPAQ: theorems 1 and 2."""

from collections.abc import Sequence

import numpy as np

from fedapp.report.panels import Curve, Panel
from fedapp.report.runs import Run
from fedapp.theory import hypotheses
from fedapp.theory.fits import Values, rising, rounds_of, slope, spread
from fedapp.theory.hypotheses import Setting
from fedapp.theory.measured import (
    counts,
    figure,
    grouped,
    named,
    setting_of,
    starting_point,
)
from fedapp.theory.outcome import BEYOND, NO_THEOREM, Finding, Outcome, Theorem
from fedapp.theory.within.trails import admissible


def fedpaq_1(runs: Sequence[Run]) -> Outcome:
    """|x - x*|^2 = O(tau/T) with lr = (4/mu)/(k tau + 1) from round k_0 on, for several s, r and tau."""
    slopes, ratios, constants, starts, curves = {}, [], {}, [], []
    groups = named(runs, "fedpaq-1")
    for name, group in groups.items():
        squares = np.mean([figure(run, "distance") ** 2 for run in group], axis=0)
        k, run = rounds_of(squares), group[0]
        setting = setting_of(run)
        k0 = hypotheses.fedpaq_start(setting)
        late = k >= k0
        starts.append(k0)
        slopes[name] = slope(k[late], squares[late])
        constants[name] = float((squares * k)[late].mean())
        bound = equation_28(setting, k[late], squares[late][0])
        ratios.append(float((squares[late] / bound).max()))
        label = name.replace("-", " " if name[1] == "o" else " = ")
        curves.append(Curve(label, k, squares))
        guide = squares[-1] * k[-1] / k
        curves.append(
            Curve("1/k from k_0" if len(curves) == 1 else "", k[late], guide[late], "guide")
        )
    ordered = ["no-quantizer", "s-8", "s-2"], ["s-8", "r-4", "r-2"]
    return Outcome(
        [
            Finding(
                "|x - x*|^2 falls as 1/k for every s, r and tau",
                "exponent -1 (-1.3 to -0.7) from k_0 of equation 64 on "
                f"({min(starts):.0f} to {max(starts):.0f})",
                spread(slopes.values()),
                all(-1.3 <= p <= -0.7 for p in slopes.values()),
            ),
            Finding(
                "below the bound of equation 28",
                "ratio at most 1",
                spread(ratios, ".2g"),
                all(ratio <= 1 for ratio in ratios),
            ),
            Finding(
                "a coarser quantizer and fewer clients cost accuracy",
                "k |x - x*|^2 grows along no quantizer, s = 8, s = 2, and r = 8, 4, 2",
                "; ".join(" < ".join(f"{constants[n]:.2g}" for n in names) for names in ordered),
                all(rising([constants[n] for n in names]) for names in ordered),
                NO_THEOREM,  # a bound from above orders nothing
            ),
            admissible(hypotheses.fedpaq_1(setting_of(group[0])) for group in groups.values()),
        ],
        [Panel("", "rounds k", "|x - x*|^2", curves)],
    )


def equation_28(s: Setting, k: Values, first: float) -> Values:
    """Return the right side of equation 28 without C_3, which only adds to it; `first` is |x - x*|^2 in round k[0]."""
    scale = 16 / s.mu**2 * s.sigma2 / s.n
    c1 = scale * (1 + 2 * s.q + 8 * (1 + s.q) * s.n * hypotheses.sampling(s))
    c2 = scale * s.L**2 * np.e
    steps = k * s.tau + 1
    bound: Values = (steps[0] / steps) ** 2 * first
    return bound + (c1 * s.tau + c2 * (s.tau - 1) ** 2) / steps


def fedpaq_2(runs: Sequence[Run]) -> Outcome:
    """(1/T) sum |grad f|^2 = O(1/sqrt(T)) with lr = 1/(L sqrt(T))."""
    findings, curves = [], []
    for problem in ("quadratic", "sigmoid"):  # the points of the sweep
        chosen = [run for run in runs if f"-{problem}-" in run.name]
        *_, tau = counts(chosen[0])
        start = starting_point(chosen[0])
        means, ratios, falls = {}, [], True
        for K, (run,) in grouped(chosen, "num-rounds").items():
            # x_0 to x_{K-1}: the start, and all but the last round. The theorem averages over the clients' mean model
            # after every local step.
            squares = figure(run, "squared_gradient")[:-1]
            means[tau * K] = float((start["squared_gradient"] + squares.sum()) / K)
            name = "objective" if "objective" in start else "test_loss"
            falls &= bool(figure(run, name)[-1] < start[name])
            if "gap" in start:  # f* is known, and so are all the constants of the bound
                ratios.append(means[tau * K] / equation_84(setting_of(run), start["gap"]))
        T, values = np.array(list(means)), np.array(list(means.values()))
        curves.append(Curve(problem, T, values, "points"))
        curves.append(Curve("1/sqrt(T)", T, values[-1] * (T[-1] / T) ** 0.5, "guide"))
        exponent = slope(T, values)
        findings.append(
            Finding(
                f"mean of |grad f|^2, taken at the rounds, falls as 1/sqrt(T), and f falls ({problem})",
                "exponent -0.5 (at most -0.4)",
                f"{exponent:.2f}, f {'falls' if falls else 'does not fall'}",
                exponent <= -0.4 and falls,
                "" if "gap" in start else BEYOND,  # clients are not alike, and f* is not known
            )
        )
        if ratios:
            findings.append(
                Finding(
                    f"that mean is below the bound of equation 84 on the mean over all local steps ({problem})",
                    "ratio at most 1",
                    spread(ratios),
                    all(ratio <= 1 for ratio in ratios),
                )
            )
            findings.append(admissible(hypotheses.fedpaq_2(setting_of(run)) for run in chosen))
    return Outcome(findings, [Panel("", "steps T", "mean of |grad f|^2", curves)])


def equation_84(s: Setting, gap: float) -> float:
    """Return the right side of equation 84 with the step size of the run itself; `gap` is f(x_0) - f*."""
    noise = s.eta * s.L * (1 + s.q) * s.sigma2 * (1 / s.n + 4 * hypotheses.sampling(s))
    noise += s.eta**2 * s.sigma2 / s.n * (s.n + 1) * (s.tau - 1) * s.L**2
    return 2 * gap / (s.eta * s.rounds * s.tau) + noise


THEOREMS = {
    "fedpaq-1": Theorem("FedPAQ, theorem 1", fedpaq_1),
    "fedpaq-2": Theorem("FedPAQ, theorem 2", fedpaq_2),
}
