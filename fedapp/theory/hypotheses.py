"""What the papers' theorems assume, as inequalities that a run satisfies or not, and by how much.

Symbols are those of the papers: n clients (m in FedCOM, N in GradMA, M in FedBCGD), r of them in a round, tau local steps
(I in GradMA, T in FedBCGD), eta the local and gamma the server's step size.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

LARGEST_TAU = 10**6
ABOVE = 1 + 1e-12  # by how much a condition fails at least
EVERYBODY = "all clients in every round: n/r <= 1"


@dataclass(frozen=True)
class Setting:
    """A run as a theorem sees it: the constants of its problem, and its own numbers."""

    L: float  # every f_i is L-smooth
    mu: float  # f satisfies the PL condition with mu; 0 or less: it does not
    sigma2: float  # variance of a mini-batch gradient
    rho2: float  # heterogeneity: mean |grad f_i - grad f|^2 is at most this
    q: float  # E|Q(v) - v|^2 <= q |v|^2; infinite for a biased compressor
    n: int
    r: int
    tau: int
    eta: float
    gamma: float = 1.0
    rounds: int = 1
    beta1: float = 0.0  # server momentum: GradMA's beta_1, FedBCGD's lambda
    c: float = 0.0  # gain of FedCET's exchange; 0: nine tenths of its bound
    blocks: int = 1
    constant: bool = True  # whether all rounds have the same step size
    # whether the step size falls as 1/(k tau + 1), as in FedPAQ's theorem 1
    inverse: bool = False
    own_mu: float = (
        -inf
    )  # every f_i is strongly convex with it; 0: convex; less: not convex, or not known to be
    averaged: bool = True  # whether FedBCGD+'s c is the mean of all c_i

    @property
    def xi(self) -> float:
        """Xi = c alpha of FedCET."""
        return self.c * self.eta or 1.8 / (self.tau + 3)

    @property
    def per_block(self) -> float:
        """K of FedBCGD: the clients that upload a block."""
        return self.r / self.blocks

    @property
    def effective_1(self) -> float:
        """Eta~ = alpha eta T/4 of FedBCGD's theorem 1, alpha = 1/(1 - lambda)."""
        return self.effective_2 / 4

    @property
    def effective_2(self) -> float:
        """Eta~ = alpha eta T of the proof of FedBCGD's theorem 2, whose statement divides it by 4."""
        return self.eta * self.tau / (1 - self.beta1)


@dataclass(frozen=True)
class Condition:
    """An inequality: value <= limit."""

    text: str
    value: float
    limit: float = 1.0

    @property
    def holds(self) -> bool:
        """Return whether it does."""
        return bool(self.value <= self.limit)

    @property
    def factor(self) -> float:
        """How many times too large the value is, if it is."""
        return self.value / self.limit if self.limit > 0 else (inf if self.value > 0 else 0.0)


Conditions = list[Condition]


def alike(s: Setting) -> Condition:
    """Return that all clients have the same f."""
    return Condition("clients alike: mean |grad f_i - grad f|^2 = 0", s.rho2, 0.0)


def everybody(s: Setting) -> Condition:
    """Return that all clients are in every round."""
    return Condition(EVERYBODY, s.n / s.r)


def curved(s: Setting) -> Condition:
    """Return that the PL condition holds."""
    return Condition("mu > 0 (PL or strongly convex): -mu < 0", 1.0 if s.mu <= 0 else 0.0, 0.0)


def convex(s: Setting) -> Condition:
    """Return that every f_i is convex."""
    return Condition("every f_i is convex", 0.0 if s.own_mu >= 0 else 1.0, 0.0)


def strongly_convex(s: Setting) -> Condition:
    """Return that every f_i is strongly convex; the PL condition is not enough."""
    return Condition("every f_i is strongly convex", 0.0 if s.own_mu > 0 else 1.0, 0.0)


def bounded(s: Setting) -> Condition:
    """Return that heterogeneity is bounded."""
    text = "bounded heterogeneity: mean |grad f_i - grad f|^2 < infinity"
    return Condition(text, 0.0 if s.rho2 < inf else 1.0, 0.0)


def unbiased(s: Setting) -> Condition:
    """Return that the compressor is unbiased, with a finite q."""
    return Condition("Q unbiased, q finite", 0.0 if s.q < inf else 1.0, 0.0)


def uncompressed(s: Setting) -> Condition:
    """Return that nothing is compressed."""
    return Condition("no compression: q = 0", s.q, 0.0)


def no_server_step(s: Setting) -> Condition:
    """Return that the server takes the mean as it is."""
    return Condition("server-lr = 1: max(gamma, 1/gamma) <= 1", max(s.gamma, 1 / s.gamma))


def exact_gradients(s: Setting) -> Condition:
    """Return that gradients have no noise."""
    return Condition("full gradients: sigma^2 = 0", s.sigma2, 0.0)


def constant(s: Setting) -> Condition:
    """Return that all rounds have the same step size."""
    text = "the same lr in every round (lr-schedule, warmup-rounds)"
    return Condition(text, 0.0 if s.constant else 1.0, 0.0)


def fedcom(s: Setting) -> Conditions:
    """Equations 21, 37 and 44."""
    step = s.tau * s.L * s.eta
    value = step**2 + (s.q / s.n + 1) * s.gamma * step
    return [
        Condition("eq. 21: tau^2 L^2 eta^2 + (q/m + 1) eta gamma L tau <= 1", value),
        alike(s),
        everybody(s),
        unbiased(s),
        constant(s),
    ]


def fedcom_pl(s: Setting) -> Conditions:
    """Theorem D.7."""
    return [*fedcom(s), curved(s)]


def _gate_step(s: Setting) -> Condition:
    return Condition("30 eta^2 L^2 tau^2 <= 1", 30 * (s.eta * s.L * s.tau) ** 2)


def fedcomgate(s: Setting) -> Conditions:
    """Equation 61."""
    server = s.eta * s.gamma
    value = 10 * s.eta**2 * server**2 * (s.q + 1) * s.L**4 * s.tau**4
    value += s.L * server * s.tau * (s.q + 1)
    text = "eq. 61: 10 eta^2 (eta gamma)^2 (q+1) L^4 tau^4 + (q+1) L eta gamma tau <= 1"
    return [Condition(text, value), _gate_step(s), everybody(s), unbiased(s), constant(s)]


def fedcomgate_pl(s: Setting) -> Conditions:
    """Equation 78."""
    server = s.eta * s.gamma
    below = 1 - s.mu * s.tau * server + 20 * s.mu * server * s.eta**2 * s.L**2 * s.tau**3
    value = inf
    if below > 0:
        value = 10 * (s.q + 1) * s.eta**2 * s.tau**4 * s.L**4 * server**2 / below
        value += (s.q + 1) * s.L * server * s.tau
    text = "eq. 78: (q+1) L eta gamma tau + 10 (q+1) eta^2 tau^4 L^4 (eta gamma)^2 / Delta <= 1"
    return [
        Condition(text, value),
        _gate_step(s),
        curved(s),
        everybody(s),
        unbiased(s),
        constant(s),
    ]


def fedpaq_1(s: Setting) -> Conditions:
    """Equation 64: from round k_0 on."""
    conditions = [alike(s), strongly_convex(s), no_server_step(s), unbiased(s)]
    start = fedpaq_start(s) if s.mu > 0 and s.q < inf else inf
    exact = abs(s.eta * s.mu / 4 - 1) if s.inverse else inf
    return [
        Condition('lr = 4/mu with lr-schedule = "inverse": |lr mu/4 - 1| <= 1e-6', exact, 1e-6),
        Condition("eq. 64: k_0 <= rounds", start, float(s.rounds)),
        *conditions,
    ]


def fedpaq_start(s: Setting) -> float:
    """Return k_0 of equation 64."""
    share = sampling(s)
    b1 = 2 * s.L**2 * (s.q / s.n + share * 4 * (1 + s.q))
    return 4 * max(
        s.L / s.mu, 4 * (b1 / s.mu**2 + 1), 1 / s.tau, 4 * s.n / (s.mu**2 * s.tau)
    )  # fmt: skip


def sampling(s: Setting) -> float:
    """Return (n - r)/(r (n - 1)): 0 if everybody is in every round."""
    return (s.n - s.r) / (s.r * (s.n - 1)) if s.n > s.r else 0.0


def fedpaq_2(s: Setting) -> Conditions:
    """Equation 81, for a constant step size."""
    share = s.q / s.n + 4 * sampling(s) * (1 + s.q)
    value = s.L * s.eta * (1 + share * s.tau) + 2 * s.L**2 * s.tau * (s.tau - 1) * s.eta**2
    text = "eq. 81: L eta (1 + (q/n + 4 (n-r)/(r(n-1)) (1+q)) tau) + 2 L^2 tau (tau-1) eta^2 <= 1"
    return [Condition(text, value), alike(s), no_server_step(s), unbiased(s), constant(s)]


def fedpaq_lemmas(s: Setting) -> Conditions:
    """Lemmas 1 to 9: what the strictest of them assume."""
    return [
        Condition("eta L^2/mu <= 1", s.eta * s.L**2 / s.mu if s.mu > 0 else inf),
        Condition("eta L tau <= 1", s.eta * s.L * s.tau),
        alike(s),
        strongly_convex(s),
        no_server_step(s),
        unbiased(s),
    ]


@dataclass(frozen=True)
class CetConstants:
    """A_1, A_3, B_1/A_2^2 and B_2 of FedCET's lemma 3."""

    A1: float
    A3: float
    B1: float
    B2: float

    @property
    def A4(self) -> float:  # noqa: N802 - the paper's symbol
        """The larger of A_1 and A_3."""
        return max(self.A1, self.A3)


def fedcet_constants(tau: int, xi: float) -> CetConstants:
    """Return the constants of lemma 3 for tau and xi = c alpha."""
    rho = 1 - xi
    root = sqrt(rho)
    below = sqrt(4 * rho - (rho * (tau + 1) + 1 - tau) ** 2)
    A1 = 2 * tau / below
    A3 = max(
        (2 * root + 2) / below, 2 * root / below * (1 + abs(tau * root - (tau - 1) / root))
    )  # fmt: skip
    A4 = max(A1, A3)
    sums = tau * (tau + 1) * (2 * tau + 1)
    B2 = 3 * tau**4 + tau * sums * (rho * tau + tau - 1) ** 2 * A4**2 / (2 * (1 - root) ** 2)
    return CetConstants(A1, A3, sums * A4**2 / (2 * (1 - rho)), B2)


def _fedcet(s: Setting, times: int) -> Conditions:
    gain = Condition("c < 2/((tau+3) alpha): xi (tau+3)/2 < 1", s.xi * (s.tau + 3) / 2, 1 - 1e-9)
    value = inf
    if gain.holds and s.xi > 1e-12:  # below, 1 - xi is 1 in float64, and B_2 beyond all bounds
        value = s.eta * s.L * sqrt(times * fedcet_constants(s.tau, s.xi).B2)
    return [
        Condition(f"alpha L sqrt({times} B_2) <= 1", value),
        gain,
        everybody(s),
        uncompressed(s),
        constant(s),
    ]


def fedcet_1(s: Setting) -> Conditions:
    """Equation 32."""
    return [*_fedcet(s, 5), exact_gradients(s)]


def fedcet_2(s: Setting) -> Conditions:
    """Equation 44."""
    return _fedcet(s, 13)


def gradma(s: Setting) -> Conditions:
    """Lemma .6."""
    step, server = s.tau * s.eta * s.L, s.gamma * s.eta
    left = (1 - s.beta1) ** 2
    share = sampling(s)
    others = s.beta1 * s.r * (s.n - 1) + 4 * s.n * (s.r - 1)
    second = server * s.tau * s.L * others / (left * s.r * (s.n - 1)) if s.n > 1 else inf
    third = 320 * step**2 + 64 * s.tau * server * s.L * (1 + 40 * step**2) / left * share
    return [
        Condition("4 sqrt(10) L I eta_l <= 1", 4 * sqrt(10) * step),
        Condition(
            "eta_g eta_l I L (beta_1 S(N-1) + 4N(S-1))/((1-beta_1)^2 S(N-1)) <= 1",
            second,
        ),
        Condition(
            "320 I^2 eta_l^2 L^2 + 64 I eta_g eta_l L (1+40 I^2 eta_l^2 L^2)/(1-beta_1)^2 (N-S)/(S(N-1)) <= 1",
            third,
        ),
        bounded(s),
        exact_gradients(s),
        uncompressed(s),
        constant(s),
    ]


def _even_groups(s: Setting) -> Condition:
    """Return that every block has the same K >= 1."""
    text = "clients-per-round a multiple of the blocks"
    return Condition(text, float(s.r % s.blocks), 0.0)


def _no_momentum(s: Setting) -> Condition:
    """Return that z = x.

    Both proofs bound |y - z| by lemmas 5 and 13, whose local steps start at z; clients start at x. With momentum the bounds
    can fail: `fedapp theory fedbcgd-51`.
    """
    return Condition("z = x, as in both proofs: fedbcgd.momentum = 0", s.beta1, 0.0)


def fedbcgd(s: Setting) -> Conditions:
    """Theorem 1, convex (strongly or not), as its proof needs it: equations 34 and 51."""
    beta, T, K = s.L, s.tau, s.per_block
    alpha_eta = s.eta / (1 - s.beta1)
    drift = 2 * T * (T - 1) * (s.eta * beta) ** 2
    lost = 12 * T**2 * alpha_eta * beta * (s.eta * beta + 4 * T * (beta * s.eta) ** 2)
    lost += 4 * T * alpha_eta * beta * (1 + (1 - K / s.n) / K)
    return [
        Condition("eta~ = alpha eta T/4 <= 1/(8 beta)", s.effective_1 * 8 * beta),
        Condition("eq. 34: 2 T (T-1) eta^2 beta^2 <= 1", drift),
        Condition("eq. 51: what the bracket loses is at most 3/4 of alpha eta T", lost, 0.75),
        _no_momentum(s),
        convex(s),
        bounded(s),
        _even_groups(s),
        uncompressed(s),
        constant(s),
    ]


def fedbcgd_plus(s: Setting) -> Conditions:
    """Theorem 2, strongly convex: lemma 15, with the eta~ of its proof.

    Equation 101 prints 54 eta~; the term comes from equation 96, which has 54 beta eta~.
    """
    eta = s.effective_2
    lag = max(s.own_mu, 0.0) * s.n / s.per_block
    return [
        Condition("eta~ = alpha eta T <= 1/(81 beta)", eta * 81 * s.L),
        Condition("eta~ <= K/(15 mu M)", eta * 15 * lag),
        Condition(
            "eq. 101: 9 mu eta~ M/(2K) + 54 beta eta~ <= 1", 4.5 * lag * eta + 54 * s.L * eta
        ),
        _no_momentum(s),
        strongly_convex(s),
        Condition("eq. 72: c = mean c_i (fedbcgd.control)", 0.0 if s.averaged else 1.0, 0.0),
        _even_groups(s),
        uncompressed(s),
        constant(s),
    ]


@dataclass(frozen=True)
class Hypotheses:
    """A theorem by its name, and what it assumes."""

    name: str
    algorithms: tuple[str, ...]
    conditions: Callable[[Setting], Conditions]
    concludes: str

    def hold(self, setting: Setting) -> bool:
        """Return whether all of it holds."""
        return all(condition.holds for condition in self.conditions(setting))


# One rule: the mean of Q(y_i - x), of Q((x - y_i)/lr), or of what any compressor makes of x - y_i, times server-lr.
PLAIN = ("fedpaq", "qsgd", "fedcom", "fedavg")
HYPOTHESES = (
    Hypotheses("FedPAQ, theorem 1", PLAIN, fedpaq_1, "|x - x*|^2 = O(tau/T)"),
    Hypotheses("FedPAQ, theorem 2", PLAIN, fedpaq_2, "mean |grad f|^2 below eq. 84"),
    Hypotheses("FedCOM, theorem D.4", PLAIN, fedcom, "mean |grad f|^2 below eq. 22"),
    Hypotheses("FedCOM, theorem D.7", PLAIN, fedcom_pl, "f - f* linear to a floor, eq. 38"),
    Hypotheses("FedCOMGATE, theorem E.4", ("fedcomgate", "fedgate"), fedcomgate, "mean |grad f|^2 below eq. 62, if G_q is finite"),
    Hypotheses("FedCOMGATE, theorem E.6", ("fedcomgate", "fedgate"), fedcomgate_pl, "f - f* linear to a floor, eq. 79, if G_q is finite"),
    Hypotheses("FedCET, theorem 1", ("fedcet",), fedcet_1, "mean |grad f|^2 below eq. 32"),
    Hypotheses("FedCET, theorem 2", ("fedcet",), fedcet_2, "mean |grad f|^2 below eq. 44"),
    Hypotheses("GradMA, lemma .6", ("gradma", "gradma-s", "gradma-w"), gradma, "mean |grad f|^2 below a constant, if eps_l and eps_g are finite"),
    Hypotheses("FedBCGD, theorem 1, convex", ("fedbcgd",), fedbcgd, "f(z) - f* below eq. 51, summed"),
    Hypotheses("FedBCGD, theorem 2, strongly convex", ("fedbcgd-plus",), fedbcgd_plus, "|z - x*|^2 falls by 1 - mu eta~/2 a round"),
)  # fmt: skip


NAMES = {"lr": "eta", "server-lr": "gamma", "tau": "tau", "fedcet.c": "c"}


def largest(hypotheses: Hypotheses, setting: Setting, key: str) -> float | None:
    """Return the largest lr, server-lr, tau or c that meets the conditions on step sizes, to four digits.

    The others stay as they are. None: none is admissible. Infinite: there is no upper limit. A larger value can repair
    what a smaller one violates (k_0 falls with tau; FedCET's alpha L sqrt(B_2) falls and grows with lr if c is given), so
    all orders of magnitude are tried; if nothing fits, finer around the value that is closest to it.
    """
    name, whole = NAMES[key], key == "tau"

    def excess(value: float) -> float:
        changed: dict[str, Any] = {name: value}
        several = hypotheses.conditions(replace(setting, **changed))
        steps = [c for c in several if c.limit > 0 and c.text != EVERYBODY]
        return max((0.0 if c.holds else max(ABOVE, c.factor) for c in steps), default=0.0)

    tried = _tried(setting, key)
    found = [excess(value) for value in tried]
    while min(found) > 1 and not whole and tried[-1] / tried[0] > 1.0001:
        best = found.index(min(found))
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
        tried = [low * (high / low) ** (i / 16) for i in range(17)]
        found = [excess(value) for value in tried]
    if min(found) > 1:
        return None
    last = max(place for place, value in enumerate(found) if value <= 1)
    if last == len(tried) - 1:
        return inf
    low, high = tried[last], tried[last + 1]
    while high - low > 1 if whole else high / low > 1.0001:
        middle = (low + high) // 2 if whole else sqrt(low * high)
        low, high = (middle, high) if excess(middle) <= 1 else (low, middle)
    return low


def _tried(s: Setting, key: str) -> list[float]:
    """Return values of all orders of magnitude, the run's own, and what equalities ask for: lr = 4/mu, server-lr = 1."""
    if key == "tau":
        return sorted({s.tau, *(round(LARGEST_TAU ** (i / 48)) for i in range(49))})
    values = {10 ** (i / 4) for i in range(-48, 49)}
    own = s.xi / s.eta if key == "fedcet.c" else getattr(s, NAMES[key])
    exact = {"lr": 4 / s.mu if s.mu > 0 else s.eta, "server-lr": 1.0}
    return sorted(values | {own, exact.get(key, own)})
