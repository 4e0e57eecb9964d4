"""What is read from a theorem's runs: figures of every round, groups of runs, constants of the bounds."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from fedapp.parsing import parse_run_config
from fedapp.problems import kind_of, make_problem
from fedapp.report.runs import Run
from fedapp.theory.constants import exact_setting
from fedapp.theory.fits import Values
from fedapp.theory.hypotheses import Setting


def figure(run: Run, name: str) -> Values:
    """Return a figure of every round; infinite for those that the run did not reach."""
    values = np.full(int(run.config["num-rounds"]), np.inf)
    for record in run.rounds:
        value = record.get(name)  # None if the round was not evaluated, or it is not finite
        values[record["round"] - 1] = np.nan if value is None else value
    return values


def mean_figure(runs: Iterable[Run], name: str) -> Values:
    """Return a figure's mean over runs that differ in their seeds."""
    return np.mean([figure(run, name) for run in runs], axis=0)  # type: ignore[no-any-return]


def grouped(runs: Iterable[Run], *keys: str) -> dict[Any, list[Run]]:
    """Return runs by the values of config keys, in order."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        values = tuple(run.config[key] for key in keys)
        groups.setdefault(values if len(keys) > 1 else values[0], []).append(run)
    return dict(sorted(groups.items()))


def named(runs: Iterable[Run], preset: str) -> dict[str, list[Run]]:
    """Return runs by the names of their points, without the preset's name and the seed."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.name.removeprefix(f"{preset}-").split("-seed-")[0], []).append(run)
    return groups


def counts(run: Run) -> tuple[int, int, int]:
    """Return n clients, r of them a round, and tau."""
    keys = ("num-clients", "clients-per-round", "local-steps")
    n, r, tau = (int(run.config[key]) for key in keys)
    return n, r, tau


def num_parameters(run: Run) -> int:
    """Return the length of a run's parameter vector."""
    config = parse_run_config(run.config)
    return kind_of(config).outline(config).layout.size


def setting_of(run: Run) -> Setting:
    """Return a run on quadratics as a theorem sees it."""
    return exact_setting(parse_run_config(run.config))


def starting_point(run: Run) -> dict[str, float]:
    """Return the figures of a run's starting point."""
    problem = make_problem(parse_run_config(run.config))
    return problem.evaluate(*problem.initial())
