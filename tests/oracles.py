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


# Compression. `Q(name, k, i, v)` is what client i's compressor makes of v, to be sent as `name`, in round k.

Quantize = Callable[[str, int, int, Vector], Vector]


def qsgd(v: Vector, s: int, u: NDArray[np.float32]) -> Vector:
    """Q_j(v) = |v|_2 sign(v_j) xi_j, xi_j in {l/s, (l+1)/s}; u_j in [0, 1) decides which."""
    norm = np.linalg.norm(v)
    if norm == 0:
        return np.zeros_like(v)
    a = s * np.abs(v) / norm
    level = np.floor(a)
    # The draw decides in the direction of the axis: up for large u, whatever the sign.
    level += np.where(v >= 0, u >= 1 - (a - level), u < a - level)
    return np.asarray(norm * np.sign(v) * level / s)


def topk(v: Vector, k: int) -> Vector:
    """Keep the k largest."""
    kept = np.argsort(-np.abs(v), kind="stable")[:k]
    sparse = np.zeros_like(v)
    sparse[kept] = v[kept]
    return sparse


def fedpaq(
    x: Vector, g: Gradient, cohorts: Cohorts, tau: int, lr: float, server_lr: float, Q: Quantize
) -> Iterator[Vector]:
    """FedPAQ, algorithm 1; QSGD with tau = 1 and all clients."""
    for k, S in enumerate(cohorts, 1):
        sent = [Q("p", k, i, -local_sgd(g, i, x, tau, lr)) for i in S]
        x = x + server_lr * sum(sent) / len(S)
        yield x


def fedcom(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    server_lr: float,
    Q: Quantize,
    decay: float = 1.0,
) -> Iterator[Vector]:
    """FedCOM, algorithm 1."""
    for k, S in enumerate(cohorts, 1):
        D = [Q("D", k, i, local_sgd(g, i, x, tau, lr) / lr) for i in S]
        x = x - lr * server_lr * sum(D) / len(S)
        lr = lr * decay
        yield x


def corrected_sgd(g: Gradient, i: int, x: Vector, tau: int, lr: float, shift: Vector) -> Vector:
    """Return u_i after tau steps along g - shift."""
    y = x.copy()
    for _ in range(tau):
        y = y - lr * (g(i, y) - shift)
    return x - y


def fedgate(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    server_lr: float,
    N: int,
    decay: float = 1.0,
) -> Iterator[Vector]:
    """FedGATE, algorithm 3, with sampling: everyone who took part learns u at once."""
    delta = np.zeros((N, len(x)))
    for S in cohorts:
        u_i = {i: corrected_sgd(g, i, x, tau, lr, delta[i]) for i in S}
        u = sum(u_i.values()) / len(S)
        for i in S:
            delta[i] = delta[i] + (u_i[i] - u) / (lr * tau)
        x = x - server_lr * u
        lr = lr * decay
        yield x


def fedcomgate(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    server_lr: float,
    N: int,
    Q: Quantize,
    memory: str = "none",
    mistake: str = "",
    decay: float = 1.0,
) -> Iterator[Vector]:
    """FedCOMGATE, algorithms 2 and 4: everyone who took part learns D at once.

    `memory` as in equations 8 and 9. `mistake` puts in one that other implementations make.
    """
    delta, nu = np.zeros((N, len(x))), np.zeros((N, len(x)))
    for k, S in enumerate(cohorts, 1):
        u_i = {i: corrected_sgd(g, i, x, tau, lr, delta[i]) / lr for i in S}
        part = len(S) if mistake == "quantizes u/s" else 1
        D_i = {i: Q("D", k, i, (u_i[i] + nu[i]) / part) for i in S}
        count = N if mistake == "divides by N" else len(S) / part
        D = sum(D_i.values()) / count
        for i in S:
            own = u_i[i] if mistake == "tracks unquantized" else D_i[i]
            delta[i] = delta[i] + (own - D) / tau
            if memory == "local":
                nu[i] = nu[i] + u_i[i] - D_i[i]
            elif memory == "paper":
                nu[i] = nu[i] + u_i[i] / len(S) - D
        x = x - lr * server_lr * D
        lr = lr * decay
        yield x


def scaffold(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    server_lr: float,
    N: int,
    option: int = 2,
    Q: Quantize = lambda name, k, i, v: v,
    decay: float = 1.0,
) -> Iterator[Vector]:
    """SCAFFOLD; G_i(x) = g_i(x) here, because there is no noise. Q acts on both vectors."""
    c_i, c = np.zeros((N, len(x))), np.zeros_like(x)
    for k, S in enumerate(cohorts, 1):
        us, changes = [], []
        for i in S:
            u = corrected_sgd(g, i, x, tau, lr, c_i[i] - c)
            renewed = g(i, x) if option == 1 else c_i[i] - c + u / (tau * lr)
            change = Q("dc", k, i, renewed - c_i[i])
            us.append(Q("u", k, i, u))
            changes.append(change)
            c_i[i] = c_i[i] + change
        x = x - server_lr * sum(us) / len(S)
        c = c + (len(S) / N) * sum(changes) / len(S)
        lr = lr * decay
        yield x


def diana(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    lr: float,
    server_lr: float,
    N: int,
    alpha: float,
    Q: Quantize,
    tau: int = 1,
) -> Iterator[Vector]:
    """DIANA; sampled, h stays the mean over all N."""
    h_i, h = np.zeros((N, len(x))), np.zeros_like(x)
    for k, S in enumerate(cohorts, 1):
        q = {i: Q("q", k, i, g(i, x) - h_i[i]) for i in S}
        mean = sum(q.values()) / len(S)
        x = x - lr * server_lr * (h + mean)
        for i in S:
            h_i[i] = h_i[i] + alpha * q[i]
        h = h + alpha * (len(S) / N) * mean
        yield x


def vrdiana(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    lr: float,
    server_lr: float,
    N: int,
    alpha: float,
    Q: Quantize,
    noisy: Callable[[int, int, Vector], Vector],
    renew: Callable[[int, int], bool],
    tau: int = 1,
) -> Iterator[Vector]:
    """VR-DIANA: `noisy(k, i, y)` is client i's gradient on its mini-batch of round k."""
    h_i, h = np.zeros((N, len(x))), np.zeros_like(x)
    w: dict[int, Vector] = {}
    for k, S in enumerate(cohorts, 1):
        q = {}
        for i in S:
            w.setdefault(i, x)
            estimate = noisy(k, i, x) - noisy(k, i, w[i]) + g(i, w[i])
            if renew(k, i):
                w[i] = x
            q[i] = Q("q", k, i, estimate - h_i[i])
        mean = sum(q.values()) / len(S)
        x = x - lr * server_lr * (h + mean)
        for i in S:
            h_i[i] = h_i[i] + alpha * q[i]
        h = h + alpha * (len(S) / N) * mean
        yield x


def fedcet(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    c: float,
    Q: Quantize = lambda name, k, i, v: v,
    decay: float = 1.0,
) -> Iterator[Vector]:
    """FedCET in the drift form. Compressed, z_i is what the others see of it, x + Q(z_i - x)."""
    N = len(cohorts[0])
    x_i = [x - lr * g(i, x) for i in range(N)]
    d = np.zeros((N, len(x)))
    for k, _ in enumerate(cohorts, 1):
        if k > 1:
            lr = lr * decay
            for _ in range(tau - 1):
                x_i = [x_i[i] - lr * (g(i, x_i[i]) + d[i]) for i in range(N)]
        z_i = [x_i[i] - lr * (g(i, x_i[i]) + d[i]) for i in range(N)]
        z_i = [x + Q("p", k, i, z_i[i] - x) for i in range(N)]
        z = sum(z_i) / N
        for i in range(N):
            d[i] = d[i] + c * (z_i[i] - z)
            x_i[i] = z_i[i] - lr * c * (z_i[i] - z)
        x = z
        yield x


def fedcet_recursion(
    x: Vector, g: Gradient, N: int, rounds: int, tau: int, alpha: float, c: float
) -> Iterator[Vector]:
    """Equation 2 of FedCET's supplement with W(t) of equation 1 and the start (5).

    A column of X is a client. Yields the mean of x_i(t + 1) after each exchange, t = 0, tau, 2 tau, ...
    """

    def gradients(X: Vector) -> Vector:
        return np.stack([g(i, X[:, i]) for i in range(N)], axis=1)

    xi = c * alpha
    mixing = (1 - xi) * np.eye(N) + xi * np.ones((N, N)) / N
    before = np.stack([x] * N, axis=1)  # X(-1)
    X = before - alpha * gradients(before)  # X(0)
    for t in range((rounds - 1) * tau + 1):
        W = mixing if t % tau == 0 else np.eye(N)
        after = (2 * X - before - alpha * gradients(X) + alpha * gradients(before)) @ W
        before, X = X, after
        if t % tau == 0:
            yield X.mean(axis=1)


def feddyn(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    N: int,
    alpha: float,
    Q: Quantize = lambda name, k, i, v: v,
) -> Iterator[Vector]:
    """FedDyn; compressed, the y_i of both sides is what is sent, x - Q(x - y_i)."""
    h_i, h = np.zeros((N, len(x))), np.zeros_like(x)
    for k, S in enumerate(cohorts, 1):
        y = {i: x.copy() for i in S}
        for i in S:
            for _ in range(tau):
                y[i] = y[i] - lr * (g(i, y[i]) - h_i[i] + alpha * (y[i] - x))
            y[i] = x - Q("u", k, i, x - y[i])
            h_i[i] = h_i[i] - alpha * (y[i] - x)
        h = h - alpha * sum(y[i] - x for i in S) / N
        x = sum(y.values()) / len(S) - h / alpha
        yield x


def feddc(
    x: Vector, g: Gradient, cohorts: Cohorts, tau: int, lr: float, N: int, alpha: float
) -> Iterator[Vector]:
    """FedDC; the server averages h over all clients itself, sampled or not."""
    h, c_i, c = np.zeros((N, len(x))), np.zeros((N, len(x))), np.zeros_like(x)
    for S in cohorts:
        y, changes = {}, []
        for i in S:
            y[i] = x.copy()
            for _ in range(tau):
                y[i] = y[i] - lr * (g(i, y[i]) + alpha * (y[i] + h[i] - x) - c_i[i] + c)
            renewed = c_i[i] - c + (x - y[i]) / (tau * lr)
            changes.append(renewed - c_i[i])
        for i, change in zip(S, changes, strict=True):
            c_i[i] = c_i[i] + change
            h[i] = h[i] + (y[i] - x)
        c = c + (len(S) / N) * sum(changes) / len(S)
        x = sum(y.values()) / len(S) + h.mean(axis=0)
        yield x


def mimelite(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: int,
    lr: float,
    server_lr: float,
    beta: float,
    noisy: Callable[[int, int, int, Vector], Vector],
) -> Iterator[Vector]:
    """MimeLite: `noisy(k, i, t, y)` is client i's mini-batch gradient, g(i, x) its full one."""
    m = np.zeros_like(x)
    for k, S in enumerate(cohorts, 1):
        us = []
        for i in S:
            y = x.copy()
            for t in range(tau):
                y = y - lr * ((1 - beta) * noisy(k, i, t, y) + beta * m)
            us.append(x - y)
        full = sum(g(i, x) for i in S) / len(S)
        x = x - server_lr * sum(us) / len(S)
        m = (1 - beta) * full + beta * m
        yield x
