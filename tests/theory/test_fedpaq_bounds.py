"""FedPAQ's right sides and conditions at round numbers, by hand from the supplement, and what is compared with them."""

from dataclasses import replace
from math import e, inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedapp.config import RunConfig
from fedapp.parsing import parse_run_config
from fedapp.report.runs import Run
from fedapp.tables import Value
from fedapp.theory import fedpaq, hypotheses
from fedapp.theory.fits import Values
from fedapp.theory.hypotheses import Condition, Setting
from fedapp.theory.outcome import Finding
from fedapp.theory.played import Visit, quadratic_of
from fedapp.theory.within import fedpaq as lemmas
from fedapp.theory.within.trails import Trail

# n = 5, r = 2: (n - r)/(r (n - 1)) = 3/8, and (1 - r/n)/(r (n - 1)) = 3/40.
S = Setting(
    L=2, mu=0.5, own_mu=0.5, sigma2=10, rho2=0, q=3, n=5, r=2, tau=3, eta=0.1, rounds=10_000
)  # fmt: skip
BEFORE = np.array([1.0, 2.0])


def test_the_right_sides_of_the_lemmas_by_hand() -> None:
    # eq. 20: (1 + 5/100) 0.95^3, then 3 * 4 * 4 * 2 e/100, 9 * 2/100, 9 * 2 * 4 * 10 e/10^4
    noise = 0.96 * e + 0.18 + 0.072 * e
    assert lemmas.lemma_2(S, BEFORE) == pytest.approx(1.05 * 0.857375 * BEFORE + noise)
    # eq. 57, halved: 9 * 4/100, 9 * 10/100, 2 * 9 * 4 * 10 e/10^4
    moved = 0.36 * BEFORE + 0.9 + 0.072 * e
    assert lemmas.lemma_3(S, BEFORE) == pytest.approx(6 / 5 * moved)  # eq. 21: 2 q/n
    assert lemmas.lemma_4(S, BEFORE) == pytest.approx(3 / 8 * 32 * moved)  # eq. 22: 8 (1 + q)
    assert lemmas.lemma_6(S, BEFORE) == pytest.approx(BEFORE)  # eq. 76: L/2
    # eq. 77: 1/100 * 1 * 2 * 3, and 1/1000 * 2 * 6 * 3 * 4
    assert lemmas._noise_7(S, BEFORE) == pytest.approx([0.204, 0.204])
    # eq. 78: 3 * 2 * 3/100, and 3/25 * 3/100
    assert lemmas.lemma_8(S, BEFORE) == pytest.approx(0.18 + 0.0036 * BEFORE)
    # eq. 79: 3/40 * 16 * 3/100 of 50 and the gradients
    assert lemmas.lemma_9(S, BEFORE) == pytest.approx(0.036 * (50 + BEFORE))


def test_lemma_8_fails_for_a_concave_f_and_holds_with_twice_its_right_side() -> None:
    """f = -x^2/2 and +x^2/2 from 0: x_1 = -0.1 N_0, and x_2 = 1.1 x_1 - 0.1 N_1 or 0.9 x_1 - 0.1 N_1."""
    s = replace(S, L=1, sigma2=1, n=1, r=1, tau=2)
    concave, convex = (s.q * 0.01 * (factor**2 + 1) for factor in (1.1, 0.9))
    (bound,) = lemmas.lemma_8(s, np.array([0.01]))  # |grad f(x_0)|^2 = 0, E|grad f(x_1)|^2 = 0.01
    assert bound == pytest.approx(s.q * 0.0202)
    assert convex < bound < concave < 2 * bound


def test_the_descent_of_lemma_7_by_hand() -> None:
    trail = {name: np.array([value]) for name, value in zip(
        ("f_average", "f_before", "at_averages", "gradients"), (7.0, 5.0, 8.0, 100.0), strict=True
    )}  # fmt: skip
    # 0.1/2 of the gradients at averages, and 0.1 (1/10 - 0.2/10 - 4 * 6/500) of the others
    assert lemmas._descent(S, trail) == pytest.approx(2 + 0.4 + 0.1 * 0.032 * 100)


def test_the_bounds_of_the_theorems_by_hand() -> None:
    k = np.array([1.0, 3.0])
    # 16 sigma^2/(mu^2 n) = 128; C_1 = 128 (1 + 6 + 32 * 15/8), C_2 = 128 * 4 e; k tau + 1 = 4, 10
    bound = np.array([50, 50 * 0.16]) + (128 * 67 * 3 + 512 * e * 4) / np.array([4, 10])
    assert fedpaq.equation_28(S, k, 50.0) == pytest.approx(bound)
    # K = 50, so T = 150: 14/(eta T), 0.1 * 2 * 4 * (2 + 4 * 10 * 3/8), 0.01 * 2 * 6 * 2 * 4
    found = fedpaq.equation_84(replace(S, rounds=50), 7.0)
    assert found == pytest.approx(14 / 15 + 13.6 + 0.96)


def holding(conditions: list[Condition]) -> list[bool]:
    return [condition.holds for condition in conditions]


def test_the_conditions_by_hand() -> None:
    step, start, *_ = hypotheses.fedpaq_1(replace(S, eta=8.0, inverse=True))
    assert (step.value, step.limit) == (0, 1e-6)
    # eq. 64: B_1 = 8 (3/5 + 3/8 * 16) = 52.8, and 16 (52.8 * 4 + 1)
    assert start.limit == 10_000
    assert start.value == pytest.approx(3395.2)
    exact = replace(S, q=0, r=5)  # B_1 = 0; the last one, 16 * 5/(0.25 * 3), is the largest
    assert hypotheses.fedpaq_start(exact) == pytest.approx(320 / 3)
    assert hypotheses.fedpaq_start(replace(exact, n=1, r=1, tau=100)) == pytest.approx(16)
    assert hypotheses.fedpaq_start(replace(exact, L=100)) == pytest.approx(800)
    # eq. 81: 0.2 (1 + (0.6 + 6) 3) and 2 * 4 * 6/100
    assert hypotheses.fedpaq_2(S)[0].value == pytest.approx(0.2 * 20.8 + 0.48)
    curvature, steps, *_ = hypotheses.fedpaq_lemmas(S)
    assert (curvature.value, steps.value) == pytest.approx((0.8, 0.6))


ADMISSIBLE = {
    hypotheses.fedpaq_1: replace(S, eta=8.0, inverse=True),
    hypotheses.fedpaq_2: replace(S, eta=0.01),
    hypotheses.fedpaq_lemmas: S,
}
UNLIKE: dict[str, Any] = {"rho2": 0.1}
SERVER: dict[str, Any] = {"gamma": 0.9}
BIASED: dict[str, Any] = {"q": inf}


@pytest.mark.parametrize("conditions", ADMISSIBLE, ids=lambda conditions: conditions.__name__)
@pytest.mark.parametrize("change", [UNLIKE, SERVER, SERVER | {"gamma": 1.1}, BIASED], ids=str)
def test_every_condition_can_fail(conditions: Any, change: dict[str, Any]) -> None:
    admissible = ADMISSIBLE[conditions]
    assert all(holding(conditions(admissible)))
    assert not all(holding(conditions(replace(admissible, **change))))


@pytest.mark.parametrize(
    ("conditions", "change", "failing"),
    [
        (hypotheses.fedpaq_1, {"eta": 8.1}, [0]),
        (hypotheses.fedpaq_1, {"inverse": False}, [0]),
        (hypotheses.fedpaq_1, {"rounds": 3395}, [1]),
        (hypotheses.fedpaq_1, {"mu": 0.0, "own_mu": 0.0}, [0, 1, 3]),
        (hypotheses.fedpaq_2, {"eta": 0.1}, [0]),
        (hypotheses.fedpaq_lemmas, {"eta": 0.13}, [0]),
        (hypotheses.fedpaq_lemmas, {"tau": 6}, [1]),
    ],
)
def test_a_condition_fails_where_it_should(
    conditions: Any, change: dict[str, Any], failing: list[int]
) -> None:
    held = holding(conditions(replace(ADMISSIBLE[conditions], **change)))
    assert [place for place, holds in enumerate(held) if not holds] == failing


KEYS: dict[str, Value] = {
    "algorithm": "fedpaq",
    "dataset": "quadratic",
    "dtype": "float64",
    "num-clients": 5,
    "clients-per-round": 2,
    "local-steps": 3,
    "lr": 0.1,
    "quadratic.dim": 2,
    "quadratic.hessians": "shared",
    "quadratic.heterogeneity": 0.0,
}


TERMS = (
    "before", "after", "average", "quantized", "missed", "sampled", "f_before", "f_average",
    "f_after", "gradients", "at_averages",
)  # fmt: skip


def test_the_terms_of_a_round_by_hand() -> None:
    config = parse_run_config(KEYS)
    problem = quadratic_of(config)
    best, hessian = problem.optimum, problem.A[0].numpy()

    def at(*offset: float) -> Values:
        away: Values = best + np.array(offset)
        return away

    def client(point: list[float], plain: list[float], sent: list[float]) -> Visit:
        return Visit([at(*point)], [], [np.array(plain)], [np.array(sent)])

    # Sent are (1, 3) and (5, 1): their mean is (3, 2), their variance 8 + 2.
    played: Any = SimpleNamespace(
        before=at(1, 0),
        after=at(4, 2.5),
        visits={0: client([2, 0], [1, 1], [1, 3]), 3: client([0, 2], [3, 1], [5, 1])},
    )

    def square(vector: list[float]) -> float:
        return float(((np.array(vector) @ hessian) ** 2).sum())

    terms = lemmas.terms(config)(played)
    assert set(terms) == set(TERMS)
    assert terms == pytest.approx({
        "before": 1, "after": 22.25, "average": 10, "quantized": 2, "missed": 0.5,
        "sampled": (1 / 2 - 1 / 5) * 10,
        "f_before": problem.value(at(1, 0)),
        "f_average": problem.value(at(3, 1)),
        "f_after": problem.value(at(4, 2.5)),
        "gradients": 5 / 2 * (square([2, 0]) + square([0, 2])),
        "at_averages": square([1, 1]),
    })  # fmt: skip


# What is measured in one round, beside zeros: of which cohort, what is given, and where the line's border is.
FLAT = {"before": 1.0, "average": 1.0, "quantized": 1e-3, "gradients": 100.0, "at_averages": 8.0}
BORDERS: dict[str, tuple[str, dict[str, float], str, float]] = {
    "lemma 1,": ("all", {"quantized": 1, "average": 2}, "after", 3.3),
    "lemma 2,": ("all", {}, "average", 1.05 * 0.857375 + 1.032 * e + 0.18),
    "lemma 3,": ("all", {}, "quantized", 6 / 5 * (1.26 + 0.072 * e)),
    "lemma 4,": ("some", {}, "sampled", 12 * (1.26 + 0.072 * e)),
    "lemma 6,": ("all", {"quantized": 0.3, "f_average": 2}, "f_after", 2 + 1.1 * 0.3),
    "lemma 7,": ("all", {"f_before": 0.4 + 0.32}, "f_average", 0.204),
    "lemma 8,": ("all", {}, "quantized", 0.18 + 0.36),
    "lemma 9,": ("some", {}, "sampled", 0.036 * 150),
    "2 of 5 clients": ("some", {}, "missed", 1e-12),
}


@pytest.mark.parametrize("claim", BORDERS)
def test_every_line_is_yes_up_to_its_border_and_no_beyond(
    claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort, given, name, border = BORDERS[claim]

    def held(share: float) -> bool:
        def trail(group: list[RunConfig], _: object) -> Trail:
            values = dict.fromkeys(TERMS, 0.0) | FLAT
            if group[0].run_name.endswith(cohort):
                values |= given | {name: share * border}
            return {term: np.array([value]) for term, value in values.items()}

        monkeypatch.setattr(lemmas, "mean_trail", trail)
        findings = lemmas.fedpaq_lemmas_check(configs).findings
        (finding,) = [one for one in findings if one.claim.startswith(claim)]
        return finding.holds

    def setting(config: RunConfig) -> Setting:
        return replace(S, r=config.clients_per_round)

    monkeypatch.setattr(lemmas, "exact_setting", setting)
    configs = [
        parse_run_config(KEYS | {"clients-per-round": r, "run-name": f"fedpaq-lemmas-{which}"})
        for which, r in (("all", 5), ("some", 2))
    ]
    assert held(0.999)
    assert not held(1.001)


# The lines of the theorems, from runs whose figures are made up.


def run_of(name: str, **figures: Values) -> Run:
    """Return a run with three local steps that has these figures in its rounds."""
    count = len(next(iter(figures.values())))
    records = [{"round": k + 1} | {n: v[k] for n, v in figures.items()} for k in range(count)]
    keys = {"num-rounds": count, "num-clients": 5, "clients-per-round": 2, "local-steps": 3}
    return Run(name, keys, records)


# No noise of quantizers or clients, 100 local steps: k_0 = 16.
ALONE = replace(S, q=0, n=1, r=1, tau=100, eta=8.0, inverse=True)
K = np.arange(1.0, 401)
POINTS = {"no-quantizer": 1.0, "s-8": 1.1, "s-2": 1.2, "r-4": 1.2, "r-2": 1.3}


def findings_1(
    patch: pytest.MonkeyPatch, squares: Values, points: dict[str, float] = POINTS
) -> list[Finding]:
    """Return theorem 1's lines if these are the means of |x - x*|^2, times a factor at each point."""
    patch.setattr(fedpaq, "setting_of", lambda run: ALONE)
    runs = [
        run_of(f"fedpaq-1-{name}-seed-{seed}", distance=(share * factor * squares) ** 0.5)
        for name, factor in points.items()
        for seed, share in enumerate((0.5, 1.5))
    ]
    return fedpaq.fedpaq_1(runs).findings


@pytest.mark.parametrize(
    ("exponent", "holds"),
    [(-1.31, False), (-1.29, True), (-1.0, True), (-0.71, True), (-0.69, False)],
)
def test_theorem_1_asks_for_the_exponent_from_k_0_on(
    exponent: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    squares = np.where(K >= 16, K**exponent, 1e9)
    rate, *_, hypotheses_hold = findings_1(monkeypatch, squares)
    assert (rate.holds, rate.observed) == (holds, f"{exponent:.2f}")
    assert hypotheses_hold.holds
    everywhere, *_ = findings_1(monkeypatch, np.where(K >= 17, K**-1.0, 1e30))
    assert not everywhere.holds, "round k_0 counts"


@pytest.mark.parametrize(("share", "holds"), [(0.999, True), (1.001, False)])
def test_theorem_1_compares_every_round_from_k_0_on_with_equation_28(
    share: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    squares = np.where(K >= 16, 50.0, 1e12)
    # Of a sigma^2 of 10 and one client: C_1 = 640, C_2 = 2560 e; k tau + 1 is 1601, and then 30,001.
    bound = 50 * (1601 / 30_001) ** 2 + (640 * 100 + 2560 * e * 99**2) / 30_001
    squares[299] = share * bound
    points = dict.fromkeys(POINTS, 0.5) | {"s-8": 1.0}  # only one comes near it
    _, below, *_ = findings_1(monkeypatch, squares, points)
    assert below.holds == holds


@pytest.mark.parametrize("name", POINTS)
def test_theorem_1_orders_quantizers_and_cohorts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings_1(monkeypatch, 1 / K)[2].holds
    out_of_order = POINTS | {name: 2.0 if name in ("no-quantizer", "s-8") else 1.05}
    assert not findings_1(monkeypatch, 1 / K, out_of_order)[2].holds


def findings_2(
    patch: pytest.MonkeyPatch, means: dict[int, float], last: float = 0.9
) -> list[Finding]:
    """Return theorem 2's lines for means of |grad f|^2 over x_0, ..., x_{K-1}; f ends at `last`, from 1."""
    start = {"squared_gradient": 3.0, "test_loss": 1.0}

    def starting_point(run: Run) -> dict[str, float]:
        return start | ({"gap": 7.0} if "-quadratic-" in run.name else {})

    patch.setattr(fedpaq, "starting_point", starting_point)
    patch.setattr(
        fedpaq, "setting_of", lambda run: replace(S, eta=0.01, rounds=run.config["num-rounds"])
    )
    runs = []
    for rounds, mean in means.items():
        squares = np.full(rounds, (rounds * mean - 3) / (rounds - 1))
        squares[-1] = 1e9  # x_K does not count
        losses = np.full(rounds, last)
        for problem in ("quadratic", "sigmoid"):
            name = f"fedpaq-2-{problem}-num-rounds-{rounds}"
            runs.append(run_of(name, squared_gradient=squares, test_loss=losses))
    return fedpaq.fedpaq_2(runs).findings


@pytest.mark.parametrize(
    ("exponent", "last", "holds"),
    [(-0.41, 0.9, True), (-0.39, 0.9, False), (-0.5, 1.1, False), (-1.0, 0.9, True)],
)
def test_theorem_2_asks_for_the_exponent_and_that_f_falls(
    exponent: float, last: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    means = {rounds: 200 * rounds**exponent for rounds in (10, 20, 40)}
    quadratic, _, hypotheses_hold, sigmoid = findings_2(monkeypatch, means, last)
    assert hypotheses_hold.holds
    for finding in (quadratic, sigmoid):
        assert finding.holds == holds
        assert finding.observed.startswith(f"{exponent:.2f}")


@pytest.mark.parametrize(("share", "holds"), [(0.999, True), (1.001, False)])
def test_theorem_2_compares_the_mean_of_every_run_with_equation_84(
    share: float, holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 14/(0.01 * 3 K), 0.01 * 2 * 4 * 17, 0.0001 * 2 * 6 * 2 * 4
    means = {rounds: 14 / (0.03 * rounds) + 1.36 + 0.0096 for rounds in (10, 20, 40)}
    means[20] *= share
    means[10], means[40] = 0.5 * means[10], 0.5 * means[40]
    _, below, *_ = findings_2(monkeypatch, means)
    assert below.holds == holds
