"""FedCOMGATE: theorems D.7 (FedCOM) and E.6, and its figure 9."""

from collections.abc import Sequence

import numpy as np

from fedapp.report.panels import Curve, Panel
from fedapp.report.runs import Run
from fedapp.theory.fits import above, linear_rate, rising, rounds_of, spread
from fedapp.theory.hypotheses import fedcom_pl
from fedapp.theory.measured import (
    figure,
    grouped,
    mean_figure,
    named,
    setting_of,
    starting_point,
)
from fedapp.theory.outcome import BEYOND, NO_THEOREM, Finding, Outcome, Theorem
from fedapp.theory.within.fedcom import equation_38
from fedapp.theory.within.trails import admissible


def fedcom_q(runs: Sequence[Run]) -> Outcome:
    """FedCOM with equal clients: a floor that grows with q, below the bound of equation 38."""
    floors, ratios, curves = {}, [], []
    groups = named(runs, "fedcom-q")
    for name, group in groups.items():
        gaps, q = mean_figure(group, "gap"), setting_of(group[0]).q
        R = rounds_of(gaps)
        # Each seed has quadratics, and so a bound, of its own.
        bound = np.mean(
            [equation_38(setting_of(run), starting_point(run)["gap"], R) for run in group], axis=0
        )
        floors[q] = float(gaps[len(gaps) // 2 :].mean())
        ratios.append(float((gaps / bound).max()))
        label = name.replace("qsgd-levels-", "s = ").replace("none", "no quantizer")
        curves += [Curve(f"{label}, q = {q:.2g}", R, gaps), Curve("", R, bound, "guide")]
    floors = dict(sorted(floors.items()))
    return Outcome(
        [
            Finding(
                f"FedCOM's floor grows with q ({', '.join(f'{q:.2g}' for q in floors)})",
                "f - f* at the end grows, at most as 1 + q",
                " < ".join(f"{v:.2g}" for v in floors.values()),
                rising(list(floors.values()))
                and all(v <= 1.2 * floors[0.0] * (1 + q) for q, v in floors.items()),
            ),
            Finding(
                "f - f* stays below the bound of equation 38 in every round",
                "ratio at most 1",
                spread(ratios),
                all(ratio <= 1 for ratio in ratios),
            ),
            admissible(fedcom_pl(setting_of(run)) for run in runs),
        ],
        [Panel("bounds in grey", "rounds", "f - f*", curves, log_x=False)],
    )


def fedcom_noise(runs: Sequence[Run]) -> Outcome:
    """Fig. 9: noise in the zero point hurts, local steps make up for it."""
    ends: dict[tuple[int, int], float] = {}
    panels: dict[str, list[Curve]] = {"noise": [], "tau": []}
    for (tau, noise), group in grouped(runs, "local-steps", "uniform.zero-point-noise").items():
        gaps = mean_figure(group, "gap")
        ends[tau, noise] = float(gaps[-20:].mean())
        if tau == 4:
            panels["noise"].append(Curve(f"noise {noise}", rounds_of(gaps), gaps))
        if noise == 50:
            panels["tau"].append(Curve(f"tau = {tau}", rounds_of(gaps), gaps))
    by_noise = [ends[4, noise] for noise in (0, 50, 100)]
    pairs = [(ends[2 * tau, 50], ends[tau, 0]) for tau in (1, 2)]
    harm = [ends[tau, 50] / ends[tau, 0] for tau in (1, 2, 4)]
    return Outcome(
        [
            Finding(
                "noise in the zero point hurts (tau = 4; noise 0, 50, 100)",
                "f - f* at the end grows, by a fifth at least each",
                " < ".join(f"{v:.2g}" for v in by_noise),
                rising(by_noise, 1.2),
            ),
            Finding(
                "more local steps make up for it",
                "f - f* at the end with noise 50 and 2 tau steps is below that without noise and tau "
                "(1, 2); and noise harms (tau = 4) by a tenth at least",
                "; ".join(f"{a:.2g} < {b:.2g}" for a, b in pairs)
                + f"; harm {', '.join(f'{h:.2f}' for h in harm)} times for tau = 1, 2, 4",
                all(rising(pair) for pair in pairs) and above(harm[-1:], 1.1),
            ),
        ],
        [
            Panel("tau = 4", "rounds", "f - f*", panels["noise"], log_x=False),
            Panel("noise 50", "rounds", "f - f*", panels["tau"], log_x=False),
        ],
    )


def fedcomgate_pl(runs: Sequence[Run]) -> Outcome:
    """Linear under PL with heterogeneous clients, where FedCOM stalls."""
    gaps = {name: figure(group[0], "gap") for name, group in grouped(runs, "algorithm").items()}
    rate, fit = linear_rate(gaps["fedcomgate"], 1e-11)
    stalled = float(np.median(gaps["fedcom"][-50:]))
    end = float(np.abs(gaps["fedcomgate"][-10:]).max())
    floor = {name: np.maximum(values, 1e-16) for name, values in gaps.items()}
    curves = [Curve(name, rounds_of(values), values) for name, values in floor.items()]
    return Outcome(
        [
            Finding(
                "FedCOMGATE is linear under PL, with quantized messages",
                "a constant factor below 1 (R^2 above 0.95), f - f* below 1e-11",
                f"{rate:.2f}, R^2 {fit:.3f}, {end:.0e}",
                rate < 1 and fit > 0.95 and end < 1e-11,
            ),
            Finding(
                "FedCOM stalls where clients differ",
                "f - f* stays above 1e-3",
                f"{stalled:.1e}",
                above([stalled], 1e-3),
            ),
        ],
        [Panel("", "rounds", "f - f*", curves, log_x=False)],
    )


THEOREMS = {
    "fedcom-q": Theorem("FedCOM, theorem D.7", fedcom_q),
    "fedcom-noise": Theorem("FedCOMGATE, Fig. 9", fedcom_noise, scope=NO_THEOREM),
    "fedcomgate-pl": Theorem("FedCOMGATE, theorem E.6, large steps", fedcomgate_pl, scope=BEYOND),
}
