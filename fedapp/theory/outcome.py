"""What checking a theorem gives: findings, each with its tolerance, and panels to draw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedapp.report.panels import Panel
from fedapp.report.runs import Run


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    claim: str
    predicted: str
    observed: str
    holds: bool


@dataclass(frozen=True)
class Outcome:
    """What a theorem's runs showed."""

    findings: list[Finding]
    panels: list[Panel]


@dataclass(frozen=True)
class Theorem:
    """A theorem, or a claim, by its title; its preset has the name that it is listed under."""

    title: str
    check: Callable[[Sequence[Run]], Outcome]
