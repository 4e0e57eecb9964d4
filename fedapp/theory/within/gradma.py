"""GradMA: lemmas .1 to .6 of its appendix.

eps_l and eps_g bound what projections take off. A projection onto a cone takes off no more than the vector's length, so that
the start decides both, as long as gradients do not grow: eps_l^2 = max |grad f_i(x_0)|^2, and eps_g^2/(1 - beta_2) is the
squared length that the momentum can have. The constraint <y - x, .> >= 0 is active in nearly every local step; so eps_l is
of the size of the gradients, and lemma .6, which adds 8 eps_l^2, says no more than that gradients do not grow.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.config import RunConfig
from fedapp.report.panels import Curve, Panel
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values, rounds_of
from fedapp.theory.hypotheses import gradma, sampling
from fedapp.theory.outcome import Finding, Outcome, Theorem
from fedapp.theory.played import Played, Visit, quadratic_of
from fedapp.theory.within.trails import Look, admissible, below, follow, running_mean


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
        d_tilde = d + m - (s.beta1 * m_before + d)
        u, u_next = (
            (now - s.beta1 * before) / (1 - s.beta1)
            for now, before in ((played.before, x_before), (played.after, played.before))
        )
        off = u_next - u + s.gamma / (1 - s.beta1) * d_tilde
        taken = m - s.beta1 * m_before - d
        lag = played.before - u
        x_before, m_before = played.before, m.copy()
        return {
            "off": float(np.abs(off).max() / max(np.abs(d_tilde).max(), 1e-300)),
            "drift": float(((paths - played.before[None, None]) ** 2).sum(2).mean(0).max()),
            "sums": float((steps.sum(1) ** 2).sum(1).mean()),
            "d": float((d**2).sum()),
            "d_tilde": float((d_tilde**2).sum()),
            "lag": float((lag**2).sum()),
            "local_loss": float(((steps - slopes) ** 2).sum(2).max()),
            "server_loss": float((taken**2).sum()),
        }

    return look


def gradma_lemmas(configs: Sequence[RunConfig]) -> Outcome:
    """Compare each lemma's sides, in every round or summed, as it says."""
    (config,) = configs
    s, trail = exact_setting(config), follow(config, look_at_memory(config))
    squares, rounds = trail["squared_gradient"][:-1], rounds_of(trail["squared_gradient"][:-1])
    problem = quadratic_of(config)
    first = np.einsum("cij,cj->ci", problem.A.numpy(), -problem.b.numpy())
    eps_l = float((first**2).sum(1).max())
    eps_g = eps_l * (s.tau * s.eta / (1 - s.beta1)) ** 2  # over 1 - beta_2
    step, left = (s.tau * s.eta) ** 2, 1 - s.beta1
    all_of_it = eps_l + s.rho2 + squares
    taken = 2 * (s.beta1 * s.gamma) ** 2 / left**4
    lags = taken * (np.cumsum(trail["d"]) + eps_g * rounds)
    server = 64 * s.tau * s.gamma * s.eta * s.L * (1 + 40 * step * s.L**2) / left**2 * sampling(s)
    bound = 8 * left * trail["gap"][0] / (s.tau * s.gamma * s.eta * rounds) + 8 * eps_l
    bound += (320 * step * s.L**2 + server) * (eps_l + s.rho2)
    bound += eps_g * (20 * s.gamma * s.L / (left**2 * s.tau * s.eta) + 8 / step)
    off = float(trail["off"].max())
    losses = [np.sqrt(trail[name]) for name in ("local_loss", "server_loss")]
    limits = [np.full(len(rounds), limit**0.5) for limit in (eps_l, eps_g)]
    means = running_mean(squares)
    return Outcome(
        [
            admissible([gradma(s)]),
            below("eps_l and eps_g bound what projections take off, in every round", losses, limits),
            Finding("lemma .1: u moves by -eta_g d~/(1 - beta_1)", "to 1e-9", f"{off:.0e}", off < 1e-9),
            below("lemma .2: drift, in every round", [trail["drift"]], [40 * step * all_of_it]),
            below(
                "lemma .3: summed local steps, in every round",
                [trail["sums"]],
                [4 * s.tau**2 * (1 + 40 * step * s.L**2) * all_of_it],
            ),
            below("lemma .4: |d~|^2, in every round", [trail["d_tilde"]], [2 * trail["d"] + 2 * eps_g]),
            below("lemma .5: |u - x|^2, summed to every round", [np.cumsum(trail["lag"])], [lags]),
            below("lemma .6: mean |grad f|^2, in every round", [means], [bound]),
        ],
        [
            Panel(
                "", "rounds", "mean of |grad f|^2",
                [Curve("measured", rounds, means), Curve("lemma .6", rounds, bound, "guide")],
            )
        ],
    )  # fmt: skip


THEOREMS = {"gradma-lemmas": Theorem("GradMA", play=gradma_lemmas)}
