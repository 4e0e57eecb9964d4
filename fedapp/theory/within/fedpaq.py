"""FedPAQ: lemmas 1 to 4 and 6 to 9. Lemma 5, on sequences, is what turns them into equation 28: see `fedapp/theory/fedpaq.py`.

What the lemmas say of an expectation in one round is checked for the sums over all rounds. Of three of six clients, the
others' updates are not known: E|x - x^|^2 is (1/r - 1/n) times the variance over clients (equation 59), which the sample
estimates. That the server moves by the mean of the sample, which equation 59 is about, is a line of its own.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.config import RunConfig
from fedapp.report.panels import Curve, Panel
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, rounds_of
from fedapp.theory.hypotheses import Setting, fedpaq_lemmas, sampling
from fedapp.theory.outcome import Finding, Outcome, Theorem
from fedapp.theory.played import Played, quadratic_of
from fedapp.theory.within.trails import Look, Trail, admissible, below, mean_trail, points_of

TOLERANCE = 0.1  # relative, for an equality between means over rounds
ROUNDING = 1e-12


def terms(config: RunConfig) -> Look:
    """Return what measures the lemmas' terms in a round."""
    problem, n = quadratic_of(config), config.num_clients
    A, best = problem.A[0].numpy(), problem.optimum

    def square(v: Values) -> float:
        return float((v**2).sum())

    def look(played: Played) -> dict[str, float]:
        visits = list(played.visits.values())
        p, sent = (np.array([getattr(v, name)[0] for v in visits]) for name in ("plain", "sent"))
        paths = np.array([visit.points for visit in visits])  # client, step, coordinate
        averaged = played.before + p.mean(0)
        values = {"f_average": problem.value(averaged), "f_before": problem.value(played.before)}
        return values | {
            "before": square(played.before - best),
            "after": square(played.after - best),
            "average": square(averaged - best),
            "quantized": square((sent - p).mean(0)),
            "missed": float(np.abs(played.after - played.before - sent.mean(0)).max()),
            "sampled": (1 / len(sent) - 1 / n) * float(sent.var(0, ddof=1).sum()),
            "f_after": problem.value(played.after),
            "gradients": n / len(visits) * square((paths - best) @ A),
            "at_averages": square((paths.mean(0) - best) @ A),
        }

    return look


def fedpaq_lemmas_check(configs: Sequence[RunConfig]) -> Outcome:
    """Compare each lemma's sides, summed over rounds."""
    groups = points_of(configs, "fedpaq-lemmas")
    trails = {name: mean_trail(group, terms(group[0])) for name, group in groups.items()}
    settings = {name: exact_setting(group[0]) for name, group in groups.items()}
    everyone, s = trails["all"], settings["all"]
    some, few = trails["some"], settings["some"]
    split = _sum(everyone, "quantized") + _sum(everyone, "average")
    ratio = _sum(everyone, "after") / split
    rounds = rounds_of(everyone["before"])
    missed = float(some["missed"].max())
    curves = [
        Curve("|x^ - mean x_i|^2", rounds, everyone["quantized"]),
        Curve("lemma 3", rounds, lemma_3(s, everyone["before"]), "guide"),
        Curve("|mean x_i - x*|^2", rounds, everyone["average"]),
        Curve("lemma 2", rounds, lemma_2(s, everyone["before"]), "guide"),
    ]
    return Outcome(
        [
            admissible(fedpaq_lemmas(one) for one in settings.values()),
            Finding(
                "lemma 1, all clients: |x - x*|^2 is the sum of its other two parts",
                f"ratio 1 (within {TOLERANCE:g})",
                f"{ratio:.3f}",
                bool(abs(ratio - 1) <= TOLERANCE),
            ),
            _below("lemma 2", _sum(everyone, "average"), lemma_2(s, everyone["before"])),
            _below("lemma 3", _sum(everyone, "quantized"), lemma_3(s, everyone["before"])),
            _below("lemma 4", _sum(some, "sampled"), lemma_4(few, some["before"])),
            _below(
                f"lemma 6, all clients: f(x) - f(mean x_i), {TOLERANCE:.0%} allowed for chance",
                _sum(everyone, "f_after") - _sum(everyone, "f_average"),
                (1 + TOLERANCE) * lemma_6(s, everyone["quantized"]),
            ),
            _below("lemma 7, after the descent", _descent(s, everyone), _noise_7(s, rounds)),
            _below("lemma 8", _sum(everyone, "quantized"), lemma_8(s, everyone["gradients"])),
            _below("lemma 9", _sum(some, "sampled"), lemma_9(few, some["gradients"])),
            Finding(
                f"{few.r} of {few.n} clients: x moves by the mean of what they sent",
                f"to {ROUNDING:g}",
                f"{missed:.0e}",
                missed <= ROUNDING,
            ),
        ],
        [Panel("all clients", "rounds", "", curves, log_x=False)],
    )


def _sum(trail: Trail, name: str) -> float:
    return float(trail[name].sum())


def _below(claim: str, measured: float, bound: Values) -> Finding:
    return below(f"{claim}, summed over rounds", [np.array([measured])], [bound.sum(keepdims=True)])


def lemma_2(s: Setting, before: Values) -> Values:
    """Return the right side of equation 20."""
    shrunk: Values = (1 + s.n * s.eta**2) * (1 - s.mu * s.eta) ** s.tau * before
    noise = s.tau * (s.tau - 1) ** 2 * s.L**2 / s.n * np.e + s.tau**2 / s.n
    noise += s.tau**2 * (s.tau - 1) * s.L**2 * np.e * s.eta**2
    return shrunk + noise * s.sigma2 * s.eta**2


def _moved(s: Setting, before: Values) -> Values:
    """Return what lemmas 3 and 4 share: the bound on a client's squared movement."""
    noise = s.tau**2 * s.sigma2 * s.eta**2
    noise += (s.tau - 1) * s.tau**2 * s.L**2 * s.sigma2 * np.e * s.eta**4
    moved: Values = s.tau**2 * s.L**2 * s.eta**2 * before + noise
    return moved


def lemma_3(s: Setting, before: Values) -> Values:
    """Return the right side of equation 21."""
    return 2 * s.q / s.n * _moved(s, before)


def lemma_4(s: Setting, before: Values) -> Values:
    """Return the right side of equation 22."""
    return sampling(s) * 8 * (1 + s.q) * _moved(s, before)


def lemma_6(s: Setting, quantized: Values) -> Values:
    """Return the right side of equation 76 less f(mean x_i), with all clients in the round."""
    bound: Values = s.L / 2 * quantized
    return bound


def _descent(s: Setting, trail: Trail) -> float:
    """Return the left side of equation 77, with what is negative on the right added."""
    kept = (1 - s.L * s.eta) / (2 * s.n) - s.L**2 * s.tau * (s.tau - 1) * s.eta**2 / s.n
    moved = trail["f_average"] - trail["f_before"] + s.eta / 2 * trail["at_averages"]
    return float((moved + s.eta * kept * trail["gradients"]).sum())


def _noise_7(s: Setting, rounds: Values) -> Values:
    noise = s.eta**2 * s.L / 2 * s.sigma2 / s.n * s.tau
    noise += s.eta**3 * s.sigma2 / s.n * (s.n + 1) * s.tau * (s.tau - 1) / 2 * s.L**2
    return np.full(len(rounds), noise)


def lemma_8(s: Setting, gradients: Values) -> Values:
    """Return the right side of equation 78."""
    share = s.q * s.tau * s.eta**2
    bound: Values = share * s.sigma2 / s.n + share / s.n**2 * gradients
    return bound


def lemma_9(s: Setting, gradients: Values) -> Values:
    """Return the right side of equation 79."""
    share = (1 - s.r / s.n) / (s.r * (s.n - 1)) * 4 * (1 + s.q) * s.tau * s.eta**2
    bound: Values = share * (s.n * s.sigma2 + gradients)
    return bound


THEOREMS = {"fedpaq-lemmas": Theorem("FedPAQ", play=fedpaq_lemmas_check)}
