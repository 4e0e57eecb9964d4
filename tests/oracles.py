"""The algorithms' pseudocode, transcribed literally into NumPy (float64) as oracles.

Each yields the model x after every round. `gradient(i, y)` is client i's gradient; `cohorts` holds
each round's sampled clients.

Long, because it holds all algorithms side by side, so that each can be compared with those that it builds on.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[int, Vector], Vector]
Cohorts = list[list[int]]
Tau = int | list[int]  # local steps: of everybody, or of each client
Weights = list[int] | None  # each client's in means; None: all the same


def steps_of(tau: Tau, i: int) -> int:
    """Return tau_i."""
    return tau if isinstance(tau, int) else tau[i]


def mean(S: list[int], vectors: list[Vector], weights: Weights = None) -> Vector:
    """Return the mean over the clients S, whose vectors are in that order."""
    n = [weights[i] if weights else 1 for i in S]
    total: Vector = sum((w * v for w, v in zip(n, vectors, strict=True)), np.zeros(1))
    return total / sum(n)


def local_sgd(g: Gradient, i: int, x: Vector, tau: Tau, lr: float, mu: float = 0.0) -> Vector:
    """Return u_i = x - y_i after tau steps of (proximal) gradient descent."""
    y = x.copy()
    for _ in range(steps_of(tau, i)):
        y = y - lr * (g(i, y) + mu * (y - x))
    return x - y


def fedavg(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    mu: float = 0.0,
    weights: Weights = None,
) -> Iterator[Vector]:
    """FedAvg; FedProx with mu > 0."""
    for S in cohorts:
        u = [local_sgd(g, i, x, tau, lr, mu) for i in S]
        x = x - server_lr * mean(S, u, weights)
        yield x


def fedavgm(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    beta1: float,
    mu: float = 0.0,
    weights: Weights = None,
) -> Iterator[Vector]:
    """Algorithm 5 of GradMA's appendix: FedAvgM; FedProxM with mu > 0."""
    m = np.zeros_like(x)
    for S in cohorts:
        d = mean(S, [local_sgd(g, i, x, tau, lr, mu) for i in S], weights)
        m = beta1 * m + d
        x = x - server_lr * m
        yield x


def fedadam(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    b1: float,
    b2: float,
    eps: float,
    weights: Weights = None,
) -> Iterator[Vector]:
    """Adam on the server, without bias correction."""
    m, v = np.zeros_like(x), np.zeros_like(x)
    for S in cohorts:
        D = -mean(S, [local_sgd(g, i, x, tau, lr) for i in S], weights)
        m = b1 * m + (1 - b1) * D
        v = b2 * v + (1 - b2) * D**2
        x = x + server_lr * m / (np.sqrt(v) + eps)
        yield x


def mifam(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
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
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    Q: Quantize,
    weights: Weights = None,
) -> Iterator[Vector]:
    """FedPAQ, algorithm 1; QSGD with tau = 1 and all clients."""
    for k, S in enumerate(cohorts, 1):
        sent = [Q("p", k, i, -local_sgd(g, i, x, tau, lr)) for i in S]
        x = x + server_lr * mean(S, sent, weights)
        yield x


def fedcom(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    Q: Quantize,
    decay: float = 1.0,
    weights: Weights = None,
) -> Iterator[Vector]:
    """FedCOM, algorithm 1."""
    for k, S in enumerate(cohorts, 1):
        D = [Q("D", k, i, local_sgd(g, i, x, tau, lr) / lr) for i in S]
        x = x - lr * server_lr * mean(S, D, weights)
        lr = lr * decay
        yield x


def corrected_sgd(g: Gradient, i: int, x: Vector, tau: Tau, lr: float, shift: Vector) -> Vector:
    """Return u_i after tau steps along g - shift."""
    y = x.copy()
    for _ in range(steps_of(tau, i)):
        y = y - lr * (g(i, y) - shift)
    return x - y


def fedgate(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    N: int,
    Q: Quantize = lambda name, k, i, v: v,
    decay: float = 1.0,
    a: float = 1.0,
    weights: Weights = None,
    mistake: str = "",
) -> Iterator[Vector]:
    """FedGATE, algorithm 3, with sampling: everyone who took part learns u at once.

    Ours: damping `a`, a tau and a weight of each client. `mistake`: the client divides the mean by its own tau.
    """
    delta = np.zeros((N, len(x)))
    tau_of, n = [steps_of(tau, i) for i in range(N)], weights or [1] * N
    for k, S in enumerate(cohorts, 1):
        u_i = {i: Q("u", k, i, corrected_sgd(g, i, x, tau_of[i], lr, delta[i])) for i in S}
        u = sum(n[i] * u_i[i] for i in S) / sum(n[i] for i in S)
        T = sum(n[i] * u_i[i] / tau_of[i] for i in S) / sum(n[i] for i in S)
        for i in S:
            mean = u / tau_of[i] if mistake == "own tau" else T
            delta[i] = delta[i] + a * (u_i[i] / tau_of[i] - mean) / lr
        x = x - server_lr * u
        lr = lr * decay
        yield x


def fedcomgate(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    N: int,
    Q: Quantize,
    memory: str = "none",
    mistake: str = "",
    decay: float = 1.0,
    a: float = 1.0,
    track: str = "sent",
    weights: Weights = None,
) -> Iterator[Vector]:
    """FedCOMGATE, algorithms 2 and 4: everyone who took part learns D at once.

    `memory` as in equations 8 and 9, of which u_i and nu_i are parts of the model: here u_i is over lr, nu_i is not. `mistake` puts in one that other implementations make, or, "own tau", that the
    client divides the mean by its own tau. Ours: damping `a`, `track`, a tau and a weight of each client.
    """
    delta, nu = np.zeros((N, len(x))), np.zeros((N, len(x)))
    tau_of, n = [steps_of(tau, i) for i in range(N)], weights or [1] * N
    for k, S in enumerate(cohorts, 1):
        u_i = {i: corrected_sgd(g, i, x, tau_of[i], lr, delta[i]) / lr for i in S}
        part = len(S) if mistake == "quantizes u/s" else 1
        D_i = {i: Q("D", k, i, (u_i[i] + nu[i] / lr) / part) for i in S}
        count = N if mistake == "divides by N" else sum(n[i] for i in S) / part
        D = sum(n[i] * D_i[i] for i in S) / count
        T = sum(n[i] * D_i[i] / tau_of[i] for i in S) / count
        for i in S:
            own = u_i[i] if track == "own" or mistake == "tracks unquantized" else D_i[i]
            mean = D / tau_of[i] if mistake == "own tau" else T
            delta[i] = delta[i] + a * (own / tau_of[i] - mean)
            if memory == "local":
                nu[i] = nu[i] + lr * (u_i[i] - D_i[i])
            elif memory != "none":
                nu[i] = nu[i] + lr * (u_i[i] / (N if memory == "paper" else len(S)) - D)
        x = x - lr * server_lr * D
        lr = lr * decay
        yield x


def scaffold(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    N: int,
    option: int = 2,
    Q: Quantize = lambda name, k, i, v: v,
    decay: float = 1.0,
    a: float = 1.0,
) -> Iterator[Vector]:
    """SCAFFOLD; G_i(x) = g_i(x) here, because there is no noise. Q acts on both vectors. Ours: damping `a`."""
    c_i, c = np.zeros((N, len(x))), np.zeros_like(x)
    for k, S in enumerate(cohorts, 1):
        us, changes = [], []
        for i in S:
            u = corrected_sgd(g, i, x, tau, lr, c_i[i] - c)
            tau_i = steps_of(tau, i)
            renewed = g(i, x) if option == 1 else c_i[i] - c + u / (tau_i * lr)
            change = a * Q("dc", k, i, renewed - c_i[i])
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
    tau: Tau,
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
            for _ in range(steps_of(tau, i)):
                y[i] = y[i] - lr * (g(i, y[i]) - h_i[i] + alpha * (y[i] - x))
            y[i] = x - Q("u", k, i, x - y[i])
            h_i[i] = h_i[i] - alpha * (y[i] - x)
        h = h - alpha * sum(y[i] - x for i in S) / N
        x = sum(y.values()) / len(S) - h / alpha
        yield x


def feddc(
    x: Vector,
    g: Gradient,
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    N: int,
    alpha: float,
    Q: Quantize = lambda name, k, i, v: v,
) -> Iterator[Vector]:
    """FedDC; the server averages h over all clients itself, sampled or not.

    Compressed, h_i and c_i change by what is sent, and the server's y_i is x - Q(x - y_i).
    """
    h, c_i, c = np.zeros((N, len(x))), np.zeros((N, len(x))), np.zeros_like(x)
    for k, S in enumerate(cohorts, 1):
        y, changes = {}, []
        for i in S:
            y[i] = x.copy()
            for _ in range(steps_of(tau, i)):
                y[i] = y[i] - lr * (g(i, y[i]) + alpha * (y[i] + h[i] - x) - c_i[i] + c)
            renewed = c_i[i] - c + (x - y[i]) / (steps_of(tau, i) * lr)
            changes.append(Q("dc", k, i, renewed - c_i[i]))
            y[i] = x - Q("u", k, i, x - y[i])
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
    tau: Tau,
    lr: float,
    server_lr: float,
    beta: float,
    noisy: Callable[[int, int, int, Vector], Vector],
    weights: Weights = None,
) -> Iterator[Vector]:
    """MimeLite: `noisy(k, i, t, y)` is client i's mini-batch gradient, g(i, x) its full one."""
    m = np.zeros_like(x)
    for k, S in enumerate(cohorts, 1):
        us = []
        for i in S:
            y = x.copy()
            for t in range(steps_of(tau, i)):
                y = y - lr * ((1 - beta) * noisy(k, i, t, y) + beta * m)
            us.append(x - y)
        full = mean(S, [g(i, x) for i in S], weights)
        x = x - server_lr * mean(S, us, weights)
        m = (1 - beta) * full + beta * m
        yield x


# GradMA. `P(v, C)` is the projection by a solver that works on the primal problem.


def quadratic_program(v: Vector, C: Vector) -> Vector:
    """Return argmin 1/2 |p - v|^2 with <C_j, p> >= 0, by Goldfarb and Idnani's method."""
    from quadprog import solve_qp

    lengths = np.linalg.norm(C, axis=1)
    C = C[lengths > 0] / lengths[lengths > 0, None]
    if not len(C):
        return v
    # Constraints that leave only one direction, or none, are inconsistent after rounding.
    slack = -1e-13 * np.linalg.norm(v)
    solved: Vector = solve_qp(np.eye(len(v)), v, C.T, np.full(len(C), slack))[0]
    return solved


def in_pieces(v: Vector, C: Vector, sizes: tuple[int, ...]) -> Vector:
    """Project each piece of the vectors by itself."""
    parts, start = [], 0
    for size in sizes:
        end = start + size
        parts.append(quadratic_program(v[start:end], C[:, start:end]))
        start = end
    return np.concatenate(parts)


def mem_red(
    m: int, S: list[int], counter: dict[int, int], buf: list[int]
) -> tuple[dict[int, int], list[int], list[int]]:
    """Return the counters, the clients with a slot (the oldest first), and those whose slot is new."""
    counter, buf, new_buf = dict(counter), list(buf), []
    for i in S:
        if i in buf:
            counter[i] = counter[i] + 1
        else:
            if len(buf) == m:
                candidates = [j for j in buf if j not in S]
                smallest = min(counter[j] for j in candidates)
                evicted = next(j for j in candidates if counter[j] == smallest)
                buf.remove(evicted)
                counter[evicted] = 0
            buf.append(i)
            new_buf.append(i)
            counter[i] = 1
    return counter, buf, new_buf


def gradma(
    x: Vector,
    g: Callable[[int, int, int, Vector], Vector],
    cohorts: Cohorts,
    tau: Tau,
    lr: float,
    server_lr: float,
    N: int,
    sizes: tuple[int, ...],
    beta1: float,
    beta2: float,
    m: int,
    worker: bool = True,
    server: bool = True,
    weights: Weights = None,
) -> Iterator[Vector]:
    """GradMA; GradMA-W without its server, GradMA-S without its worker.

    `g(k, i, t, y)` is client i's gradient at y on its mini-batch t of round k.
    """
    last: dict[int, Vector] = {}
    counter, buf = dict.fromkeys(range(N), 0), list[int]()
    D: dict[int, Vector] = {}
    mom = np.zeros_like(x)
    for k, S in enumerate(cohorts, 1):
        counter, buf, new_buf = mem_red(m, S, counter, buf)
        u = {}
        for i in S:
            y, before = x.copy(), last.get(i, x)
            for t in range(steps_of(tau, i)):
                v = g(k, i, t, y)
                C = np.stack([g(k, i, t, before), g(k, i, t, x), y - x])
                step = in_pieces(v, C, sizes) if worker else v
                before, y = y, y - lr * step
            last[i] = y
            u[i] = x - y
        d = mean(S, list(u.values()), weights)
        if server:
            mom = beta1 * mom + d
            for i in list(D):
                if i not in buf:
                    del D[i]
            for i in buf:
                if i in new_buf:
                    D[i] = u[i]
                elif i in S:
                    D[i] = beta2 * D[i] + u[i]
                else:
                    D[i] = beta2 * D[i]
            mom = in_pieces(mom, np.stack([D[i] for i in buf]), sizes)
            x = x - server_lr * mom
        else:
            x = x - server_lr * d
        yield x


# Networks: three linear layers with ReLU between them, as matrices, and the losses that look into them.

Layers = list[tuple[Vector, Vector]]


def layers_of(y: Vector, widths: list[int]) -> Layers:
    """Cut a flat vector into the weights and biases of linear layers."""
    layers, start = [], 0
    for inputs, outputs in itertools.pairwise(widths):
        end = start + inputs * outputs
        layers.append((y[start:end].reshape(outputs, inputs), y[end : end + outputs]))
        start = end + outputs
    assert start == len(y)
    return layers


def level(layers: Layers, l: int, h: Vector) -> Vector:
    """Apply layer l: all but the last end in a ReLU."""
    W, b = layers[l]
    out = h @ W.T + b
    return out if l == len(layers) - 1 else np.maximum(out, 0)


def log_softmax(logits: Vector) -> Vector:
    """Return the logarithms of softmax probabilities."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def cross_entropy(logits: Vector, labels: NDArray[np.int64]) -> float:
    """Return the mean negative log-likelihood."""
    return float(-log_softmax(logits)[np.arange(len(labels)), labels].mean())


def moon_loss(
    y: Layers, x: Layers, previous: Layers, inputs: Vector, labels: NDArray[np.int64],
    mu: float, T: float,
) -> float:  # fmt: skip
    """CE(y) + mu l_con."""

    def z(layers: Layers) -> Vector:
        h = inputs
        for l in range(len(layers) - 1):
            h = level(layers, l, h)
        return h

    def sim(a: Vector, b: Vector) -> Vector:
        # A representation that is all zero resembles nothing.
        lengths = np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-8)
        return np.asarray((a * b).sum(axis=1) / lengths)

    near, far = np.exp(sim(z(y), z(x)) / T), np.exp(sim(z(y), z(previous)) / T)
    l_con = -np.log(near / (near + far)).mean()
    return cross_entropy(level(y, len(y) - 1, z(y)), labels) + mu * float(l_con)


def fedmlb_loss(
    y: Layers, x: Layers, inputs: Vector, labels: NDArray[np.int64],
    lambda1: float, lambda2: float, T: float,
) -> float:  # fmt: skip
    """CE(main) + lambda1 mean_l CE(path_l) + lambda2 mean_l KL(path_l/T || main/T)."""
    L = len(y)

    def path(l: int) -> Vector:
        """Blocks 1..l of y, then l+1..L of x."""
        h = inputs
        for j in range(L):
            h = level(y if j < l else x, j, h)
        return h

    main = path(L)
    ce, kl = [], []
    for l in range(1, L):
        ce.append(cross_entropy(path(l), labels))
        p, q = log_softmax(path(l) / T), log_softmax(main / T)
        kl.append(float((np.exp(p) * (p - q)).sum(axis=1).mean()))
    return cross_entropy(main, labels) + lambda1 * float(np.mean(ce)) + lambda2 * float(np.mean(kl))


def slope_of(loss: Callable[[Vector], float], y: Vector, h: float = 1e-6) -> Vector:
    """Return the gradient by central differences."""
    gradient = np.zeros_like(y)
    for j in range(len(y)):
        up, down = y.copy(), y.copy()
        up[j] += h
        down[j] -= h
        gradient[j] = (loss(up) - loss(down)) / (2 * h)
    return gradient


# FedBCGD. `blocks` are the coordinates of each block, `shared` those of the shared one; `groups[k]` holds, for
# each block, the clients of round k that upload it.

Coordinates = list[int]


def fedbcgd(
    x: Vector,
    g: Callable[[int, int, int, Vector], Vector],
    groups: list[list[list[int]]],
    tau: Tau,
    lr: float,
    blocks: list[Coordinates],
    shared: Coordinates,
    momentum: float,
) -> Iterator[Vector]:
    """FedBCGD: `g(k, i, t, y)` is client i's gradient on its mini-batch t of round k."""
    v = np.zeros_like(x)
    for k, dealt in enumerate(groups, 1):
        y = {}
        for group in dealt:
            for i in group:
                y[i] = x.copy()
                for t in range(steps_of(tau, i)):
                    y[i] = y[i] - lr * g(k, i, t, y[i])
        new = x.copy()
        parts = [*zip(blocks, dealt, strict=True), (shared, [i for group in dealt for i in group])]
        for part, clients in parts:
            if clients:
                a = sum(y[i][part] for i in clients) / len(clients)
                v[part] = momentum * v[part] + (a - x[part])
                new[part] = x[part] + v[part]
            else:
                v[part] = momentum * v[part]
        x = new
        yield x


def fedbcgd_plus(
    x: Vector,
    g: Callable[[int, int, int, Vector], Vector],
    G: Gradient,
    groups: list[list[list[int]]],
    tau: Tau,
    lr: float,
    blocks: list[Coordinates],
    shared: Coordinates,
    momentum: float,
    N: int,
    control: str,
    start: str = "zero",
) -> Iterator[Vector]:
    """FedBCGD+ with each reading of c: equation 72 (`consistent`), line 26 (`printed`), equation 71, and `scaled`."""
    v, c, c_i = np.zeros_like(x), np.zeros_like(x), np.zeros((N, len(x)))
    K, first = sum(map(len, groups[-1])) / len(blocks), 1
    if start == "gradient":  # one round more, in which x stays
        c_i = np.array([G(i, x) for i in range(N)])
        c, groups, first = c_i.mean(axis=0), groups[1:], 2
        yield x
    for k, dealt in enumerate(groups, first):
        y, change = {}, {}
        for group in dealt:
            for i in group:
                y[i], full = x.copy(), G(i, x)
                for t in range(steps_of(tau, i)):
                    direction = g(k, i, t, y[i]) - g(k, i, t, x) + full - c_i[i] + c
                    y[i] = y[i] - lr * direction
                change[i] = full - c_i[i]
        everybody = [i for group in dealt for i in group]
        new, new_c = x.copy(), c.copy()
        for part, clients in [*zip(blocks, dealt, strict=True), (shared, everybody)]:
            if clients:
                a = sum(y[i][part] for i in clients) / len(clients)
                v[part] = momentum * v[part] + (a - x[part])
                new[part] = x[part] + v[part]
                total = sum(change[i][part] for i in clients)
                if control == "scaled":  # (blocks K/N) times the group's mean
                    new_c[part] = c[part] + len(blocks) * K / N * (total / len(clients))
                else:
                    factor = {"consistent": 1 / N, "printed": 1 / N, "equation-71": K / N}[control]
                    if part is shared and control != "consistent":
                        factor = factor / len(blocks)
                    new_c[part] = c[part] + factor * total
            else:
                v[part] = momentum * v[part]
        for block, group in zip(blocks, dealt, strict=True):
            for i in group:
                heard = block + shared if control == "consistent" else list(range(len(x)))
                c_i[i][heard] = c_i[i][heard] + change[i][heard]
        x, c = new, new_c
        yield x
