"""Theorems as experiments: what each predicts, what the runs of its preset show, and whether that agrees.

A theorem's runs are the sweep `experiments/theory/<name>.toml`; its function here reads them and returns
findings, each with its tolerance, and panels to draw. Theorems bound errors from above: where one
says O(1/T), a slope of -1 or steeper on logarithmic axes agrees. A run that ended early, because its
model was no longer finite, counts as infinitely far away from then on.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapp.report.panels import Curve, Panel
from fedapp.report.runs import Run

Values = NDArray[np.float64]
EXACT = 1e-10  # a distance that counts as reaching the optimum, in float64


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    claim: str
    predicted: str
    observed: str
    holds: bool


@dataclass(frozen=True)
class Outcome:
    """What a theorem's runs showed."""

    findings: list[Finding]
    panels: list[Panel]


def figure(run: Run, name: str) -> Values:
    """Return a figure of every round; infinite for those that the run did not reach."""
    values = np.full(int(run.config["num-rounds"]), np.inf)
    for record in run.rounds:
        value = record.get(name)  # None if the round was not evaluated, or it is not finite
        values[record["round"] - 1] = np.nan if value is None else value
    return values


def mean_figure(runs: Iterable[Run], name: str) -> Values:
    """Return a figure's mean over runs that differ in their seeds."""
    return np.mean([figure(run, name) for run in runs], axis=0)  # type: ignore[no-any-return]


def grouped(runs: Iterable[Run], *keys: str) -> dict[Any, list[Run]]:
    """Return runs by the values of config keys, in order."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        values = tuple(run.config[key] for key in keys)
        groups.setdefault(values if len(keys) > 1 else values[0], []).append(run)
    return dict(sorted(groups.items()))


def named(runs: Iterable[Run], preset: str) -> dict[str, list[Run]]:
    """Return runs by the names of their points, without the preset's name and the seed."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.name.removeprefix(f"{preset}-").split("-seed-")[0], []).append(run)
    return groups


def slope(x: Sequence[float] | Values, y: Sequence[float] | Values) -> float:
    """Return the exponent p of the power law y ~ x^p; not a number if y is not positive and finite."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if not (np.isfinite(y).all() and (y > 0).all()):
        return float("nan")
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def linear_rate(values: Values, floor: float) -> tuple[float, float]:
    """Return the factor by which values shrink a round until `floor`, and the R^2 of that fit."""
    above = values[: int(np.argmax(values < floor)) or len(values)]
    if not (np.isfinite(above).all() and (above > 0).all() and len(above) > 5):
        return float("nan"), 0.0
    k, logs = np.arange(len(above)), np.log(above)
    fit = np.polyfit(k, logs, 1)
    residual = logs - np.polyval(fit, k)
    return float(np.exp(fit[0])), float(1 - residual.var() / logs.var())


def rounds_of(values: Values) -> Values:
    """Return 1, 2, ..., one for each value."""
    return np.arange(1.0, len(values) + 1)


def spread(values: Iterable[float], form: str = ".2f") -> str:
    """Write the range of some values."""
    values = list(values)
    low, high = (f"{v:{form}}" for v in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def above(values: Iterable[float], limit: float) -> bool:
    """Tell whether all values are above a limit, and finite: to diverge is not to stall."""
    return all(np.isfinite(value) and value > limit for value in values)


def rising(values: Sequence[float], factor: float = 1.0) -> bool:
    """Tell whether values are finite, and each larger than the one before, times a factor."""
    return bool(np.isfinite(values).all()) and all(b > factor * a for a, b in pairwise(values))


def fedcet_1(runs: Sequence[Run]) -> Outcome:
    """(1/(tau K)) sum |grad f(x(t))|^2 = O(1/(tau K)), not convex, full gradients."""
    slopes, totals, curves = {}, {}, []
    for tau, (run,) in grouped(runs, "local-steps").items():
        squares = figure(run, "squared_gradient")
        K = rounds_of(squares)
        means = np.cumsum(squares) / K
        late = rounds_of(squares) > len(K) / 10
        slopes[tau] = slope(K[late], means[late])
        # Equation 8: (alpha/2) sum |grad f|^2 <= f(x(1)) - f* + the clients' disagreement, and f* >= 0.
        descent = run.config["lr"] / 2 * tau * squares.sum()
        totals[tau] = float(descent / run.rounds[0]["objective"])
        curves.append(Curve(f"tau = {tau}", tau * K, means))
    reference = tau * K
    curves.append(Curve("1/(tau K)", reference, means[-1] * reference[-1] / reference, "guide"))
    return Outcome(
        [
            Finding(
                "mean of |grad f|^2 falls as 1/(tau K)",
                "exponent -1 (at most -0.95)",
                spread(slopes.values()),
                all(p <= -0.95 for p in slopes.values()),
            ),
            Finding(
                "its sum, taken at the rounds, is bounded for every tau",
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
        numbers = 8 * (30 if run.config["dataset"] == "quadratic" else 64)
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


def _variance(run: Run) -> float:
    """Return q of a run's quantizer, QSGD on the whole vector: min(d/s^2, sqrt(d)/s)."""
    if run.config["compressor"] == "none":
        return 0.0
    d, s = int(run.config["quadratic.dim"]), int(run.config["qsgd.levels"])
    return float(min(d / s**2, d**0.5 / s))


def _noise(run: Run) -> float:
    """Return the variance sigma^2 of a run's gradients."""
    return float(run.config["quadratic.dim"]) * float(run.config["quadratic.noise"]) ** 2


def fedpaq_1(runs: Sequence[Run]) -> Outcome:
    """|x - x*|^2 = O(tau/T) with lr = (4/mu)/(k tau + 1) from round k_0 on, for several s, r and tau."""
    slopes, ratios, constants, starts, curves = {}, [], {}, [], []
    for name, group in named(runs, "fedpaq-1").items():
        squares = np.mean([figure(run, "distance") ** 2 for run in group], axis=0)
        k, run = rounds_of(squares), group[0]
        n, r, tau = _counts(run)
        # L = 1; k_0 of equation 64, and C_1 and C_2 of equation 24.
        mu, q, noise = 1 / float(run.config["quadratic.condition"]), _variance(run), _noise(run)
        b1 = 2 * (q / n + (n - r) / (r * (n - 1)) * 4 * (1 + q))
        k0 = 4 * max(1 / mu, 4 * (b1 / mu**2 + 1), 1 / tau, 4 * n / (mu**2 * tau))
        late = k >= k0
        starts.append(k0)
        slopes[name] = slope(k[late], squares[late])
        constants[name] = float((squares * k)[late].mean())
        c1 = 16 / mu**2 * (1 + 2 * q + 8 * (1 + q) * n * (n - r) / (r * (n - 1))) * noise / n
        c2 = 16 / mu**2 * noise / n * np.e
        first = squares[late][0] * ((k[late][0] * tau + 1) / (k * tau + 1)) ** 2
        bound = first + (c1 * tau + c2 * (tau - 1) ** 2) / (k * tau + 1)  # equation 28, less C_3
        ratios.append(float((squares / bound)[late].max()))
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
                "k |x - x*|^2 grows along no quantizer, s = 8, s = 2, and r = 8, 4, 2, at most as the bound",
                "; ".join(" < ".join(f"{constants[n]:.2g}" for n in names) for names in ordered),
                all(rising([constants[n] for n in names]) for names in ordered)
                and constants["s-2"] < 10 * constants["no-quantizer"],
            ),
        ],
        [Panel("", "rounds k", "|x - x*|^2", curves)],
    )


def _counts(run: Run) -> tuple[int, int, int]:
    """Return n clients, r of them a round, and tau."""
    keys = ("num-clients", "clients-per-round", "local-steps")
    n, r, tau = (int(run.config[key]) for key in keys)
    return n, r, tau


def fedpaq_2(runs: Sequence[Run]) -> Outcome:
    """(1/T) sum |grad f|^2 = O(1/sqrt(T)) with lr = 1/(L sqrt(T))."""
    findings, curves = [], []
    for problem in ("quadratic", "sigmoid"):
        chosen = [run for run in runs if f"-{problem}-" in run.name]
        n, r, tau = _counts(chosen[0])
        start = _start(chosen[0])
        means, falls = {}, True
        for K, (run,) in grouped(chosen, "num-rounds").items():
            # x_0 to x_{K-1}, as in the theorem: the start, and all but the last round.
            squares = figure(run, "squared_gradient")[:-1]
            means[tau * K] = float((start["squared_gradient"] + squares.sum()) / K)
            name = "objective" if problem == "sigmoid" else "test_loss"
            falls &= bool(figure(run, name)[-1] < start[name])
        T, values = np.array(list(means)), np.array(list(means.values()))
        curves.append(Curve(problem, T, values, "points"))
        curves.append(Curve("1/sqrt(T)", T, values[-1] * (T[-1] / T) ** 0.5, "guide"))
        exponent = slope(T, values)
        findings.append(
            Finding(
                f"mean of |grad f|^2 falls as 1/sqrt(T), and f falls ({problem})",
                "exponent -0.5 (at most -0.4)",
                f"{exponent:.2f}, f {'falls' if falls else 'does not fall'}",
                exponent <= -0.4 and falls,
            )
        )
        if problem == "quadratic":
            q, noise = _variance(chosen[0]), _noise(chosen[0])
            bounds = 2 * start["gap"] / T**0.5
            bounds += (1 + q) * noise * (1 / n + 4 / r * (n - r) / (n - 1)) / T**0.5
            bounds += noise * (n + 1) / n * (tau - 1) / T
            ratios = values / bounds
            findings.append(
                Finding(
                    "below the bound of equation 84 (quadratic)",
                    "ratio at most 1",
                    spread(ratios),
                    bool((ratios <= 1).all()),
                )
            )
    return Outcome(findings, [Panel("", "steps T", "mean of |grad f|^2", curves)])


def _start(run: Run) -> dict[str, float]:
    """Return the figures of a run's starting point."""
    from fedapp.config import parse_run_config
    from fedapp.problems import make_problem

    problem = make_problem(parse_run_config(run.config))
    return problem.evaluate(*problem.initial())


def fedcom_q(runs: Sequence[Run]) -> Outcome:
    """FedCOM with equal clients: a floor that grows with q, below the bound of equation 38."""
    floors, ratios, curves = {}, [], []
    for name, group in named(runs, "fedcom-q").items():
        gaps = mean_figure(group, "gap")
        run, q = group[0], _variance(group[0])
        m, _, tau = _counts(run)
        eta, mu = float(run.config["lr"]), 1 / float(run.config["quadratic.condition"])
        R = rounds_of(gaps)
        floor = (0.5 * tau * eta**2 + (1 + q) * eta / (2 * m)) * _noise(run) / mu
        bound = (1 - eta * mu * tau) ** R * _start(run)["gap"] + floor
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
        ],
        [Panel("bounds dashed", "rounds", "f - f*", curves, log_x=False)],
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


def exactness(runs: Sequence[Run]) -> Outcome:
    """Corrected methods reach the optimum with unequal Hessians; the others do not."""
    distances = {
        name: figure(group[0], "distance") for name, group in grouped(runs, "algorithm").items()
    }
    exact = ["scaffold", "fedgate", "feddyn", "fedcet"]
    reached = [float(distances[name][-10:].max()) for name in exact]
    stalled = [float(v[-10:].min()) for name, v in distances.items() if name not in exact]
    curves = [
        Curve(name, rounds_of(values), values, "line" if name in exact else "dashed")
        for name, values in distances.items()
    ]
    return Outcome(
        [
            Finding(
                "SCAFFOLD, FedGATE, FedDyn and FedCET reach the optimum",
                f"|x - x*| below {EXACT:.0e}",
                f"at most {max(reached):.0e}",
                max(reached) < EXACT,
            ),
            Finding(
                "FedAvg, FedProx and FedAvgM do not",
                "|x - x*| stays above 0.01",
                f"{spread(stalled, '.2g')}",
                above(stalled, 0.01),
            ),
        ],
        [Panel("", "rounds", "|x - x*|", curves, log_x=False)],
    )


def stall(runs: Sequence[Run]) -> Outcome:
    """Where methods without correction stall: further away with tau and with the heterogeneity."""
    findings, by_tau, by_spread = [], [], []
    for name, group in grouped(runs, "algorithm").items():
        ends = {
            (run.config["local-steps"], run.config["quadratic.heterogeneity"]): float(
                figure(run, "distance")[-1]
            )
            for run in group
        }
        far = [ends[tau, 1.0] for tau in (2, 4, 8)]
        spreads = [0.5, 1.0, 2.0]
        wide = [ends[4, h] for h in spreads]
        exponent = slope(spreads, wide)
        findings += [
            Finding(
                f"{name} with one local step is exact, and stalls further away with more",
                "|x - x*| below 1e-6 for tau = 1; grows along tau = 2, 4, 8",
                f"{ends[1, 1.0]:.0e}; " + " < ".join(f"{d:.2g}" for d in far),
                ends[1, 1.0] < 1e-6 and above(far, 1e-3) and rising(far),
            ),
            Finding(
                f"{name} stalls further away with more heterogeneity",
                "0 without any, then proportional (exponent 0.95 to 1.05)",
                f"{ends[4, 0.0]:.0e}, exponent {exponent:.2f}",
                ends[4, 0.0] < 1e-6 and 0.95 <= exponent <= 1.05,
            ),
        ]
        by_tau.append(Curve(name, [2, 4, 8], far, "points"))
        by_spread.append(Curve(name, spreads, wide, "points"))
    where = "|x - x*| where it stalls"
    return Outcome(
        findings,
        [Panel("", "local steps tau", where, by_tau), Panel("", "heterogeneity", where, by_spread)],
    )


def messages(runs: Sequence[Run]) -> Outcome:
    """Vectors until |x - x*| < 1e-6, each with its best step size."""
    best: dict[str, dict[int, tuple[float, int, float]]] = {}  # vectors, rounds, step size
    for (name, tau), group in grouped(runs, "algorithm", "local-steps").items():
        spent = []
        for run in group:
            near = figure(run, "distance") < 1e-6
            if not near.any():
                continue
            count = int(np.argmax(near)) + 1
            numbers = 8 * int(run.config["quadratic.dim"])
            record = run.rounds[count - 1]  # the first round has nothing to deliver yet
            sent = record["uplink_bytes"] + record["downlink_bytes"]
            # Every array has a header of 128 bytes; the buffers, both ways, are nothing else.
            vectors = (sent / record["clients"] - 2 * 128) / (numbers + 128)
            spent.append((vectors * count, count, float(run.config["lr"])))
        best.setdefault(name, {})[tau] = min(spent, default=(np.inf, 0, np.nan))
    curves = [
        Curve(name, list(of), [count for count, _, _ in of.values()], "points")
        for name, of in best.items()
    ]
    counts = {name: [count for count, _, _ in of.values()] for name, of in best.items()}
    shown = {
        name: ", ".join(f"{count:g} ({lr:g})" for count, _, lr in of.values())
        for name, of in best.items()
    }
    rounds = {name: spread([k for _, k, _ in of.values()], "g") for name, of in best.items()}
    pairs = zip(counts["fedcet"], counts["scaffold"], strict=True)
    return Outcome(
        [
            Finding(
                "FedCET needs fewer vectors than SCAFFOLD to reach 1e-6 (tau = 2, 3, 4, 5)",
                "fewer for every tau",
                f"{shown['fedcet']} against {shown['scaffold']}; FedGATE {shown['fedgate']} (step sizes); "
                + ", ".join(f"{name} {k} rounds" for name, k in rounds.items()),
                all(np.isfinite(theirs) and ours < theirs for ours, theirs in pairs),
            )
        ],
        [
            Panel(
                "",
                "local steps tau",
                "vectors per client to |x - x*| < 1e-6",
                curves,
                log_x=False,
                log_y=False,
            )
        ],
    )


@dataclass(frozen=True)
class Theorem:
    """A theorem, or a claim, by its title; its preset has the name that it is listed under."""

    title: str
    check: Callable[[Sequence[Run]], Outcome]


THEOREMS = {
    "fedcet-1": Theorem("FedCET, theorem 1", fedcet_1),
    "fedcet-2": Theorem("FedCET, theorem 2", fedcet_2),
    "fedcet-linear": Theorem("FedCET, strongly convex", fedcet_linear),
    "fedpaq-1": Theorem("FedPAQ, theorem 1", fedpaq_1),
    "fedpaq-2": Theorem("FedPAQ, theorem 2", fedpaq_2),
    "fedcom-q": Theorem("FedCOM, theorem D.7", fedcom_q),
    "fedcom-noise": Theorem("FedCOMGATE, Fig. 9", fedcom_noise),
    "fedcomgate-pl": Theorem("FedCOMGATE, theorem E.6", fedcomgate_pl),
    "exactness": Theorem("Drift correction", exactness),
    "stall": Theorem("Without correction", stall),
    "messages": Theorem("Messages to 1e-6", messages),
}
