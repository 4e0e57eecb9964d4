"""The theorems' checks: the algorithms pass them, and a wrong implementation does not.

The presets are cut down to what a test has time for; `fedapp theory` runs them whole.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clients.fedcet
import strategies.fedcet
from clients.averaging import FedAvgClient
from clients.fedcet import FedCETClient
from clients.fedcomgate import TrackingClient
from clients.feddyn import FedDynClient
from fedapp import problems, strategy
from fedapp.compression import grid, quantizers
from fedapp.compression.quantizers import Uniform
from fedapp.config import RunConfig
from fedapp.downlink import GridDownlink
from fedapp.parallel import run_all
from fedapp.problems import quadratic
from fedapp.report.commands import PRESETS
from fedapp.theory import THEOREMS
from fedapp.theory.check import conclude, plan
from fedapp.theory.fits import linear_rate, slope
from fedapp.wire import Arrays, Update
from strategies.fedpaq import FedPAQ
from tests.support.commands import fedapp
from tests.support.mistakes import fedcom_ascends

Patch = pytest.MonkeyPatch


def few(count: int, **more: int) -> dict[str, int]:
    """Return the keys of a run with fewer clients: what a theorem says of ten, it says of four."""
    return {"num_clients": count, "clients_per_round": count} | more


def grouped_by_theorem(cases: Iterable[Sequence[Any]]) -> list[Any]:
    """Keep cases of one theorem, which is what each begins with, in one process: they share runs."""
    return [pytest.param(*case, marks=pytest.mark.xdist_group(case[0])) for case in cases]


# FedCET's second theorem: the base, and one other step size, noise and number of steps.
FEDCET_2 = ("alpha-0.1-seed-0", "alpha-0.4-seed-0", "sigma-0.25-seed-0", "tau-8-seed-0")
# FedPAQ's first theorem: how many rounds each needs, so that enough of them come after k_0.
FEDPAQ_1 = {"s-2": 250, "s-8": 150, "no-quantizer": 150, "r-4": 300, "r-2": 500, "tau-1": 300}


def fewer_of_fedpaq_1(config: RunConfig) -> dict[str, int]:
    """Return six clients instead of eight, of which three instead of four take part; three with tau = 1."""
    name = config.run_name.removeprefix("fedpaq-1-").removesuffix("-seed-0")
    clients = 3 if name == "tau-1" else 6
    cohort = {"r-4": 3, "r-2": 2}.get(name, clients)
    return few(clients, clients_per_round=cohort, num_rounds=FEDPAQ_1[name])


# What is run of a theorem's sweep: which runs, and what is different in them.
CUT: dict[str, tuple[Callable[[RunConfig], bool], Callable[[RunConfig], dict[str, int]]]] = {
    "fedcet-1": (lambda c: c.local_steps in (5, 10), lambda c: {"num_rounds": c.num_rounds // 2}),
    "fedcet-2": (lambda c: c.run_name.endswith(FEDCET_2), lambda c: few(3)),
    "fedcet-linear": (lambda c: True, lambda c: few(4) if c.dataset == "quadratic" else {}),
    "fedpaq-1": (lambda c: c.seed == 0, fewer_of_fedpaq_1),
    "fedpaq-2": (
        lambda c: c.num_rounds <= 1000,
        lambda c: few(
            4,
            clients_per_round=3,
            num_rounds=c.num_rounds // (4 if c.dataset == "quadratic" else 2),
        ),
    ),
    "fedcom-q": (lambda c: c.seed == 0, lambda c: few(3, num_rounds=150)),
    "fedcom-noise": (lambda c: c.seed == 0, lambda c: few(2, num_rounds=120)),
    "fedcomgate-pl": (lambda c: True, lambda c: few(4, num_rounds=150)),
    "exactness": (lambda c: True, lambda c: few(3, num_rounds=140)),
    "downlink": (
        lambda c: c.algorithm in ("scaffold", "fedgate") and c.grid.kappa != 2,
        lambda c: few(3, num_rounds=160),
    ),
    "stall": (
        lambda c: c.algorithm == "fedavg",
        lambda c: few(3, num_rounds=330 if c.local_steps == 1 else 100),
    ),
    "messages": (
        lambda c: c.lr in (0.8, 1.0) and c.local_steps in (2, 3),
        lambda c: few(3, num_rounds=40),
    ),
}


def cut_down(name: str, directory: Path) -> list[RunConfig]:
    """Return what is run of a theorem's sweep."""
    chosen, changes = CUT[name]
    return [c.model_copy(update=changes(c)) for c in plan(name, PRESETS, directory) if chosen(c)]


def play(configs: Iterable[RunConfig]) -> None:
    """Make runs in this process."""
    for _ in run_all(list(configs), workers=0):
        pass


RUN = [name for name, theorem in THEOREMS.items() if theorem.check]


@pytest.fixture(scope="module")
def right_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes a theorem's runs as they should be, once, and returns where they are."""

    @cache
    def runs(name: str) -> Path:
        directory = tmp_path_factory.mktemp(name)
        play(cut_down(name, directory))
        return directory

    return runs


@pytest.mark.slow
@pytest.mark.parametrize("name", grouped_by_theorem((name,) for name in RUN))
def test_the_algorithms_agree_with_the_theorem(
    name: str, right_runs: Callable[[str], Path]
) -> None:
    findings = conclude(name, right_runs(name)).findings
    for finding in findings:
        assert finding.holds, finding
    mistaken = set().union(*(wrong for _, wrong, _ in MISTAKES[name]), ADMISSIBLE.get(name, set()))
    assert mistaken == set(range(len(findings)))


def drop_the_drift(patch: Patch) -> None:
    """FedCET forgets d_i."""
    remembered = FedCETClient.remembered

    def without(self: FedCETClient, *names: str) -> list[Tensor]:
        z, d = remembered(self, *names)
        return [z, torch.zeros_like(d)]

    patch.setattr(FedCETClient, "remembered", without)


def flip_the_exchange(patch: Patch) -> None:
    """FedCET adds c (z_i - z) where it should take it off, and the other way round."""
    gain = strategies.fedcet.exchange_gain
    patch.setattr(clients.fedcet, "exchange_gain", lambda c, config: -gain(c, config))


def round_to_nearest(patch: Patch) -> None:
    """QSGD rounds to the nearest level: biased."""

    original: Any = quantizers.QSGD.quantize

    class Middle:
        def random(self, size: int, dtype: Any) -> Any:
            return np.full(size, 0.5, dtype)

    def quantize(self: quantizers.QSGD, vector: Any, rng: Any) -> Any:
        return original(self, vector, Middle())

    patch.setattr(quantizers.QSGD, "quantize", quantize)


def invite_everyone(patch: Patch) -> None:
    """All clients take part in every round, whatever r is."""
    patch.setattr(strategy, "sample_cohort", lambda pool, *_: sorted(pool))


def flip_the_step(patch: Patch) -> None:
    """FedPAQ ascends."""

    def aggregate(self: FedPAQ, updates: Sequence[Update]) -> None:
        self.x = self.x - self.server_lr * self.mean(updates, "p")

    patch.setattr(FedPAQ, "aggregate", aggregate)


def drop_the_tracking(patch: Patch) -> None:
    """FedGATE, FedCOMGATE and SCAFFOLD take plain steps."""
    steps = TrackingClient.corrected_steps
    patch.setattr(
        TrackingClient, "corrected_steps", lambda self, x, delta: steps(self, x, 0 * delta)
    )


def flip_feddyn(patch: Patch) -> None:
    """FedDyn's h_i moves the wrong way."""
    update = FedDynClient.update

    def flipped(self: FedDynClient, x: Tensor) -> dict[str, Tensor]:
        before = self.state.get("h_i", torch.zeros_like(x))
        sent = update(self, x)
        self.state["h_i"] = 2 * before - self.state["h_i"]
        return sent

    patch.setattr(FedDynClient, "update", flipped)


def ignore_the_zero_point(patch: Patch) -> None:
    """The noise of the zero point is not added."""
    for_tensors = Uniform.for_tensors

    def quiet(self: Uniform, sizes: tuple[int, ...]) -> Uniform:
        return for_tensors(self.model_copy(update={"zero_point_noise": 0}), sizes)

    patch.setattr(Uniform, "for_tensors", quiet)


def one_step_only(patch: Patch) -> None:
    """FedAvg's clients stop after one local step."""

    def update(self: FedAvgClient, x: Tensor) -> dict[str, Tensor]:
        first, *_ = self.batches()
        return {"u": self.lr * self.gradient(x, first).clone()}

    patch.setattr(FedAvgClient, "update", update)


def fix_the_grid(patch: Patch) -> None:
    """The step of the downlink's grid does not shrink with the movement."""
    patch.setattr(grid, "exponent_of", lambda size: -4)


def forget_what_rounding_lost(patch: Patch) -> None:
    """What rounding takes off a vector that is delivered is not added to the next one."""
    delivered = GridDownlink.delivered

    def forgetful(self: GridDownlink, vectors: Arrays, unit: float = 1.0) -> Arrays:
        self.reset()
        return delivered(self, vectors, unit)

    patch.setattr(GridDownlink, "delivered", forgetful)


def refine_the_grid(patch: Patch) -> None:
    """The downlink's grid is four times as fine as kappa says."""
    exponent_of = grid.exponent_of
    patch.setattr(grid, "exponent_of", lambda size: exponent_of(size / 4))


def send_two_vectors(patch: Patch) -> None:
    """FedCET's clients send what they have moved by once more."""
    update = FedCETClient.update

    def twice(self: FedCETClient, x: Tensor) -> dict[str, Tensor]:
        sent = update(self, x)
        return {**sent, "z": sent["p"]}

    patch.setattr(FedCETClient, "sends", ("p", "z"))
    patch.setattr(FedCETClient, "update", twice)


def share_the_optimum(patch: Patch) -> None:
    """All clients of the quadratics have one optimum, whatever quadratic.heterogeneity is."""
    draw = quadratic._draw
    patch.setattr(quadratic, "_draw", lambda *of: (draw(*of)[0], np.ones_like(draw(*of)[1])))


def every(config: RunConfig) -> bool:
    """Have a mistake in every run."""
    return True


def quantized(config: RunConfig) -> bool:
    """Have a mistake in the runs with QSGD."""
    return config.compressor != "none"


def unquantized(config: RunConfig) -> bool:
    """Have a mistake in the runs without QSGD."""
    return config.compressor == "none"


def kappa(value: float) -> Callable[[RunConfig], bool]:
    """Have a mistake in the runs over one grid."""
    return lambda c: c.downlink == "grid" and c.grid.kappa == value


def by(*algorithms: str) -> Callable[[RunConfig], bool]:
    """Have a mistake in the runs of some algorithms."""
    return lambda c: c.algorithm in algorithms


# For each theorem mistakes, the findings, by their place, that each must turn to no, and the runs that are made with it.
# The others are as they should be: those that the mistake cannot change, or that those findings do not look at.
MISTAKES: dict[str, list[tuple[Callable[[Patch], None], set[int], Callable[[RunConfig], bool]]]] = {
    "fedcet-1": [(drop_the_drift, {0, 1}, every)],
    "fedcet-2": [
        (drop_the_drift, {1}, lambda c: c.local_steps == 2 and c.lr == 0.1),
        (flip_the_exchange, {0, 1, 2}, every),
    ],
    "fedcet-linear": [
        (drop_the_drift, {0, 1}, lambda c: c.local_steps == 2),
        (send_two_vectors, {2}, lambda c: c.local_steps == 2),
    ],
    "fedpaq-1": [
        (round_to_nearest, {0, 1}, lambda c: c.run_name.startswith("fedpaq-1-s-2")),
        (invite_everyone, {2}, lambda c: c.clients_per_round < c.num_clients),
    ],
    "fedpaq-2": [(flip_the_step, {0, 1, 3}, lambda c: c.num_rounds <= 250)],
    "fedcom-q": [(round_to_nearest, {0}, quantized), (fedcom_ascends, {1}, unquantized)],
    "fedcom-noise": [
        (ignore_the_zero_point, {0, 1}, lambda c: c.table(Uniform).zero_point_noise > 0)
    ],
    "fedcomgate-pl": [
        (drop_the_tracking, {0}, by("fedcomgate")),
        (share_the_optimum, {1}, by("fedcom")),
    ],
    "exactness": [
        (flip_feddyn, {0}, by("feddyn")),
        (share_the_optimum, {1}, by("fedavg", "fedprox", "fedavgm")),
    ],
    "downlink": [
        (fix_the_grid, {0, 1}, kappa(1)),
        (forget_what_rounding_lost, {0}, kappa(1)),
        (refine_the_grid, {2}, kappa(4)),
    ],
    "stall": [
        (one_step_only, {0}, lambda c: c.local_steps > 1),
        (share_the_optimum, {1}, lambda c: c.local_steps == 4),
    ],
    "messages": [
        (drop_the_drift, {0}, by("fedcet")),
        (drop_the_tracking, {0}, by("scaffold", "fedgate")),
    ],
}
# The findings that say whether the hypotheses hold: test_within.py makes clients steeper.
ADMISSIBLE = {"fedpaq-1": {3}, "fedpaq-2": {2}, "fedcom-q": {2}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mistake", "wrong", "mistaken"),
    grouped_by_theorem((name, *case) for name, cases in MISTAKES.items() for case in cases),
)
def test_a_wrong_implementation_does_not(
    name: str,
    mistake: Callable[[Patch], None],
    wrong: set[int],
    mistaken: Callable[[RunConfig], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    right_runs: Callable[[str], Path],
) -> None:
    if mistaken is not every:
        shutil.copytree(right_runs(name), tmp_path, dirs_exist_ok=True)
    configs = [config for config in cut_down(name, tmp_path) if mistaken(config)]
    assert configs
    for config in configs:
        shutil.rmtree(tmp_path / name / config.run_name, ignore_errors=True)
    problems._make_problem.cache_clear()
    mistake(monkeypatch)
    with np.errstate(all="ignore"):
        play(configs)
        findings = conclude(name, tmp_path).findings
    problems._make_problem.cache_clear()
    told = {place for place, finding in enumerate(findings) if not finding.holds}
    assert wrong <= told, findings


def test_every_theorem_has_a_mistake() -> None:
    assert set(MISTAKES) == set(CUT) == set(RUN)


def test_runs_that_ended_at_once_are_a_no(tmp_path: Path) -> None:
    """A step size with which the first round overflows: a line that says no, not a traceback."""
    for name in ("exactness", "fedcet-linear"):
        configs = [
            config.model_copy(update={"lr": 1e200, "num_rounds": 3})
            for config in plan(name, PRESETS, tmp_path)
        ]
        errors = [error for _, error in run_all(configs, workers=0)]
        assert all(errors)
        assert not any(finding.holds for finding in conclude(name, tmp_path).findings)


@pytest.mark.slow
def test_the_command_writes_table_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    text = (PRESETS / "fedcomgate-pl.toml").read_text()
    text = text.replace("num-rounds = 200", "num-rounds = 120")
    text = text.replace("num-clients = 10", "num-clients = 4")
    text = text.replace("clients-per-round = 10", "clients-per-round = 4")
    (presets / "fedcomgate-pl.toml").write_text(text)
    words = ["theory", "fedcomgate-pl", "--presets", str(presets), "--out", str(tmp_path / "out")]
    words[1:1] = ["--workers", "0"]
    assert fedapp(monkeypatch, *words) == 0
    assert "2 of 2 hold" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "theory.json").read_text())
    assert [row["holds"] for row in rows] == [True, True]
    assert (tmp_path / "out" / "theory.md").read_text().count("| yes |") == 2
    assert (tmp_path / "out" / "fedcomgate-pl.png").stat().st_size > 10_000
    # What is there already is not run again; a shorter run does not reach the optimum, and is told.
    (presets / "fedcomgate-pl.toml").write_text(text.replace("num-rounds = 120", "num-rounds = 20"))
    words[-1] = str(tmp_path / "short")
    words[2] = "1"  # in a process of their own
    assert fedapp(monkeypatch, *words) == 1
    told = capsys.readouterr().out
    assert "NO" in told
    assert "1 of 2 hold" in told
    assert fedapp(monkeypatch, "theory", "fermat") == 2
    assert "There is no theorem 'fermat'" in capsys.readouterr().err


def test_the_fits_by_hand() -> None:
    x = np.arange(1.0, 50)
    assert slope(x, 3 * x**-1.5) == pytest.approx(-1.5)
    assert np.isnan(slope(x, np.where(x > 40, np.inf, 1.0)))
    rate, fit = linear_rate(5 * 0.8**x, 1e-3)
    assert rate == pytest.approx(0.8)
    assert fit == pytest.approx(1.0)
    assert np.isnan(linear_rate(np.full(30, np.inf), 1e-3)[0])
