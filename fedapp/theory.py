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

from fedapp.report.curves import Run
from fedapp.report.panels import Curve, Panel

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


def fedcet_1(runs: Sequence[Run]) -> Outcome:
    """(1/(tau K)) sum |grad f(x(t))|^2 = O(1/(tau K)), not convex, full gradients."""
    slopes, totals, curves = {}, {}, []
    for tau, (run,) in grouped(runs, "local-steps").items():
        squares = figure(run, "squared_gradient")
        K = rounds_of(squares)
        means = np.cumsum(squares) / K
        late = rounds_of(squares) > len(K) / 10
        slopes[tau] = slope(K[late], means[late])
        # Equation 8 without its last term: (alpha/2) sum |grad f|^2 <= f(x(1)) - f*, and f* >= 0.
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
                "its sum is bounded for every tau",
                "(alpha/2) sum over steps at most 2 f(x(1))",
                f"{spread(totals.values())} f(x(1))",
                all(total <= 2 for total in totals.values()),
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
    limits = {"alpha": (0.85, 1.15), "sigma": (1.85, 2.15), "tau": (-0.15, 1.15)}
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
    """|x - x*|^2 = O(tau/T) with lr = (4/mu)/(k tau + 1), for several s, r and tau."""
    slopes, ratios, constants, curves = {}, [], {}, []
    for name, group in named(runs, "fedpaq-1").items():
        squares = np.mean([figure(run, "distance") ** 2 for run in group], axis=0)
        k = rounds_of(squares)
        late = k > len(k) / 10
        slopes[name] = slope(k[late], squares[late])
        constants[name] = float((squares * k)[late].mean())
        curves.append(Curve(name.replace("-", " " if name[1] == "o" else " = "), k, squares))
        # Equation 28 without the terms that fall as 1/k^2. L = 1 here.
        run = group[0]
        n, r, tau = (
            int(run.config[key]) for key in ("num-clients", "clients-per-round", "local-steps")
        )
        mu, q, noise = 1 / float(run.config["quadratic.condition"]), _variance(run), _noise(run)
        c1 = 16 / mu**2 * (1 + 2 * q + 8 * (1 + q) * n * (n - r) / (r * (n - 1))) * noise / n
        c2 = 16 / mu**2 * noise / n * np.e
        bound = (c1 * tau + c2 * (tau - 1) ** 2) / (k * tau + 1)
        ratios.append(float((squares / bound)[late].max()))
    guide = curves[0].y[-1] * k[-1] / k
    curves.append(Curve("1/k", k[k > 10], guide[k > 10], "guide"))
    ordered = ["no-quantizer", "s-8", "s-2"], ["s-8", "r-4", "r-2"]
    return Outcome(
        [
            Finding(
                "|x - x*|^2 falls as 1/k for every s, r and tau",
                "exponent -1 (at most -0.8)",
                spread(slopes.values()),
                all(p <= -0.8 for p in slopes.values()),
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
                all(constants[a] < constants[b] for names in ordered for a, b in pairwise(names)),
            ),
        ],
        [Panel("", "rounds k", "|x - x*|^2", curves)],
    )


def fedpaq_2(runs: Sequence[Run]) -> Outcome:
    """(1/T) sum |grad f|^2 = O(1/sqrt(T)) with lr = 1/(L sqrt(T))."""
    findings, curves = [], []
    for problem in ("quadratic", "sigmoid"):
        chosen = [run for run in runs if f"-{problem}-" in run.name]
        means = {
            K: float(np.mean([figure(run, "squared_gradient").mean() for run in group]))
            for K, group in grouped(chosen, "num-rounds").items()
        }
        tau = int(chosen[0].config["local-steps"])
        T = np.array([tau * K for K in means])
        curves.append(Curve(problem, T, list(means.values()), "points"))
        guide = list(means.values())[-1] * (T[-1] / T) ** 0.5
        curves.append(Curve("1/sqrt(T)", T, guide, "guide"))
        late = T >= 1000
        exponent = slope(T[late], np.array(list(means.values()))[late])
        findings.append(
            Finding(
                f"mean of |grad f|^2 falls as 1/sqrt(T) ({problem})",
                "exponent -0.5 (at most -0.4) for T >= 1000",
                f"{exponent:.2f}",
                exponent <= -0.4,
            )
        )
        if problem == "quadratic":
            run = chosen[0]
            n, r = int(run.config["num-clients"]), int(run.config["clients-per-round"])
            q, noise = _variance(run), _noise(run)
            start = _quadratic_start(run)
            bounds = 2 * start / T**0.5
            bounds += (1 + q) * noise * (1 / n + 4 / r * (n - r) / (n - 1)) / T**0.5
            bounds += noise * (n + 1) / n * (tau - 1) / T
            ratios = np.array(list(means.values())) / bounds
            findings.append(
                Finding(
                    "below the bound of equation 85 (quadratic)",
                    "ratio at most 1",
                    spread(ratios, ".2g"),
                    bool((ratios <= 1).all()),
                )
            )
    return Outcome(findings, [Panel("", "steps T", "mean of |grad f|^2", curves)])


def _quadratic_start(run: Run) -> float:
    """Return f(x_0) - f* of a quadratic run."""
    from fedapp.config import parse_run_config
    from fedapp.models import make_problem

    problem = make_problem(parse_run_config(run.config))
    return problem.evaluate(*problem.initial())["gap"]


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
    by_tau = [ends[tau, 50] for tau in (1, 2, 4)]
    return Outcome(
        [
            Finding(
                "noise in the zero point hurts (tau = 4; noise 0, 50, 100)",
                "f - f* at the end grows, by a fifth at least each",
                " < ".join(f"{v:.2g}" for v in by_noise),
                all(b > 1.2 * a for a, b in pairwise(by_noise)),
            ),
            Finding(
                "more local steps make up for it (noise 50; tau 1, 2, 4)",
                "f - f* at the end falls, by a fifth at least each",
                " > ".join(f"{v:.2g}" for v in by_tau),
                all(a > 1.2 * b for a, b in pairwise(by_tau)),
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
                stalled > 1e-3,
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
    ends = {name: float(values[-10:].max()) for name, values in distances.items()}
    reached = [ends[name] for name in exact]
    stalled = [end for name, end in ends.items() if name not in exact]
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
                f"at least {min(stalled):.2g}",
                min(stalled) > 0.01,
            ),
        ],
        [Panel("", "rounds", "|x - x*|", curves, log_x=False)],
    )


def stall(runs: Sequence[Run]) -> Outcome:
    """Where FedAvg stalls grows with tau and with the heterogeneity."""
    ends = {
        name: float(np.mean([figure(run, "distance")[-1] for run in group]))
        for name, group in named(runs, "stall").items()
    }
    by_tau = {tau: ends[f"tau-{tau}"] for tau in (1, 2, 4, 8)}
    by_spread = {h: ends[f"heterogeneity-{h:g}"] for h in (0.0, 0.5, 2.0)}
    by_spread[1.0] = ends["tau-4"]
    by_spread = dict(sorted(by_spread.items()))
    far = [by_tau[tau] for tau in (2, 4, 8)]
    exponent = slope([h for h in by_spread if h], [d for h, d in by_spread.items() if h])
    return Outcome(
        [
            Finding(
                "FedAvg with one local step is exact, and stalls further away with more",
                "|x - x*| below 1e-6 for tau = 1; grows along tau = 2, 4, 8",
                f"{by_tau[1]:.0e}; " + " < ".join(f"{d:.2g}" for d in far),
                by_tau[1] < 1e-6 < far[0] < far[1] < far[2],
            ),
            Finding(
                "and with more heterogeneity",
                "0 without any, then proportional (exponent 0.95 to 1.05)",
                f"{by_spread[0.0]:.0e}, exponent {exponent:.2f}",
                by_spread[0.0] < 1e-6 and 0.95 <= exponent <= 1.05,
            ),
        ],
        [
            Panel(
                "",
                "local steps tau",
                "|x - x*| where it stalls",
                [Curve("FedAvg", [2, 4, 8], far, "points")],
            ),
            Panel(
                "",
                "heterogeneity",
                "|x - x*| where it stalls",
                [Curve("FedAvg", list(by_spread)[1:], list(by_spread.values())[1:], "points")],
            ),
        ],
    )


VECTORS = {"fedcet": 2, "fedgate": 3, "scaffold": 4}  # a client's a round, up and down together


def messages(runs: Sequence[Run]) -> Outcome:
    """Vectors until |x - x*| < 1e-6, each with its best step size."""
    best: dict[str, dict[int, tuple[float, float]]] = {name: {} for name in VECTORS}
    for (name, tau), group in grouped(runs, "algorithm", "local-steps").items():
        spent = []
        for run in group:
            near = figure(run, "distance") < 1e-6
            count = VECTORS[name] * (int(np.argmax(near)) + 1) if near.any() else np.inf
            spent.append((float(count), float(run.config["lr"])))
        best[name][tau] = min(spent)
    curves = [
        Curve(name, list(of), [count for count, _ in of.values()], "points")
        for name, of in best.items()
    ]
    counts = {name: [count for count, _ in of.values()] for name, of in best.items()}
    pairs = zip(counts["fedcet"], counts["scaffold"], strict=True)
    shown = {name: ", ".join(f"{c:g}" for c in of) for name, of in counts.items()}
    return Outcome(
        [
            Finding(
                "FedCET needs fewer vectors than SCAFFOLD to reach 1e-6 (tau = 2, 3, 4, 5)",
                "fewer for every tau",
                f"{shown['fedcet']} against {shown['scaffold']} (FedGATE {shown['fedgate']})",
                all(ours < theirs for ours, theirs in pairs),
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
    "fedcom-noise": Theorem("FedCOMGATE, Fig. 9", fedcom_noise),
    "fedcomgate-pl": Theorem("FedCOMGATE, theorem E.6", fedcomgate_pl),
    "exactness": Theorem("Drift correction", exactness),
    "stall": Theorem("Where FedAvg stalls", stall),
    "messages": Theorem("Messages to 1e-6", messages),
}
