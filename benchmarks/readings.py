"""Contested lines of the papers, each reading on a problem with a known optimum: `python -m benchmarks.readings`.

Where a supplement contradicts itself, or prints what cannot be meant, every reading runs here as a plain NumPy loop on quadratics with
unequal Hessians (unless it says otherwise), without noise. Prints the table of docs/readings.md: the distance to the optimum
at the end, what that is called, and which reading the code follows. Everything is seeded.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracles import topk

Vector = NDArray[np.float64]
EXACT, DIVERGED = 1e-6, 1e3
M, D, TAU, LR = 12, 24, 4, 0.1  # clients, numbers, local steps, step size
BLOCKS = 3
SCALED = "scaled by blocks K/M"


@dataclass(frozen=True)
class Reading:
    """One way to read a line, and where it leads."""

    line: str
    reading: str
    path: list[float]  # distances to the optimum, round by round
    ours: str  # how the code has it: "default", a config key, nothing, or what it has in place of all readings
    why: str = ""

    @property
    def distance(self) -> float:
        """Return the distance at the end."""
        return self.path[-1]

    @property
    def verdict(self) -> str:
        """Return what becomes of the distance; it is slow where it still fell tenfold in the second half."""
        if not self.distance < DIVERGED:
            return "diverges"
        if self.distance < EXACT:
            return "exact"
        return "slow" if self.distance < 0.1 * self.path[len(self.path) // 2] else "stalls"


class Quadratics:
    """f_i = 1/2 (x - b_i)' A_i (x - b_i), with eigenvalues from 1/3 to 1: L = 1."""

    def __init__(self, clients: int = M, d: int = D, equal: bool = False, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        axes = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(clients)]
        values = 3.0 ** -np.linspace(0, 1, d)
        self.A = np.array([(q * values) @ q.T for q in axes])
        self.b = 1 + 2 * rng.standard_normal((clients, d))
        if equal:
            self.A[:], self.b[:] = self.A[0], self.b[0]
        pulled = np.einsum("cij,cj->i", self.A, self.b)
        self.optimum = np.linalg.solve(self.A.sum(0), pulled)

    def g(self, i: int, y: Vector) -> Vector:
        """Return grad f_i(y)."""
        return np.asarray(self.A[i] @ (y - self.b[i]))

    def slope(self, x: Vector) -> Vector:
        """Return grad f(x)."""
        return np.asarray(np.mean([self.g(i, x) for i in range(len(self.b))], axis=0))

    def away(self, x: Vector) -> float:
        """Return |x - x*|; infinity if that is not finite."""
        distance = float(np.linalg.norm(x - self.optimum))
        return distance if math.isfinite(distance) else math.inf


def qsgd(v: Vector, s: int, rng: np.random.Generator) -> Vector:
    """Quantize to s levels, unbiased."""
    norm = np.linalg.norm(v)
    scaled = s * np.abs(v) / (norm or 1)
    return np.asarray(norm * np.sign(v) * np.floor(scaled + rng.random(len(v))) / s)


# FedBCGD+. Blocks are dealt to groups of half of the clients; there is no shared block.


def fedbcgd_plus(
    f: Quadratics,
    control: str = "eq. 72",
    start: str = "zero",
    signs: str = "eq. 78",
    server: str = "eq. 42",
    momentum: float = 0.0,
    lr: float = LR,
    rounds: int = 500,
) -> list[float]:
    """Return the distances to the optimum; `control` is how c and c_i are renewed."""
    path = []
    rng = np.random.default_rng(1)
    x, v, K = np.zeros(D), np.zeros(D), M // 2 // BLOCKS
    c_i = np.zeros((M, D)) if start == "zero" else np.array([f.g(i, x) for i in range(M)])
    c = c_i.mean(axis=0)
    blocks = np.array_split(np.arange(D), BLOCKS)
    for _ in range(rounds):
        dealt = rng.permutation(M)[: K * BLOCKS].reshape(BLOCKS, K)
        new, new_c = x.copy(), c.copy()
        for block, group in zip(blocks, dealt, strict=True):
            y, change = {}, {}
            for i in group:
                G, y[i] = f.g(i, x), x.copy()
                for _ in range(TAU):  # without noise g(x; batch) is G
                    if signs == "line 13":
                        direction = f.g(i, y[i]) - c + c_i[i] - G + G
                    else:
                        direction = f.g(i, y[i]) - G + G - c_i[i] + c
                    y[i] = y[i] - lr * direction
                change[i] = G - c_i[i]
            a = sum(y[i][block] for i in group) / K
            v[block] = momentum * v[block] + a - x[block]
            new[block] = (a if server == "lines 23-25" else x[block]) + v[block]
            total = sum(change[i][block] for i in group)
            factor = {"line 26": 1 / M, "eq. 71": K / M, "eq. 72": 1 / M, SCALED: BLOCKS / M}[
                control
            ]
            new_c[block] = c[block] + factor * total
            for i in group:
                heard = block if control == "eq. 72" else slice(None)
                c_i[i][heard] = c_i[i][heard] + change[i][heard]
        x, c = new, new_c
        path.append(f.away(x))
        if not path[-1] < 1e9:
            break
    return path


def fedbcgd_readings() -> Iterator[Reading]:
    """Yield the readings of FedBCGD+'s lines."""
    f, rounds = Quadratics(), 500
    run = partial(fedbcgd_plus, f, rounds=rounds)
    whys = {
        "line 26": "all of c_i is renewed, the server hears of one block: c is not the mean of the c_i",
        "eq. 71": "the same, and K times as fast",
        "eq. 72": "c_j is the mean of the c_i,j: a client renews what it uploads",
        SCALED: "all of c_i is renewed, c_j moves by blocks K/M times the group's mean: right on average only",
    }
    keys = {"eq. 72": "", "line 26": "printed", "eq. 71": "equation-71", SCALED: "scaled"}
    for start in ("zero", "gradient"):
        for control, why in whys.items():
            named = f"{control}, c_i from {'0' if start == 'zero' else 'grad f_i(x_0)'}"
            ours = [f'`control = "{keys[control]}"`'] if keys[control] else []
            ours += [] if start == "zero" else ['`start = "gradient"`']
            yield Reading(
                "FedBCGD, c", named, run(control, start), ", ".join(ours) or "default", why
            )
    yield Reading(
        "FedBCGD, line 13",
        "signs of eq. 78",
        run(),
        "default",
        "g(y) - g(x) + G - c_i + c is unbiased",
    )
    yield Reading(
        "FedBCGD, line 13",
        "as printed",
        run(signs="line 13"),
        "",
        "c and c_i with reversed signs double the drift",
    )
    fast: dict[str, Any] = {"momentum": 0.5, "lr": 0.5}
    yield Reading(
        "FedBCGD, lines 23-25",
        "eq. 42 and 43, Lemma 10",
        run(**fast),
        "default",
        "momentum 0.5, lr = 0.5: x moves by v, and z by lr G/(1 - lambda)",
    )
    yield Reading(
        "FedBCGD, lines 23-25",
        "as printed",
        run(**fast, server="lines 23-25"),
        "",
        "x is the mean already when v is added: the step counts twice",
    )


# FedCOMGATE, 3 of 10 clients.


def fedcomgate(
    f: Quadratics,
    Q: Callable[[Vector], Vector] = lambda v: v,
    memory: str = "none",
    track: str = "sent",
    count: str = "|S|",
    sign: int = 1,
    lr: float = 0.3,
    rounds: int = 600,
    sampled: int = 3,
) -> list[float]:
    """Return the distances to the optimum: algorithms 2 and 4 with the memory of equation 9."""
    path = []
    rng, (m, d) = np.random.default_rng(1), f.b.shape
    x, delta, nu = np.zeros(d), np.zeros((m, d)), np.zeros((m, d))
    for _ in range(rounds):
        S = rng.permutation(m)[:sampled]
        u, sent = {}, {}
        for i in S:
            y = x.copy()
            for _ in range(TAU):
                y = y - lr * (f.g(i, y) - delta[i])
            u[i] = (x - y) / lr
            sent[i] = Q(u[i] + nu[i])
        mean = sum(sent.values()) / (sampled if count == "|S|" else m)
        for i in S:
            own = u[i] if track == "own" else sent[i]
            delta[i] = delta[i] + sign * (own - mean) / TAU
            if memory == "local":
                nu[i] = nu[i] + u[i] - sent[i]
            elif memory != "none":
                nu[i] = nu[i] + u[i] / (m if memory == "1/m" else sampled) - mean
        x = x - lr * mean
        path.append(f.away(x))
        if not path[-1] < 1e9:
            break
    return path


def fedcom_readings() -> Iterator[Reading]:
    """Yield the readings of FedCOMGATE's lines."""
    f = Quadratics(10, 30)
    run = partial(fedcomgate, f, rounds=600)
    sparse = partial(run, partial(topk, k=3))
    whys = {
        ("none", "sent"): "what was left out is in delta_i already",
        ("none", "own"): "nothing corrects for what was left out",
        ("1/m", "sent"): "exact in the end (1,800 rounds: 2e-14); the memory only slows it down",
        ("1/m", "own"): "the memory takes D off, which is not what the client has sent",
        ("1/|S|", "sent"): "exact in the end (1,800 rounds: 4e-09); slower still",
        ("1/|S|", "own"): "the same",
        ("local", "sent"): "what was left out counts twice",
        ("local", "own"): "the classical error feedback, beside tracking that knows nothing of it",
    }
    keys = {"none": "none", "1/m": "paper", "1/|S|": "paper-sampled", "local": "local"}
    for (memory, track), why in whys.items():
        named = {"none": "no memory", "local": "nu_i + u_i - sent_i"}.get(
            memory, f"eq. 9 with {memory}"
        )
        ours = f'`memory = "{keys[memory]}"`, `track = "{track}"`'
        ours = "default" if (memory, track) == ("none", "sent") else ours
        path = sparse(memory, track)
        yield Reading("FedCOM, eq. 9", f"{named}, tracks {track}", path, ours, why)
    yield Reading(
        "FedCOM, algorithm 4", "1/|S|", run(), "default", "D is the mean of what was sent"
    )
    yield Reading(
        "FedCOM, algorithm 4",
        "1/m, as printed",
        run(count="m"),
        "",
        "D is too short by |S|/m, and delta_i takes up the rest",
    )
    yield Reading(
        "FedCOM, E.4, items 4 and 7",
        "delta_i + (D_i - D)/tau, as in the algorithms",
        run(),
        "default",
        "delta_i becomes grad f_i - grad f",
    )
    yield Reading(
        "FedCOM, E.4, items 4 and 7",
        "delta_i + (D - D_i)/tau, as printed",
        run(sign=-1),
        "",
        "the correction has the sign of the drift",
    )


# Bounds: what a reading allows, and what comes of it.


def largest_lr(factor: float) -> float:
    """Return the largest lr of condition 37, tau^2 L^2 lr^2 + factor lr L tau <= 1, with server-lr = L = 1."""
    return (math.sqrt(factor**2 + 4) - factor) / (2 * TAU)


def second_moment(f: Quadratics, draws: int) -> tuple[float, float]:
    """Return E|mean_j Q(u_j)|^2 of a round without noise, and tau (1/m) sum_j sum_c |g_j|^2, which D.1 bounds it by."""
    rng, m = np.random.default_rng(2), len(f.b)
    x, y, lr = np.zeros(D), np.zeros(D), 0.05
    gradients = []
    for _ in range(TAU):
        gradients.append(f.g(0, y))
        y = y - lr * gradients[-1]
    u = (x - y) / lr
    means = (sum(qsgd(u, 1, rng) for _ in range(m)) / m for _ in range(draws))
    found = float(np.mean([np.sum(np.square(mean)) for mean in means]))
    return found, TAU * float(sum(g @ g for g in gradients))


def fedcom(f: Quadratics, lr: float, rounds: int) -> float:
    """Return the distance to the optimum of FedCOM with one-level qsgd and all clients."""
    rng, m, x = np.random.default_rng(3), len(f.b), np.zeros(D)
    for _ in range(rounds):
        y = x.copy()
        for _ in range(TAU):
            y = y - lr * f.g(0, y)  # the clients are equal
        x = x - lr * sum(qsgd((x - y) / lr, 1, rng) for _ in range(m)) / m
    return f.away(x)


def lemma_d1_readings() -> Iterator[Reading]:
    """Yield the readings of Lemma D.1: the factor of the gradients' squares, and the step size that it allows."""
    f, q = Quadratics(10, equal=True), math.sqrt(D)
    found, squares = second_moment(f, 2000)
    for name, factor, ours in (
        ("q + 1, as stated (eq. 10)", q + 1, ""),
        ("q/m + 1, as proved (eq. 16)", q / 10 + 1, "default"),
    ):
        lr = largest_lr(factor)
        why = f"the square is {found / (factor * squares):.2f} of the bound; condition 37 allows lr = {lr:.3f}"
        yield Reading("FedCOM, Lemma D.1", name, [fedcom(f, lr, 400)], ours, why)


def fedpaq(f: Quadratics, lr: float, rounds: int, tau: int, r: int) -> tuple[float, float]:
    """Return the distance to the optimum, and the mean of |grad f|^2 at x_0, x_1, ..., of FedPAQ with 4 levels."""
    rng, x, squares = np.random.default_rng(4), np.zeros(D), []
    for _ in range(rounds):
        squares.append(float(np.sum(f.slope(x) ** 2)))
        y = x.copy()
        for _ in range(tau):
            y = y - lr * f.g(0, y)
        x = x + sum(qsgd(y - x, 4, rng) for _ in range(r)) / r
    return f.away(x), float(np.mean(squares))


def fedpaq_readings() -> Iterator[Reading]:
    """Yield equation 89 against 90: how large T must be for a tau, and what the run at that T gives."""
    n, r, tau, q = 10, 5, 4, math.sqrt(D) / 4
    f = Quadratics(n, equal=True)
    B2 = q / n + 4 * (n - r) / (r * (n - 1)) * (1 + q)
    gap = 0.5 * float(f.optimum @ f.A[0] @ f.optimum)
    for name, divisor in (
        ("eq. 89: tau <= (sqrt(B_2^2 + 0.8) - B_2) sqrt(T)/4", 4),
        ("eq. 90: the same with 8", 8),
    ):
        T = (divisor * tau / (math.sqrt(B2**2 + 0.8) - B2)) ** 2
        K = math.ceil(T / tau)
        lr = 1 / math.sqrt(K * tau)
        left = 1 - lr - B2 * tau * lr - 2 * tau * (tau - 1) * lr**2
        distance, mean = fedpaq(f, lr, K, tau, r)
        bound = 2 * gap / math.sqrt(K * tau)
        why = f"T = {K * tau:,}: condition 81 leaves {left:.2f} >= 0, and the mean of |grad f|^2 is {mean / bound:.2f} of its bound"
        yield Reading("FedPAQ, section 8.1", name, [distance], "neither: eq. 81", why)


def readings() -> list[Reading]:
    """Run every reading."""
    with np.errstate(over="ignore", invalid="ignore"):
        return [
            *fedbcgd_readings(),
            *fedcom_readings(),
            *lemma_d1_readings(),
            *fedpaq_readings(),
        ]


def in_words(distance: float) -> str:
    """Write a distance."""
    return f"{distance:.0e}" if distance < DIVERGED else ""


def table(rows: list[Reading]) -> Iterator[str]:
    """Yield the table in Markdown."""
    yield "| line | reading | distance | | in the code | why |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        cells = (row.line, row.reading, in_words(row.distance), row.verdict, row.ours, row.why)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Run everything and print the table."""
    for line in table(readings()):
        print(line)


if __name__ == "__main__":
    main()
