"""Theorems within their hypotheses: the bounds hold, and for every line there is a mistake that turns it to "no".

The presets are cut down to what a test has time for; `fedapp theory` plays them whole.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import clients.fedcet
import clients.fedcomgate
import clients.gradma
import strategies.fedcet
from clients.averaging import FedAvgClient
from clients.diana import VRDIANAClient
from clients.fedbcgd import FedBCGDClient, FedBCGDPlusClient
from clients.fedcet import FedCETClient
from clients.fedcomgate import TrackingClient
from clients.fedpaq import FedPAQClient
from fedapp import problems
from fedapp.client import Client
from fedapp.compression.quantizers import QSGD
from fedapp.config import RunConfig
from fedapp.problems import quadratic
from fedapp.projection import Memory, project_
from fedapp.report.commands import PRESETS
from fedapp.theory import THEOREMS, hypotheses
from fedapp.theory.check import plan
from fedapp.theory.constants import quadratic_constants
from fedapp.theory.hypotheses import Condition, Setting
from fedapp.theory.outcome import Finding
from fedapp.theory.within import tables
from fedapp.theory.within.trails import admissible, below, settings_of
from fedapp.wire import Update
from strategies.diana import DIANA
from strategies.fedbcgd import FedBCGD
from strategies.fedcomgate import FedCOM, FedCOMGATE
from strategies.fedpaq import FedPAQ
from strategies.gradma import GradMA
from tests.support.mistakes import fedcom_ascends

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]
Choice = Callable[[RunConfig], bool]
Conditions = Callable[[Setting], list[Condition]]

PLAYED = [name for name, theorem in THEOREMS.items() if theorem.play]


def first(config: RunConfig) -> bool:
    """Choose the runs with the first seed."""
    return config.seed == 0


def one_step(config: RunConfig) -> bool:
    """Choose the runs with the first seed and one local step."""
    return config.seed == 0 and config.local_steps == 1


def extremes(config: RunConfig) -> bool:
    """Choose the runs with one seed and the fewest or most clients."""
    return config.seed == 1 and config.num_clients != 4


# What is played of a theorem's sweep: which runs, and how many rounds.
CUT: dict[str, tuple[Choice, int]] = {
    "fedcom-d4": (extremes, 100),
    "fedcom-d8": (first, 30),
    "fedcom-d9": (first, 60),
    "fedcomgate-e4": (extremes, 100),
    "fedcomgate-e6": (first, 60),
    "fedcomgate-e9": (first, 80),
    "fedcomgate-coarse": (first, 60),
    "fedcom-tables": (lambda config: config.flat()["qsgd.levels"] == 8, 70),
    "fedpaq-lemmas": (first, 60),
    "fedcet-32": (one_step, 200),
    "fedcet-44": (one_step, 250),
    "gradma-lemmas": (first, 100),
    "fedbcgd-51": (first, 100),
    "fedbcgd-102": (first, 120),
}


def findings(name: str, directory: Path) -> list[Finding]:
    """Play a theorem's sweep, cut down."""
    chosen, rounds = CUT[name]
    configs = [
        config.model_copy(update={"num_rounds": min(rounds, config.num_rounds)})
        for config in plan(name, PRESETS, directory)
        if chosen(config)
    ]
    play = THEOREMS[name].play
    assert play
    with np.errstate(all="ignore"):
        return play(configs).findings


@pytest.mark.parametrize("name", PLAYED)
def test_the_bound_holds_at_an_admissible_step_size(name: str, tmp_path: Path) -> None:
    """And each of its lines has a mistake, below."""
    found = findings(name, tmp_path)
    for finding in found:
        assert finding.holds, finding
    assert set().union(*(wrong for _, wrong in MISTAKES[name])) == set(range(len(found)))


def steeper(patch: Patch) -> None:
    """Clients are thirty times as steep as the presets say: L = 30."""
    draw = quadratic._draw

    def drawn(config: RunConfig, client: int) -> Any:
        A, b = draw(config, client)
        return 30 * A, b

    patch.setattr(quadratic, "_draw", drawn)


def fedcom_ignores_server_lr(patch: Patch) -> None:
    """FedCOM's server step size is 1."""

    def aggregate(self: FedCOM, updates: Sequence[Update]) -> None:
        self.x = self.x - self.lr * self.mean(updates, "D")

    patch.setattr(FedCOM, "aggregate", aggregate)


def fedcomgate_steps(patch: Patch, step: Callable[[FedCOMGATE], float]) -> None:
    """FedCOMGATE's server takes another step."""

    def aggregate(self: FedCOMGATE, updates: Sequence[Update]) -> None:
        D = self.mean(updates, "D")
        self.x = self.x - step(self) * D
        self.deliver(D=D)

    patch.setattr(FedCOMGATE, "aggregate", aggregate)


def fedcomgate_ascends(patch: Patch) -> None:
    """FedCOMGATE steps the wrong way."""
    fedcomgate_steps(patch, lambda server: -server.lr * server.server_lr)


def fedcomgate_ignores_server_lr(patch: Patch) -> None:
    """FedCOMGATE's server step size is 1."""
    fedcomgate_steps(patch, lambda server: server.lr)


def drop_the_tracking(patch: Patch) -> None:
    """FedCOMGATE's clients take plain steps."""
    steps = TrackingClient.corrected_steps

    def plain(self: TrackingClient, x: Tensor, delta: Tensor) -> Tensor:
        return steps(self, x, 0 * delta)

    patch.setattr(TrackingClient, "corrected_steps", plain)


def flip_the_tracking(patch: Patch) -> None:
    """FedCOMGATE's clients add delta_i where they should take it off."""
    steps = TrackingClient.corrected_steps

    def flipped(self: TrackingClient, x: Tensor, delta: Tensor) -> Tensor:
        return steps(self, x, -delta)

    patch.setattr(TrackingClient, "corrected_steps", flipped)


def fedcom_stays(patch: Patch) -> None:
    """FedCOM's server never moves x."""
    patch.setattr(FedCOM, "aggregate", lambda self, updates: None)


def fedcomgate_stays(patch: Patch) -> None:
    """FedCOMGATE's server never moves x."""
    fedcomgate_steps(patch, lambda _: 0.0)


def never_damp(patch: Patch) -> None:
    """Tracking takes all of every difference up."""
    patch.setattr(clients.fedcomgate, "damping", lambda *_: 1.0)


def ascend(patch: Patch, client: type[Client]) -> None:
    """Clients of a class step along the gradient instead of against it."""
    gradient = Client.gradient
    patch.setattr(client, "gradient", lambda self, y, batch: -gradient(self, y, batch))


def fedcet_ascends(patch: Patch) -> None:
    """FedCET's clients step the wrong way."""
    ascend(patch, FedCETClient)


def fedpaq_ascends(patch: Patch) -> None:
    """FedPAQ's clients step the wrong way."""
    ascend(patch, FedPAQClient)


def step_too_short(patch: Patch) -> None:
    """FedPAQ's server divides the sum of what was sent by n, not by r."""

    def aggregate(self: FedPAQ, updates: Sequence[Update]) -> None:
        share = len(updates) / self.config.num_clients
        self.x = self.x + share * self.mean(updates, "p")

    patch.setattr(FedPAQ, "aggregate", aggregate)


def diana_ascends(patch: Patch) -> None:
    """DIANA and VR-DIANA step the wrong way."""

    def aggregate(self: DIANA, updates: Sequence[Update]) -> None:
        self.x = self.x + self.lr * self.server_lr * (self.h + self.mean(updates, "q"))

    patch.setattr(DIANA, "aggregate", aggregate)


def vrdiana_forgets_its_snapshots(patch: Patch) -> None:
    """VR-DIANA takes plain gradients."""
    patch.setattr(VRDIANAClient, "estimate", lambda self, x, batch: self.gradient(x, batch))


def longer_steps(patch: Patch) -> None:
    """The tables' step sizes are three times as large."""
    step_size = tables.step_size
    patch.setattr(tables, "step_size", lambda algorithm, s: 3 * step_size(algorithm, s))


def flip_the_exchange(patch: Patch) -> None:
    """FedCET adds c (z_i - z) where it should take it off, and the other way round."""
    gain = strategies.fedcet.exchange_gain
    patch.setattr(clients.fedcet, "exchange_gain", lambda c, config: -gain(c, config))


def never_exchange(patch: Patch) -> None:
    """FedCET's clients go on from their own models."""
    patch.setattr(clients.fedcet, "exchange_gain", lambda c, config: 0.0)


def bias_the_quantizer(patch: Patch) -> None:
    """QSGD adds a tenth to every number."""
    transmit: Any = QSGD.transmit

    def biased(self: QSGD, v: Any, rng: Any) -> Any:
        payload, seen = transmit(self, v, rng)
        return payload, seen + 0.1

    patch.setattr(QSGD, "transmit", biased)


def louder(patch: Patch) -> None:
    """What QSGD gets wrong is forty times as large."""
    transmit: Any = QSGD.transmit

    def loud(self: QSGD, v: Any, rng: Any) -> Any:
        payload, seen = transmit(self, v, rng)
        return payload, v + 40 * (seen - v)

    patch.setattr(QSGD, "transmit", loud)


def blocks_ascend(patch: Patch) -> None:
    """FedBCGD and FedBCGD+ step the wrong way."""
    total = FedBCGD.total
    patch.setattr(FedBCGD, "total", lambda self, updates, name: -total(self, updates, name))


def blocks_step_twice(patch: Patch) -> None:
    """FedBCGD adds its step twice, as lines 23 to 25 of its algorithm have it."""
    aggregate = FedBCGD.aggregate

    def twice(self: FedBCGD, updates: Sequence[Update]) -> None:
        aggregate(self, updates)
        self.x = self.x + self.v

    patch.setattr(FedBCGD, "aggregate", twice)


def momentum_adds_up(patch: Patch) -> None:
    """FedBCGD's server never forgets."""
    aggregate = FedBCGD.aggregate

    def forever(self: FedBCGD, updates: Sequence[Update]) -> None:
        self.options = self.options.model_copy(update={"momentum": 2 * self.options.momentum})
        aggregate(self, updates)

    patch.setattr(FedBCGD, "aggregate", forever)


def momentum_is_off(patch: Patch) -> None:
    """FedBCGD's server has no momentum, so that x is z."""
    aggregate = FedBCGD.aggregate

    def plain(self: FedBCGD, updates: Sequence[Update]) -> None:
        self.v = 0 * self.v
        aggregate(self, updates)

    patch.setattr(FedBCGD, "aggregate", plain)


def eager_blocks(patch: Patch) -> None:
    """FedBCGD's clients take steps ten times as long."""
    gradient = Client.gradient
    patch.setattr(FedBCGDClient, "gradient", lambda self, y, b: 10 * gradient(self, y, b))


def drop_the_control_variates(patch: Patch) -> None:
    """FedBCGD+'s clients renew c_i, and take plain steps."""
    update = FedBCGDPlusClient.update

    def plain(self: Any, x: Tensor, c: Tensor, block: Tensor) -> dict[str, Tensor]:
        answer = update(self, x, c, block)
        return answer | {"u": self.of(FedAvgClient.update(self, x)["u"])}

    patch.setattr(FedBCGDPlusClient, "update", plain)


def flip_the_control_variates(patch: Patch) -> None:
    """FedBCGD+ steps along + c_i - c, as line 13 of its algorithm has it."""
    update = FedBCGDPlusClient.update

    def flipped(self: Any, x: Tensor, c: Tensor, block: Tensor) -> dict[str, Tensor]:
        return update(self, x, 2 * self.state.get("c_i", 0 * x) - c, block)

    patch.setattr(FedBCGDPlusClient, "update", flipped)


def renew_all_of_c_i(patch: Patch) -> None:
    """FedBCGD+'s clients renew what the server does not hear of, too, as line 26 has it."""
    update = FedBCGDPlusClient.update

    def renewed(self: Any, x: Tensor, c: Tensor, block: Tensor) -> dict[str, Tensor]:
        answer = update(self, x, c, block)
        self.state["c_i"] = self.full_gradient(x)
        return answer

    patch.setattr(FedBCGDPlusClient, "update", renewed)


def memory_ascends(patch: Patch) -> None:
    """GradMA's server takes ten steps the wrong way."""
    project = Memory.project
    patch.setattr(Memory, "project", lambda self, v: -10 * project(self, v))


def memory_overshoots(patch: Patch) -> None:
    """GradMA's server takes steps fifty times as long."""
    project = Memory.project
    patch.setattr(Memory, "project", lambda self, v: 50 * project(self, v))


def memory_steps_twice(patch: Patch) -> None:
    """GradMA's server steps twice along the same momentum."""
    aggregate = GradMA.aggregate

    def twice(self: GradMA, updates: Sequence[Update]) -> None:
        aggregate(self, updates)
        self.x = self.x - self.server_lr * self.m

    patch.setattr(GradMA, "aggregate", twice)


def eager_workers(patch: Patch) -> None:
    """GradMA's workers take steps a hundred times as long."""
    project = project_
    patch.setattr(clients.gradma, "project_", lambda rows, scope: 100 * project(rows, scope))


def memory_is_not_asked(patch: Patch) -> None:
    """GradMA's server steps along its momentum as it is."""
    patch.setattr(Memory, "project", lambda self, v: v.copy())


def workers_do_not_project(patch: Patch) -> None:
    """GradMA's workers step along the gradient as it is."""
    patch.setattr(clients.gradma, "project_", lambda rows, scope: rows[0])


def workers_stay(patch: Patch) -> None:
    """GradMA's workers do not move."""
    patch.setattr(clients.gradma, "project_", lambda rows, scope: 0 * rows[0])


# Mistakes for each theorem, and the findings, by their place, that must turn to no.
MISTAKES: dict[str, list[tuple[Mistake, set[int]]]] = {
    "fedcom-d4": [
        (steeper, {0}),
        (fedcom_ascends, {1}),
        (fedcom_stays, {1, 2}),
        (fedcom_ignores_server_lr, {2}),
    ],
    "fedcom-d8": [
        (steeper, {0}),
        (fedcom_ascends, {1, 2}),
        (fedcom_stays, {1, 2}),
        (fedcom_ignores_server_lr, {1, 2}),
    ],
    "fedcom-d9": [
        (steeper, {0, 1}),
        (fedcom_ascends, {2}),
        (fedcom_stays, {2}),
        (fedcom_ignores_server_lr, {2}),
    ],
    # Tracking is not in the bounds: E.4's has no line that misses it, E.6's and E.9's have the last.
    "fedcomgate-e4": [
        (steeper, {0}),
        (flip_the_tracking, {0}),
        (fedcomgate_ascends, {1}),
        (fedcomgate_stays, {1, 2}),
        (fedcomgate_ignores_server_lr, {2}),
    ],
    "fedcomgate-e6": [
        (steeper, {0}),
        (flip_the_tracking, {0, 2}),
        (fedcomgate_ascends, {1}),
        (fedcomgate_stays, {1}),
        (fedcomgate_ignores_server_lr, {1}),
        (drop_the_tracking, {2}),
    ],
    "fedcomgate-e9": [
        (steeper, {0, 1}),
        (flip_the_tracking, {0, 3}),
        (fedcomgate_ascends, {2}),
        (fedcomgate_stays, {2}),
        (fedcomgate_ignores_server_lr, {2}),
        (drop_the_tracking, {3}),
    ],
    "fedcomgate-coarse": [(steeper, {0}), (drop_the_tracking, {1}), (never_damp, {2})],
    "fedcom-tables": [
        (longer_steps, {0}),
        (fedcom_ascends, {1}),
        (diana_ascends, {2, 3, 5, 6}),
        (vrdiana_forgets_its_snapshots, {3, 6}),
        (fedcomgate_ascends, {4}),
    ],
    "fedpaq-lemmas": [
        (steeper, {0}),
        (bias_the_quantizer, {1, 5}),
        (fedpaq_ascends, {2, 6}),
        (louder, {3, 4, 7, 8}),
        (step_too_short, {9}),
    ],
    "fedcet-32": [
        (steeper, {0}),
        (fedcet_ascends, {1}),
        (flip_the_exchange, {2}),
        (never_exchange, {2}),
    ],
    "fedcet-44": [(steeper, {0}), (fedcet_ascends, {1}), (flip_the_exchange, {2})],
    "gradma-lemmas": [
        (steeper, {0}),
        (memory_ascends, {1, 7}),
        (memory_steps_twice, {2}),
        (eager_workers, {3, 4}),
        (memory_overshoots, {5, 6}),
        (memory_is_not_asked, {8}),
        (workers_do_not_project, {9}),
        (workers_stay, {9}),
    ],
    "fedbcgd-51": [
        (steeper, {0}),
        (blocks_ascend, {1}),
        (blocks_step_twice, {2}),
        (eager_blocks, {3}),
        (momentum_adds_up, {4}),
        (momentum_is_off, {5}),
    ],
    "fedbcgd-102": [
        (steeper, {0}),
        (blocks_ascend, {1}),
        (drop_the_control_variates, {2}),
        (flip_the_control_variates, {2}),
        (renew_all_of_c_i, {2}),
    ],
}
CASES = [(name, *case) for name, cases in MISTAKES.items() for case in cases]


@pytest.mark.parametrize(("name", "mistake", "wrong"), CASES)
def test_a_mistake_turns_its_lines_to_no(
    name: str, mistake: Mistake, wrong: set[int], tmp_path: Path, monkeypatch: Patch
) -> None:
    problems._make_problem.cache_clear()
    mistake(monkeypatch)
    told = {place for place, one in enumerate(findings(name, tmp_path)) if not one.holds}
    problems._make_problem.cache_clear()
    assert wrong <= told


def unequal_hessians(patch: Patch) -> None:
    """Clients differ in their Hessians, so that no rho bounds how far apart their gradients are."""
    constants = quadratic_constants
    patch.setattr(
        "fedapp.theory.constants.quadratic_constants",
        lambda problem, config: constants(problem, config) | {"rho2": np.inf},
    )


def test_no_bound_with_an_infinite_rho_holds(tmp_path: Path, monkeypatch: Patch) -> None:
    unequal_hessians(monkeypatch)
    told = [finding.holds for finding in findings("gradma-lemmas", tmp_path)]
    assert [told[lemma] for lemma in (3, 4, 7)] == [False, False, False]


@pytest.mark.parametrize(
    ("bound", "holds"), [(2.0, True), (0.5, False), (np.inf, False), (-1.0, False), (np.nan, False)]
)
def test_a_bound_must_be_finite_and_positive(bound: float, holds: bool) -> None:
    measured, bounds = np.array([1.0, 1.0]), np.array([3.0, bound])
    assert below("", [measured], [bounds]).holds is holds


@pytest.mark.parametrize(
    ("name", "conditions"),
    [
        ("fedcom-q", hypotheses.fedcom_pl),
        ("fedpaq-1", hypotheses.fedpaq_1),
        ("fedpaq-2", hypotheses.fedpaq_2),
    ],
)
def test_sweeps_that_are_run_satisfy_their_hypotheses_unless_clients_are_steeper(
    name: str, conditions: Conditions, tmp_path: Path, monkeypatch: Patch
) -> None:
    configs = [c for c in plan(name, PRESETS, tmp_path) if c.dataset == "quadratic" and first(c)]
    problems._make_problem.cache_clear()
    assert admissible(conditions(s) for s in settings_of(configs)).holds
    problems._make_problem.cache_clear()
    steeper(monkeypatch)
    assert not admissible(conditions(s) for s in settings_of(configs)).holds
    problems._make_problem.cache_clear()


def test_every_theorem_has_mistakes() -> None:
    assert set(MISTAKES) == set(CUT) == set(PLAYED)
