"""FedCET: theorems 1 and 2, and its linear convergence on strongly convex problems, which the supplement leaves out."""

from collections.abc import Sequence

import numpy as np

from fedapp.report.panels import Curve, Panel
from fedapp.report.runs import Run
from fedapp.theory.fits import linear_rate, rounds_of, slope, spread
from fedapp.theory.measured import figure, grouped, mean_figure, named, num_parameters
from fedapp.theory.outcome import BEYOND, NO_THEOREM, Finding, Outcome, Theorem


def fedcet_1(runs: Sequence[Run]) -> Outcome:
    """(1/(tau K)) sum |grad f(x(t))|^2 = O(1/(tau K)), not convex, full gradients."""
    slopes, totals, curves = {}, {}, []
    for tau, (run,) in grouped(runs, "local-steps").items():
        squares = figure(run, "squared_gradient")
        K = rounds_of(squares)
        means = np.cumsum(squares) / K
        late = rounds_of(squares) > len(K) / 10
        slopes[tau] = slope(K[late], means[late])
        # Equation 8, alpha L <= 1: (alpha/2) sum |grad f|^2 <= f(x(1)) - f* + the clients' disagreement, and f* >= 0.
        descent = run.config["lr"] / 2 * tau * squares.sum()
        totals[tau] = float(descent / run.rounds[0]["objective"])
        curves.append(Curve(f"tau = {tau}", tau * K, means))
    reference = tau * K
    curves.append(Curve("1/(tau K)", reference, means[-1] * reference[-1] / reference, "guide"))
    return Outcome(
        [
            Finding(
                "mean of |grad f|^2 falls as 1/(tau K) for each tau",
                "exponent -1 (at most -0.95)",
                spread(slopes.values()),
                all(p <= -0.95 for p in slopes.values()),
            ),
            Finding(
                f"its sum, taken at the rounds, is bounded (tau = {', '.join(map(str, totals))})",
                "(alpha/2) tau sum at most f(x(1)), and half of that for equation 8's last term",
                f"{spread(totals.values())} f(x(1))",
                all(total <= 1.5 for total in totals.values()),
            ),
        ],
        [Panel("", "steps tau K", "mean of |grad f|^2", curves)],
    )


def fedcet_2(runs: Sequence[Run]) -> Outcome:
    """With noise, |grad f|^2 falls to a floor that is O(tau alpha sigma^2)."""
    floors: dict[str, dict[float, float]] = {"alpha": {}, "sigma": {}, "tau": {}}
    base = {"alpha": 0.1, "sigma": 1.0, "tau": 2}
    decay = []
    for name, group in named(runs, "fedcet-2").items():
        what, value = name.split("-")
        squares = mean_figure(group, "squared_gradient")
        floors[what][float(value)] = float(squares[len(squares) // 4 :].mean())
        if what == "alpha":
            decay.append(Curve(f"alpha = {value}", rounds_of(squares), squares))
    common = floors["alpha"][base["alpha"]]
    for what in ("sigma", "tau"):
        floors[what][base[what]] = common
        floors[what] = dict(sorted(floors[what].items()))
    exponents = {what: slope(list(f), list(f.values())) for what, f in floors.items()}
    limits = {"alpha": (0.85, 1.15), "sigma": (1.85, 2.15), "tau": (-np.inf, 1.15)}
    words = {"alpha": "1 (0.85 to 1.15)", "sigma": "2 (1.85 to 2.15)", "tau": "at most 1 (1.15)"}
    labels = {"alpha": "step size alpha", "sigma": "noise sigma", "tau": "local steps tau"}
    panels = [Panel("", "rounds", "|grad f|^2", decay)]
    for what, floor in floors.items():
        points = Curve("floor", list(floor), list(floor.values()), "points")
        guide = {"alpha": 1, "sigma": 2, "tau": 1}[what]
        at = np.array(list(floor))
        line = floor[base[what]] * (at / base[what]) ** guide
        power = "" if guide == 1 else f"^{guide}"
        bound = [Curve(f"{what}{power}", at, line, "guide")]
        panels.append(Panel("", labels[what], "floor of |grad f|^2", [points, *bound]))
    return Outcome(
        [
            Finding(
                f"the floor of |grad f|^2 against {what}",
                f"exponent {words[what]}",
                f"{p:.2f}",
                limits[what][0] <= p <= limits[what][1],
            )
            for what, p in exponents.items()
        ],
        panels,
    )


def fedcet_linear(runs: Sequence[Run]) -> Outcome:
    """Linear convergence on strongly convex problems, one vector each way."""
    rates, ends, fits, curves, vectors = [], [], [], [], set()
    for name, (run,) in named(runs, "fedcet-linear").items():
        norms = np.sqrt(figure(run, "squared_gradient"))
        rate, fit = linear_rate(norms, 1e-11)
        rates.append(rate)
        fits.append(fit)
        ends.append(float(norms.min()))
        problem, tau = name.split("-local-steps-")
        curves.append(Curve(f"{problem}, tau = {tau}", rounds_of(norms), norms))
        numbers = 8 * num_parameters(run)
        for record in run.rounds:
            for direction in ("uplink", "downlink"):
                # Two arrays, the vector and the empty buffers, have a header of 128 bytes each.
                body = record[f"{direction}_bytes"] / record["clients"] - 2 * 128
                vectors.add(body / numbers)
    return Outcome(
        [
            Finding(
                "linear convergence (strongly convex)",
                "a constant factor below 1 a round (R^2 of the fit above 0.95)",
                f"{spread(rates)}, R^2 {spread(fits)}",
                all(rate < 1 for rate in rates) and all(fit > 0.95 for fit in fits),
            ),
            Finding(
                "to machine precision",
                "|grad f| below 1e-12",
                f"{max(ends):.0e}",
                max(ends) < 1e-12,
            ),
            Finding(
                "with one vector each way a round",
                "1 up and 1 down",
                f"{spread(vectors, 'g')} each",
                vectors == {1.0},
            ),
        ],
        [Panel("", "rounds", "|grad f|", curves, log_x=False)],
    )


THEOREMS = {
    "fedcet-1": Theorem("FedCET, theorem 1, large steps", fedcet_1, scope=BEYOND),
    "fedcet-2": Theorem("FedCET, theorem 2, large steps", fedcet_2, scope=BEYOND),
    "fedcet-linear": Theorem("FedCET, strongly convex", fedcet_linear, scope=NO_THEOREM),
}
