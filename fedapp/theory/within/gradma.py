"""GradMA: lemmas .1 to .6 of its appendix.

eps_l and eps_g bound what projections take off. A projection onto a cone takes off no more than the vector's length, so that
the start decides both, as long as gradients do not grow: eps_l^2 = max |grad f_i(x_0)|^2, and eps_g^2/(1 - beta_2) is the
squared length that the momentum can have. The constraint <y - x, .> >= 0 is active in nearly every local step; so eps_l is
of the size of the gradients, and lemma .6, which adds 8 eps_l^2, says no more than that gradients do not grow.

The lemmas hold without projections, too: that these are at work is a line of its own for server and workers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedapp.config import RunConfig
from fedapp.report.panels import Curve, Panel
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, rounds_of
from fedapp.theory.hypotheses import Setting, gradma, sampling
from fedapp.theory.outcome import NO_THEOREM, Finding, Outcome, Theorem
from fedapp.theory.played import Played, Visit, quadratic_of
from fedapp.theory.within.trails import Look, admissible, below, follow, running_mean

ROUNDING = 1e-12  # a projection that takes off less of a squared length took off nothing
AT_WORK = 0.1  # how often projections must take off a part of a vector


class Lost(NamedTuple):
    """What a projection takes off at most, squared: eps_l^2, and eps_g^2/(1 - beta_2)."""

    worker: float
    server: float


def most_lost(s: Setting, slope: float) -> Lost:
    """Return both as long as no client's squared gradient exceeds `slope`, the largest at the start."""
    return Lost(slope, slope * (s.tau * s.eta / (1 - s.beta1)) ** 2)


def lemma_2(s: Setting, lost: Lost, squares: Values) -> Values:
    """Return the bound on mean |x_i - x|^2 after any local step; squares: |grad f(x)|^2 of every round."""
    return 40 * (s.tau * s.eta) ** 2 * (lost.worker + s.rho2 + squares)


def lemma_3(s: Setting, lost: Lost, squares: Values) -> Values:
    """Return the bound on the mean squared sum of a worker's steps."""
    growth = 1 + 40 * (s.tau * s.eta * s.L) ** 2
    return 4 * s.tau**2 * growth * (lost.worker + s.rho2 + squares)


def lemma_4(lost: Lost, d: Values) -> Values:
    """Return the bound on |d~|^2; d: |d|^2 of every round."""
    return 2 * d + 2 * lost.server


def lemma_5(s: Setting, lost: Lost, d: Values) -> Values:
    """Return the bound on |u - x|^2, summed to every round."""
    factor = 2 * (s.beta1 * s.gamma) ** 2 / (1 - s.beta1) ** 4
    total: Values = factor * (np.cumsum(d) + lost.server * rounds_of(d))
    return total


def lemma_6(s: Setting, lost: Lost, gap: float, rounds: Values) -> Values:
    """Return the bound on the mean of |grad f|^2 after some rounds; gap: f(x_0) - f*."""
    left, step = 1 - s.beta1, (s.tau * s.eta) ** 2
    start = 8 * left * gap / (s.tau * s.gamma * s.eta * rounds)
    drift = 320 * step * s.L**2
    drift += 64 * s.tau * s.gamma * s.eta * s.L * (1 + 40 * step * s.L**2) / left**2 * sampling(s)
    server = 20 * s.gamma * s.L / (left**2 * s.tau * s.eta) + 8 / step
    floor = 8 * lost.worker + drift * (lost.worker + s.rho2) + server * lost.server
    bound: Values = start + floor
    return bound


def in_part(taken: Values, vectors: Values) -> float:
    """Return how often projections took off some of a vector, and not all of it."""
    lost, whole = (taken**2).sum(-1), (vectors**2).sum(-1)
    return float(((lost > ROUNDING * whole) & (lost < (1 - ROUNDING) * whole)).mean())


def local_models(visit: Visit, last: Values, steps: int) -> Values:
    """Return y_0, ..., y_I. A step asks for gradients at y, at x, and at the model before, if they are not known."""
    asked = [1] + [2] * (steps > 1) + [3] * (steps - 2)
    # The model before the first step, if the client has one.
    asked[0] += len(visit.points) - sum(asked)
    starts = np.cumsum([0, *asked[:-1]])
    return np.array([visit.points[place] for place in starts] + [last])


def look_at_memory(config: RunConfig) -> Look:
    """Return what measures the lemmas' terms in a round."""
    problem, s = quadratic_of(config), exact_setting(config)
    A, b = problem.A.numpy(), problem.b.numpy()
    x_before, m_before = np.zeros_like(problem.optimum), np.zeros_like(problem.optimum)

    def look(played: Played) -> dict[str, float]:
        nonlocal x_before, m_before
        paths = np.array(
            [
                local_models(visit, played.states[client]["y"].numpy(), config.local_steps)
                for client, visit in played.visits.items()
            ]
        )
        clients = list(played.visits)
        steps = -np.diff(paths, axis=1) / s.eta
        slopes = np.einsum("cij,ctj->cti", A[clients], paths[:, :-1] - b[clients][:, None])
        d = (played.before - paths[:, -1]).mean(0)
        m = played.strategy.m  # type: ignore[attr-defined]
        mom = s.beta1 * m_before + d
        d_tilde = d + m - mom
        u, u_next = (
            (now - s.beta1 * before) / (1 - s.beta1)
            for now, before in ((played.before, x_before), (played.after, played.before))
        )
        off = u_next - u + s.gamma / (1 - s.beta1) * d_tilde
        lag = played.before - u
        x_before, m_before = played.before, m.copy()
        return {
            "off": float(np.abs(off).max() / max(np.abs(d_tilde).max(), 1e-300)),
            "drift": float(((paths - played.before[None, None]) ** 2).sum(2).mean(0).max()),
            "sums": float((steps.sum(1) ** 2).sum(1).mean()),
            "d": float((d**2).sum()),
            "d_tilde": float((d_tilde**2).sum()),
            "lag": float((lag**2).sum()),
            "local_loss": float(((slopes - steps) ** 2).sum(2).max()),
            "server_loss": float(((mom - m) ** 2).sum()),
            "local_part": in_part(slopes - steps, slopes),
            "server_part": in_part(mom - m, mom),
        }

    return look


def gradma_lemmas(configs: Sequence[RunConfig]) -> Outcome:
    """Compare each lemma's sides, in every round or summed, as it says."""
    (config,) = configs
    s, trail = exact_setting(config), follow(config, look_at_memory(config))
    squares, rounds = trail["squared_gradient"][:-1], rounds_of(trail["squared_gradient"][:-1])
    problem = quadratic_of(config)
    first = np.einsum("cij,cj->ci", problem.A.numpy(), -problem.b.numpy())
    lost = most_lost(s, float((first**2).sum(1).max()))
    bound = lemma_6(s, lost, trail["gap"][0], rounds)
    off = float(trail["off"].max())
    losses = [trail["local_loss"], trail["server_loss"]]
    limits = [np.full(len(rounds), limit) for limit in lost]
    means = running_mean(squares)
    return Outcome(
        [
            admissible([gradma(s)]),
            below("eps_l and eps_g bound what projections take off, in every round", np.sqrt(losses), np.sqrt(limits)),
            Finding("lemma .1: u moves by -eta_g d~/(1 - beta_1)", "to 1e-9", f"{off:.0e}", off < 1e-9),
            below("lemma .2: drift of one seed's sampled clients, in every round", [trail["drift"]], [lemma_2(s, lost, squares)]),
            below("lemma .3: summed local steps of the same, in every round", [trail["sums"]], [lemma_3(s, lost, squares)]),
            below("lemma .4: |d~|^2, in every round", [trail["d_tilde"]], [lemma_4(lost, trail["d"])]),
            below("lemma .5: |u - x|^2, summed to every round", [np.cumsum(trail["lag"])], [lemma_5(s, lost, trail["d"])]),
            below("lemma .6: mean |grad f|^2, in every round", [means], [bound]),
            at_work("the server's projection takes off a part of the momentum", "rounds", trail["server_part"]),
            at_work("a worker's projection takes off a part of the gradient", "local steps", trail["local_part"]),
        ],
        [
            Panel(
                "", "rounds", "mean of |grad f|^2",
                [Curve("measured", rounds, means), Curve("lemma .6", rounds, bound, "guide")],
            )
        ],
    )  # fmt: skip


def at_work(claim: str, times: str, parts: Values) -> Finding:
    """Say whether projections change anything, without which the lemmas say nothing about them."""
    share = float(parts.mean())
    observed, holds = f"{share:.0%}", AT_WORK <= share <= 1  # infinite: the run diverged
    return Finding(claim, f"in {AT_WORK:.0%} of the {times} or more", observed, holds, NO_THEOREM)


THEOREMS = {"gradma-lemmas": Theorem("GradMA", play=gradma_lemmas)}
