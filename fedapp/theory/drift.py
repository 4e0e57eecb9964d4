"""Drift of the clients: who reaches the optimum, where the others stall, and what it costs in messages."""

from collections.abc import Sequence

import numpy as np

from fedapp.report.panels import Curve, Panel
from fedapp.report.runs import Run
from fedapp.theory.fits import above, rising, rounds_of, slope, spread
from fedapp.theory.measured import figure, grouped, num_parameters
from fedapp.theory.outcome import NO_THEOREM, Finding, Outcome, Theorem

EXACT = 1e-10  # a distance that counts as reaching the optimum, in float64


def exactness(runs: Sequence[Run]) -> Outcome:
    """Corrected methods reach the optimum with unequal Hessians; the others do not."""
    distances = {
        name: figure(group[0], "distance") for name, group in grouped(runs, "algorithm").items()
    }
    exact = ["scaffold", "fedgate", "feddyn", "fedcet"]
    reached = [float(distances[name][-10:].max()) for name in exact]
    stalled = [float(v[-10:].min()) for name, v in distances.items() if name not in exact]
    curves = [Curve(name, rounds_of(values), values) for name, values in distances.items()]
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
            numbers = 8 * num_parameters(run)
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


THEOREMS = {
    "exactness": Theorem("Drift correction", exactness, scope=NO_THEOREM),
    "stall": Theorem("Without correction", stall, scope=NO_THEOREM),
    "messages": Theorem("Messages to 1e-6", messages, scope=NO_THEOREM),
}
