"""The algorithms' pseudocode, transcribed literally into NumPy (float64) as oracles.

Each yields the model x after every round. `gradient(i, y)` is client i's gradient; `cohorts` holds
each round's sampled clients.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[int, Vector], Vector]
Cohorts = list[list[int]]


def local_sgd(g: Gradient, i: int, x: Vector, tau: int, lr: float, mu: float = 0.0) -> Vector:
    """Return u_i = x - y_i after tau steps of (proximal) gradient descent."""
    y = x.copy()
    for _ in range(tau):
        y = y - lr * (g(i, y) + mu * (y - x))
    return x - y


def fedavg(
    x: Vector, g: Gradient, cohorts: Cohorts, tau: int, lr: float, server_lr: float, mu: float = 0.0
) -> Iterator[Vector]:
    """FedAvg; FedProx with mu > 0."""
    for S in cohorts:
        u = [local_sgd(g, i, x, tau, lr, mu) for i in S]
        x = x - server_lr * sum(u) / len(S)
        yield x


def fedavgm(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    server_lr: float,
    beta1: float,
    mu: float = 0.0,
) -> Iterator[Vector]:
    """Algorithm 5 of GradMA's appendix: FedAvgM; FedProxM with mu > 0."""
    m = np.zeros_like(x)
    for S in cohorts:
        d = sum(local_sgd(g, i, x, tau, lr, mu) for i in S) / len(S)
        m = beta1 * m + d
        x = x - server_lr * m
        yield x


def fedadam(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    server_lr: float,
    b1: float,
    b2: float,
    eps: float,
) -> Iterator[Vector]:
    """Adam on the server, without bias correction."""
    m, v = np.zeros_like(x), np.zeros_like(x)
    for S in cohorts:
        D = -sum(local_sgd(g, i, x, tau, lr) for i in S) / len(S)
        m = b1 * m + (1 - b1) * D
        v = b2 * v + (1 - b2) * D**2
        x = x + server_lr * m / (np.sqrt(v) + eps)
        yield x


def mifam(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    server_lr: float,
    beta1: float,
    N: int,
) -> Iterator[Vector]:
    """Algorithm 6 of GradMA's appendix; MIFA with beta1 = 0."""
    g_old = np.zeros((N, len(x)))
    d, m = g_old.mean(axis=0), np.zeros_like(x)
    for S in cohorts:
        received = []
        for i in S:
            u = local_sgd(g, i, x, tau, lr)
            received.append(u - g_old[i])
            g_old[i] = u
        d = d + sum(received) / N
        m = beta1 * m + d
        x = x - server_lr * m
        yield x
