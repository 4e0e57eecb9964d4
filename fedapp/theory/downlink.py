"""The downlink on a grid: exact methods stay exact, because the step of the grid shrinks with the model's movement."""

from collections.abc import Sequence

import numpy as np

from fedapp.report.panels import Curve, Panel
from fedapp.report.runs import Run
from fedapp.theory.fits import Values, above, rounds_of, spread
from fedapp.theory.measured import figure, grouped
from fedapp.theory.outcome import NO_THEOREM, Finding, Outcome, Theorem

EXACT = 1e-12  # a distance that counts as reaching the optimum, in float64
NEAR = 1e-6  # a distance until which rounds are counted
LATER = 1.25  # times as many rounds as without a grid are allowed
FINE = (1.0, 2.0)  # kappa


def downlink(runs: Sequence[Run]) -> Outcome:
    """SCAFFOLD, FedGATE, FedDyn and FedCET reach the optimum over a grid that is fine enough."""
    ends, rounds, coarse, curves = [], [], [], []
    plain = {
        run.config["algorithm"]: figure(run, "distance")
        for run in runs
        if run.config["downlink"] == "none"
    }
    on_grid = [run for run in runs if run.config["downlink"] == "grid"]
    for (name, kappa), group in grouped(on_grid, "algorithm", "grid.kappa").items():
        distance = figure(group[0], "distance")
        if kappa not in FINE:
            coarse.append(float(distance[-10:].min()))
            continue
        ends.append(float(distance[-10:].max()))
        curves.append(Curve(f"{name}, kappa {kappa:g}", rounds_of(distance), distance))
        if kappa == 1:
            rounds.append(_until(distance) / _until(plain[name]))
    return Outcome(
        [
            Finding(
                "SCAFFOLD, FedGATE, FedDyn and FedCET reach the optimum (kappa = 1, 2)",
                f"|x - x*| below {EXACT:.0e}",
                f"at most {max(ends):.0e}",
                max(ends) < EXACT,
            ),
            Finding(
                f"in about as many rounds as without a grid (kappa = 1, to {NEAR:.0e})",
                f"at most {LATER:g} times as many",
                f"{spread(rounds, '.2f')} times",
                max(rounds) <= LATER,
            ),
            Finding(
                "a grid that is coarser than the movement stalls (kappa = 4)",
                "|x - x*| stays above 0.01",
                spread(coarse, ".2g"),
                above(coarse, 0.01),
            ),
        ],
        [Panel("", "rounds", "|x - x*|", curves, log_x=False)],
    )


def _until(distance: Values) -> float:
    """Return the rounds until a distance counts as near; infinite if it never does."""
    near = distance < NEAR
    return int(np.argmax(near)) + 1 if near.any() else np.inf


THEOREMS = {"downlink": Theorem("Downlink on a grid", downlink, scope=NO_THEOREM)}
