"""Which theorem covers a run: the constants of its problem, and how far each inequality holds or fails.

For quadratics the constants are exact. For linear classifiers L and mu are bounds, and the rest is sampled. For networks
all are estimates at the starting point: L from power iterations on differences of full gradients; no mu is assumed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapp.compression import make_compressor
from fedapp.config import RunConfig
from fedapp.problems import kind_of, make_problem
from fedapp.problems.erm import SMOOTHNESS, LinearERM
from fedapp.problems.protocols import FederatedProblem
from fedapp.problems.quadratic import Quadratic
from fedapp.randomness import generator
from fedapp.registry import find_algorithm, find_compressor
from fedapp.theory.constants import numbers_of, quadratic_constants, relative_variance
from fedapp.theory.hypotheses import (
    HYPOTHESES,
    NAMES,
    Condition,
    Hypotheses,
    Setting,
    largest,
)
from strategies.fedcomgate import Options as GateOptions

CLIENTS = 8  # whose gradients are sampled
STEEP_CLIENTS = 4  # whose Hessians are
ITERATIONS = 12  # steps of the power method
BATCHES = 8  # batches that each client measures


@dataclass(frozen=True)
class Constants:
    """What is known of a run's problem, and how."""

    setting: Setting
    exact: bool  # not estimated, nor sampled
    L_is: str
    mu_is: str
    noise_is: str
    spread_is: str
    measured_q: float  # measured on the mean gradient at the start
    beyond: list[str]  # keys of the run that no theorem knows of
    notes: list[str]


def constants_of(config: RunConfig) -> Constants:
    """Return the constants of a run's problem, exact or estimated."""
    problem = make_problem(config)
    find_algorithm(config.algorithm).fits(config, problem.layout.size)
    torch.manual_seed(config.seed)
    x = torch.tensor(problem.initial()[0], device=problem.objective(0).buffers.device)
    clients = _some(config.num_clients, CLIENTS, config.seed)
    slopes = [_full(problem, config, client, x) for client in clients]
    mean = torch.stack(slopes).mean(0)
    spread = float(torch.stack([(g - mean).square().sum() for g in slopes]).mean())
    q = relative_variance(config, problem.layout.size, problem.layout.pieces)
    examples = {problem.objective(c).num_examples for c in range(config.num_clients)}
    taus = {config.local_work.num_steps(number) for number in examples}
    s = replace(numbers_of(config, q), tau=max(taus))
    damping = _damping(config, problem)
    notes = _notes(config, s, damping)
    beyond = _beyond(config, taus, examples, q, damping)
    measured = _measured_q(config, problem, mean)
    if isinstance(problem, Quadratic):
        s = replace(s, **quadratic_constants(problem, config))
        bounded = (
            "exact"
            if isfinite(s.rho2)
            else f"unbounded: Hessians differ; {spread:.3g} at the start"
        )
        return Constants(s, True, "exact", "exact", "exact", bounded, measured, beyond, notes)
    noise = max(_noise(problem, config, client, x) for client in clients)
    s = replace(s, sigma2=noise, rho2=spread)
    if noise:
        notes.append(
            "a client draws its mini-batches without replacement; to the theorems each is an independent draw."
        )
    sampled = f"estimate at the start, {len(clients)} clients"
    if isinstance(problem, LinearERM):
        decay = problem.decay + config.weight_decay
        mu = decay if problem.convex else 0.0
        s = replace(
            s, L=SMOOTHNESS[config.model] + decay, mu=mu, own_mu=mu if problem.convex else -inf
        )
        mu_is = "a bound" if problem.convex else "not convex"
        return Constants(s, False, "a bound", mu_is, sampled, sampled, measured, beyond, notes)
    steep = clients[:STEEP_CLIENTS]
    L = max(_steepness(problem, config, client, x) for client in steep) + config.weight_decay
    how = f"at least, at the start: {len(steep)} of {config.num_clients} clients, {ITERATIONS} power iterations"
    s = replace(s, L=L, mu=0.0)
    mu_is = "not assumed for networks"
    return Constants(s, False, how, mu_is, sampled, sampled, measured, beyond, notes)


def _some(count: int, most: int, seed: int) -> list[int]:
    """Return all clients, or some of them at random."""
    rng = generator(seed, "certify")
    return sorted(rng.choice(count, size=min(count, most), replace=False).tolist())


def _full(problem: FederatedProblem, config: RunConfig, client: int, x: Tensor) -> Tensor:
    gradient = problem.objective(client).full_gradient(x).clone()
    return gradient.add_(x, alpha=config.weight_decay)


def _noise(problem: FederatedProblem, config: RunConfig, client: int, x: Tensor) -> float:
    """Return the variance of a client's mini-batch gradients, sampled."""
    objective = problem.objective(client)
    exact = objective.full_gradient(x).clone()
    work = replace(config.local_work, steps=BATCHES, epochs=0)
    batches: Iterator[Any] = objective.batches(
        work, generator(config.seed, "certify batches", client=client)
    )
    errors = [objective.loss_gradient(x, batch)[1].sub(exact).square().sum() for batch in batches]
    noise = float(torch.stack(errors).mean())
    return noise if noise > 1e-10 * float(exact.square().sum()) else 0.0  # rounding


def _steepness(problem: FederatedProblem, config: RunConfig, client: int, x: Tensor) -> float:
    """Return the largest eigenvalue of a client's Hessian, in size, by the power method."""
    objective = problem.objective(client)
    rng = generator(config.seed, "certify directions", client=client)
    v = torch.tensor(rng.standard_normal(len(x)), dtype=x.dtype, device=x.device)
    reach = 1e-3 * max(1.0, float(x.norm()))
    value = 0.0
    for _ in range(ITERATIONS):
        v = v / v.norm() * reach
        ahead = objective.full_gradient(x + v).clone()
        v = (ahead - objective.full_gradient(x - v)) / 2
        value = float(v.norm()) / reach
        if not value:
            return 0.0
    return value


def _measured_q(config: RunConfig, problem: FederatedProblem, vector: Tensor) -> float:
    """Return |Q(v) - v|^2 / |v|^2 of the mean gradient, three times."""
    compressor = find_compressor(config, problem.layout.pieces)
    v = vector.cpu().numpy()
    if compressor is None or not v.any():
        return 0.0
    errors = [
        ((compressor.transmit(v, generator(config.seed, "certify", n))[1] - v) ** 2).sum()
        for n in (1, 2, 3)
    ]
    return float(np.mean(errors) / (v**2).sum())


def _damping(config: RunConfig, problem: FederatedProblem) -> float:
    """Return by how much gradient tracking is damped: 1 is the printed rule."""
    compressor = find_compressor(config, problem.layout.pieces) or make_compressor("none")
    return find_algorithm(config.algorithm).damping(config, compressor, problem.layout.size)


def _beyond(
    config: RunConfig, taus: set[int], examples: set[int], q: float, damping: float
) -> list[str]:
    """Return the keys with which a run is not what the theorems are about."""
    keys = {
        f"local-epochs (clients take {min(taus)} to {max(taus)} steps, the theorems have one tau)": len(
            taus
        )
        > 1,
        f'client-optimizer = "{config.client_optimizer}"': config.client_optimizer != "sgd",
        "error-feedback": config.error_feedback,
        "uplink-budget (unbiased only approximately)": bool(config.uplink_budget),
        f'aggregation = "{config.aggregation}"': config.aggregation != "mean",
        f'mixing = "{config.mixing}"': config.mixing != "none",
        f'downlink = "{config.downlink}"': config.downlink != "none",
        f'weighting = "{config.weighting}"': config.weighting != "uniform" and len(examples) > 1,
        "dp.clip": config.dp.clip > 0,
        "clip-gradient": config.clip_gradient > 0,
        "max-update-norm": config.max_update_norm > 0,
        f"damping = {damping:.2g} of gradient tracking": damping != 1,
    }
    if config.algorithm == "fedcomgate":
        options = config.table(GateOptions)
        keys |= {
            'fedcomgate.track = "own"': options.track == "own" and q > 0,
            f'fedcomgate.memory = "{options.memory}"': options.memory != "none",
        }
    return [key for key, used in keys.items() if used]


def _notes(config: RunConfig, s: Setting, damping: float) -> list[str]:
    """Return what no inequality says."""
    if config.algorithm in ("fedcomgate", "fedgate") and 1 < s.q < inf and damping == 1:
        return [
            f"q = {s.q:.2g}: tracking as printed (damping = 1) can diverge at an admissible step size, because G_q of "
            "assumption 5 is not finite then."
        ]
    return []


def certificate(config: RunConfig) -> dict[str, Any]:
    """Return what is known, and of each theorem on the algorithm whether it applies, and what would make it."""
    known = constants_of(config)
    s = known.setting
    keys = _keys(config)
    notes = known.notes + _other_gains(s)
    theorems = [
        _verdict(h, s, known.beyond, keys) for h in HYPOTHESES if config.algorithm in h.algorithms
    ]
    q_is = f"the compressor's bound; {known.measured_q:.2g} on the first gradient"
    run = {"clients": s.n, "clients-per-round": s.r, "tau": s.tau, "lr": s.eta}
    if "server-lr" in keys:
        run["server-lr"] = s.gamma
    if "fedcet.c" in keys:
        run["fedcet.c"] = s.xi / s.eta
    return {
        "algorithm": config.algorithm,
        "problem": kind_of(config).name,
        "exact": known.exact,
        "constants": {
            "L": [_number(s.L), known.L_is],
            "mu": [_number(s.mu), known.mu_is],
            "mu of each f_i": [max(s.own_mu, 0.0), known.mu_is],
            "sigma^2": [_number(s.sigma2), known.noise_is],
            "heterogeneity": [_number(s.rho2), known.spread_is],
            "q": [_number(s.q), q_is if s.q else "no compression"],
        },
        "run": run,
        "notes": notes,
        "theorems": theorems,
    }


def _other_gains(s: Setting) -> list[str]:
    """Return what FedCET's lr may be if c is not fixed: with a fixed c no lr may be small enough."""
    if not s.c:
        return []
    limits = {
        h.name: largest(h, replace(s, c=0.0), "lr") for h in HYPOTHESES if "fedcet" in h.algorithms
    }
    told = ", ".join(f"{name}: {_limit(limit)}" for name, limit in limits.items())
    return [f"with fedcet.c = 0, which is chosen for lr, lr may be as large as ({told})."]


def _keys(config: RunConfig) -> list[str]:
    """Return the keys of step sizes that the algorithm has."""
    needs = find_algorithm(config.algorithm).needs
    missing = {
        "server-lr": needs.no_server_lr,
        "tau": needs.one_local_step,
        "fedcet.c": config.algorithm != "fedcet",
    }
    return [key for key in NAMES if not missing.get(key)]


def _number(value: float) -> float | None:
    """Return a number that JSON can hold; None: infinite."""
    return float(value) if isfinite(value) else None


def _verdict(
    hypotheses: Hypotheses, s: Setting, beyond: list[str], keys: list[str]
) -> dict[str, Any]:
    conditions = hypotheses.conditions(s)
    if beyond:
        text = f"the algorithm as the paper has it: without {', '.join(beyond)}"
        conditions = [*conditions, Condition(text, 1.0, 0.0)]
    return {
        "name": hypotheses.name,
        "applies": all(c.holds for c in conditions),
        "concludes": hypotheses.concludes,
        "conditions": [
            {
                "text": c.text,
                "value": _number(c.value),
                "limit": c.limit,
                "holds": c.holds,
                "factor": _number(c.factor),
            }
            for c in conditions
        ],
        "largest": {key: _shown(largest(hypotheses, s, key)) for key in keys},
    }


def _shown(value: float | None) -> float | str | None:
    return "no limit" if value == inf else value


def as_text(found: dict[str, Any]) -> str:
    """Write a certificate in words: one screen."""
    run = ", ".join(f"{key} = {value:g}" for key, value in found["run"].items())
    lines = [f"{found['algorithm']} on {found['problem']}: {run}"]
    for name, (value, how) in found["constants"].items():
        lines.append(f"  {name:14}{'not bounded' if value is None else f'{value:.4g}':>12}  {how}")
    lines += [f"Note: {note}" for note in found["notes"]]
    if not found["theorems"]:
        lines.append(f"No theorem of the papers here is about {found['algorithm']}.")
    applies = "applies" if found["exact"] else "applies if these estimates are right"
    for theorem in found["theorems"]:
        failed = [c for c in theorem["conditions"] if not c["holds"]]
        verdict = applies if theorem["applies"] else "does not apply"
        lines.append(f"\n{theorem['name']} {verdict}: {theorem['concludes']}")
        for c in failed:
            lines.append(f"  fails  {c['text']}" + _by(c))
        held = [
            c
            for c in theorem["conditions"]
            if c["holds"] and c["limit"] > 0 and "n/r" not in c["text"]
        ]
        lines += [f"  holds  {c['text']}: {c['value']:.3g}" for c in held]
        limits = [f"{key} {_limit(value)}" for key, value in theorem["largest"].items()]
        lines.append("  at most, the others as they are: " + ", ".join(limits))
    return "\n".join(lines)


def _by(condition: dict[str, Any]) -> str:
    value, limit, factor = condition["value"], condition["limit"], condition["factor"]
    if value is None or limit == 0:
        return "" if value in (None, 1.0) else f": {value:.3g}"
    if limit < 1e-3:  # an equality, and its tolerance
        return f": {value:.3g}"
    shown = ": " if limit == 1 else f": {value:.3g}, "
    return f"{shown}{factor:.{3 if factor > 1.01 else 9}g} times too large"


def _limit(value: float | str | None) -> str:
    return "(no value)" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def as_json(found: dict[str, Any]) -> str:
    """Write a certificate as JSON; null: not bounded, or none is admissible."""
    return json.dumps(found, indent=2)
