"""The constants of a run's problem: exact for quadratics."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedapp.config import RunConfig
from fedapp.problems.quadratic import Quadratic
from fedapp.registry import find_compressor
from fedapp.theory.hypotheses import Setting
from fedapp.theory.played import quadratic_of
from strategies.fedbcgd import Options as BlockOptions
from strategies.fedcet import Options as CetOptions
from strategies.gradma import Options as MemoryOptions


def numbers_of(config: RunConfig, q: float) -> Setting:
    """Return a run's own numbers; the constants of its problem are still to be filled in."""
    s = Setting(
        L=np.nan, mu=np.nan, sigma2=np.nan, rho2=np.nan, q=q,
        n=config.num_clients, r=config.clients_per_round, tau=config.local_steps,
        eta=config.largest_lr, gamma=config.server_lr or 1.0, rounds=config.num_rounds,
        constant=len({config.lr_at(k) for k in range(1, config.num_rounds + 1)}) == 1,
    )  # fmt: skip
    if config.algorithm == "fedcet":
        s = replace(s, c=config.table(CetOptions).c)
    if config.algorithm in ("gradma", "gradma-s"):
        s = replace(s, beta1=config.table(MemoryOptions).beta1)
    if config.algorithm.startswith("fedbcgd"):
        options = config.table(BlockOptions)
        averaged = config.algorithm == "fedbcgd" or options.control == "consistent"
        s = replace(s, beta1=options.momentum, blocks=options.blocks, averaged=averaged)
    if config.lr_schedule == "inverse":
        s = replace(s, eta=config.lr, inverse=not config.warmup_rounds)
    return s


def relative_variance(config: RunConfig, size: int, pieces: tuple[object, ...]) -> float:
    """Return the compressor's q: infinite if it is biased, 0 without one."""
    compressor = find_compressor(config, pieces)  # type: ignore[arg-type]
    if compressor is None:
        return 0.0
    return compressor.variance(size) if compressor.unbiased else np.inf


def exact_setting(config: RunConfig) -> Setting:
    """Return a run on quadratics as a theorem sees it; weight decay is part of f."""
    problem = quadratic_of(config)
    q = relative_variance(config, problem.layout.size, problem.layout.pieces)
    return replace(numbers_of(config, q), **quadratic_constants(problem, config))


def quadratic_constants(problem: Quadratic, config: RunConfig) -> dict[str, Any]:
    """Return L, mu of f and of every f_i, sigma^2 and rho^2; the last is unbounded if the Hessians differ."""
    A, b = (v.numpy().astype(np.float64) for v in (problem.A, problem.b))
    decay = config.weight_decay
    rounding = max(1e-10, 4 * A.shape[1] ** 0.5 * torch.finfo(problem.dtype).eps)
    eigenvalues, mean = np.linalg.eigvalsh(A), np.linalg.eigvalsh(A.mean(0))
    # Eigenvalues that rounding cannot tell from 0 are 0: directions in which f_i, or f, is flat.
    eigenvalues[np.abs(eigenvalues) <= rounding * eigenvalues.max()] = 0.0
    steep = mean[mean > rounding * mean.max()] if not decay else mean
    shared = bool(np.ptp(A, axis=0).max() < 1e-12)
    gradients = np.einsum("cij,cj->ci", A, b)
    spread = float(((gradients - gradients.mean(0)) ** 2).sum(1).mean())
    spread = spread if spread > 1e-20 else 0.0  # rounding
    return {
        "L": float(eigenvalues.max()) + decay,
        "mu": float(steep.min()) + decay,
        "own_mu": float(eigenvalues.min()) + decay,
        "sigma2": problem.noise**2 * problem.layout.size,
        "rho2": spread if shared else (np.inf if len(A) > 1 else 0.0),
    }
