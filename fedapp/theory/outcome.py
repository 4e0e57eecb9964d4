"""What checking a theorem gives: findings, each with its tolerance, and panels to draw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapp.report.panels import Panel
from fedapp.report.runs import Run

if TYPE_CHECKING:
    from fedapp.config import RunConfig

WITHIN, BEYOND, NO_THEOREM = "within", "beyond the theorem", "no theorem"


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    claim: str
    predicted: str
    observed: str
    holds: bool
    scope: str = ""  # within or beyond the hypotheses; "": as its theorem


@dataclass(frozen=True)
class Outcome:
    """What a theorem's runs showed."""

    findings: list[Finding]
    panels: list[Panel]


@dataclass(frozen=True)
class Theorem:
    """A theorem, or a claim, by its title; its preset has the name that it is listed under.

    Its runs are either run as any others are, and `check` reads them, or they are played in one process, where `play`
    looks at every local step.
    """

    title: str
    check: Callable[[Sequence[Run]], Outcome] | None = None
    play: "Callable[[Sequence[RunConfig]], Outcome] | None" = None
    scope: str = WITHIN  # whether its step sizes satisfy the theorem's hypotheses
