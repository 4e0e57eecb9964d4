"""Theorems within their hypotheses: the bounds hold, and for every line there is a mistake that turns it to "no".

The presets are cut down to what a test has time for; `fedapp theory` plays them whole.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import clients.fedcomgate
from clients.fedcomgate import TrackingClient
from fedapp import problems
from fedapp.config import RunConfig
from fedapp.problems import quadratic
from fedapp.report.commands import PRESETS
from fedapp.theory import THEOREMS
from fedapp.theory.check import plan
from fedapp.theory.outcome import Finding
from fedapp.wire import Update
from strategies.fedcomgate import FedCOM, FedCOMGATE

Patch = pytest.MonkeyPatch
Mistake = Callable[[Patch], None]
Choice = Callable[[RunConfig], bool]

PLAYED = [name for name, theorem in THEOREMS.items() if theorem.play]


def first(config: RunConfig) -> bool:
    """Choose the runs with the first seed."""
    return config.seed == 0


def extremes(config: RunConfig) -> bool:
    """Choose the runs with one seed and the fewest or most clients."""
    return config.seed == 1 and config.num_clients != 4


# What is played of a theorem's sweep: which runs, and how many rounds.
CUT: dict[str, tuple[Choice, int]] = {
    "fedcom-d4": (extremes, 100),
    "fedcom-d8": (first, 30),
    "fedcom-d9": (first, 30),
    "fedcomgate-e4": (extremes, 100),
    "fedcomgate-e6": (first, 40),
    "fedcomgate-e9": (first, 30),
    "fedcomgate-coarse": (first, 60),
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
    for finding in findings(name, tmp_path):
        assert finding.holds, finding


def steeper(patch: Patch) -> None:
    """Clients are ten times as steep as the presets say: L = 10."""
    draw = quadratic._draw

    def drawn(config: RunConfig, client: int) -> Any:
        A, b = draw(config, client)
        return 10 * A, b

    patch.setattr(quadratic, "_draw", drawn)


def fedcom_ascends(patch: Patch) -> None:
    """FedCOM steps the wrong way."""

    def aggregate(self: FedCOM, updates: Sequence[Update]) -> None:
        self.x = self.x + self.lr * self.server_lr * self.mean(updates, "D")

    patch.setattr(FedCOM, "aggregate", aggregate)


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


def never_damp(patch: Patch) -> None:
    """Tracking takes all of every difference up."""
    patch.setattr(clients.fedcomgate, "damping", lambda *_: 1.0)


# Mistakes for each theorem, and the findings, by their place, that must turn to no.
MISTAKES: dict[str, list[tuple[Mistake, set[int]]]] = {
    "fedcom-d4": [(steeper, {0}), (fedcom_ascends, {1}), (fedcom_ignores_server_lr, {2})],
    "fedcom-d8": [(steeper, {0}), (fedcom_ascends, {1, 2})],
    "fedcom-d9": [(steeper, {0, 1}), (fedcom_ascends, {2})],
    "fedcomgate-e4": [
        (steeper, {0}),
        (fedcomgate_ascends, {1}),
        (fedcomgate_ignores_server_lr, {2}),
    ],
    "fedcomgate-e6": [(steeper, {0}), (fedcomgate_ascends, {1})],
    "fedcomgate-e9": [(steeper, {0, 1}), (fedcomgate_ascends, {2})],
    "fedcomgate-coarse": [(steeper, {0}), (drop_the_tracking, {1}), (never_damp, {2})],
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


def test_every_line_has_a_mistake(tmp_path: Path) -> None:
    assert set(MISTAKES) == set(CUT) == set(PLAYED)
    for name, cases in MISTAKES.items():
        covered = set().union(*(wrong for _, wrong in cases))
        assert covered == set(range(max(covered) + 1)), name
