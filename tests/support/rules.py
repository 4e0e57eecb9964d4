"""Aggregation rules as their papers define them, literally: loops over clients, float64, no function of the implementation."""

from typing import Any

import numpy as np


def some_rows(seed: int, n: int = 11, size: int = 7) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, size)) * np.exp(rng.standard_normal((n, 1)))


def krum_scores(V: Any, f: int) -> list[float]:
    """Blanchard et al., section 4: s(i) = sum over i -> j of |V_i - V_j|^2, the n - f - 2 closest vectors j."""
    n = len(V)
    scores = []
    for i in range(n):
        squares = sorted(float(sum((V[i] - V[j]) ** 2)) for j in range(n) if j != i)
        scores.append(sum(squares[: n - f - 2]))
    return scores


def multi_krum(V: Any, f: int, m: int) -> Any:
    """Blanchard et al., section 5: the average of the m vectors that score best."""
    scores = krum_scores(V, f)
    best = sorted(range(len(V)), key=lambda i: scores[i])[:m]
    return sum(V[i] for i in best) / m


def weiszfeld(w: Any, alpha: Any, nu: float, v: Any, steps: int) -> Any:
    """Pillutla et al., algorithm 2, from v on: beta_i = alpha_i / max(nu, |v - w_i|), v = sum beta_i w_i / sum beta_i."""
    for _ in range(steps):
        beta = [
            a / max(nu, float(np.sqrt(sum((v - w_i) ** 2))))
            for a, w_i in zip(alpha, w, strict=True)
        ]
        v = sum(b * w_i for b, w_i in zip(beta, w, strict=True)) / sum(beta)
    return v


def centered_clip(x: Any, v: Any, tau: float) -> Any:
    """Karimireddy et al., algorithm 1, one step: v + 1/n sum of (x_i - v) min(1, tau/|x_i - v|)."""
    total = np.zeros_like(v)
    for x_i in x:
        length = float(np.sqrt(sum((x_i - v) ** 2)))
        total = total + (x_i - v) * (min(1.0, tau / length) if length else 1.0)
    return v + total / len(x)


def nnm(x: Any, f: int) -> Any:
    """Allouah et al., algorithm 1: y_i is the average of the n - f vectors closest to x_i."""
    n = len(x)
    mixed = []
    for i in range(n):
        order = sorted(range(n), key=lambda j: float(sum((x[i] - x[j]) ** 2)))
        mixed.append(sum(x[j] for j in order[: n - f]) / (n - f))
    return np.array(mixed)
