"""Tables of the results of runs, and of what they spent to reach a target."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from fedapp.durations import human_time
from fedapp.figures import TOTAL, Figure, find_figure, human_bytes
from fedapp.names import display_name
from fedapp.report.choice import Choice
from fedapp.report.labels import labelled
from fedapp.report.runs import Run, reach, validated_by
from fedapp.report.units import SYMBOLS, familiar_unit

BYTES = ("uplink_bytes", "downlink_bytes", TOTAL)


@dataclass(frozen=True)
class Number:
    """A mean over seeds and the standard deviation between them (n - 1; 0 for one seed)."""

    mean: float
    std: float = 0.0
    figure: Figure = field(default_factory=lambda: Figure("number"))

    def text(self, like: float | None = None) -> str:
        """Write it as "mean ± std" with the figure's unit; a time in that of `like`, in seconds."""
        if self.figure.unit == "bytes":
            return _two(human_bytes(self.mean), human_bytes(self.std), self.std)
        if self.figure.unit == "seconds":
            unit, size = familiar_unit("seconds", self.mean if like is None else like)
            mean, std = (f"{_short(v / size)} {SYMBOLS[unit]}" for v in (self.mean, self.std))
            return _two(mean, std, self.std)
        form = self.figure.format
        return _two(f"{self.mean:{form}}", f"{self.std:{form}}", self.std)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _two(mean: str, std: str, spread: float) -> str:
    return f"{mean} ± {std}" if spread else mean


@dataclass(frozen=True)
class Line:
    """One line of a table: the replicates of a setting, or one run that is not one of them."""

    method: str
    algorithm: str
    seeds: int
    cells: dict[str, Number | str]  # by column; one that is missing is not known
    settings: int = 0  # among which this one was chosen; 0: there was no choice
    chosen: dict[str, Any] = field(default_factory=dict)
    at_edge: Sequence[str] = ()
    never_varied: Sequence[str] = ()


@dataclass(frozen=True)
class Results:
    """A table before it is written: its columns in order, its lines, and what a reader must know."""

    columns: list[str]
    lines: list[Line]
    notes: list[str]
    metric: str
    chosen_on: str = ""


def results(
    runs: Sequence[Run], figure: str, target: float | None = None, choice: Choice | None = None
) -> Results:
    """Return a line for each setting: means over its seeds and their standard deviations.

    Means are of complete runs; every other run has a line of its own that says what it is. With a `choice`, each line
    tells what it was chosen from.
    """
    columns = [*_outcomes(figure), "uplink per round", *_costs(figure, target)]
    lines = [_line(label, group, figure, target, choice) for label, group in labelled(runs)]
    return Results(
        columns, lines, _notes(lines, figure, choice), figure, choice.chosen_on() if choice else ""
    )


def _outcomes(figure: str) -> list[str]:
    label = find_figure(figure).label
    return [f"best {label}", f"last {label}"]


def _costs(figure: str, target: float | None) -> list[str]:
    if target is None:
        return []
    aim = f"{100 * target:g} %" if find_figure(figure).unit == "fraction" else f"{target:g}"
    what = (
        "rounds",
        "uplink",
        "downlink",
        "total",
        "simulated time",
        "simulated time, nominal bits",
    )
    return [f"{name} to {aim}" for name in what]


def _line(
    label: str, group: Sequence[Run], figure: str, target: float | None, choice: Choice | None
) -> Line:
    first = group[0]
    line = Line(
        label,
        display_name(first.config["algorithm"]),
        len(group),
        _cells(group, figure, target),
    )
    if choice is None:
        return line
    return replace(
        line,
        settings=len(choice.rivals(first)),
        chosen=choice.chosen(first),
        at_edge=choice.at_edge(first),
        never_varied=choice.never_varied(first),
    )


def _cells(group: Sequence[Run], figure: str, target: float | None) -> dict[str, Number | str]:
    outcome = _best_and_last(group, figure)
    if not outcome:
        return {_outcomes(figure)[0]: f"no {find_figure(figure).label}"}
    cells: dict[str, Number | str] = dict(zip(_outcomes(figure), outcome, strict=True))
    a_round = [run.running_total("uplink_bytes")[-1] / len(run.rounds) for run in group]
    cells["uplink per round"] = number(a_round, "uplink_bytes")
    if target is not None:
        cells |= zip(_costs(figure, target), _spent(group, figure, target), strict=True)
    return cells


def _notes(lines: Sequence[Line], figure: str, choice: Choice | None) -> list[str]:
    notes = []
    if any(line.seeds > 1 for line in lines):
        notes.append("Mean ± standard deviation over seeds.")
    if choice is None:
        return notes
    if choice.judge == validated_by(figure):
        notes.append(
            f"Best {find_figure(figure).label}: in the round that is best on validation data."
        )
    notes.append(choice.in_words())
    if any(line.at_edge for line in lines):
        notes.append("* at the edge of the values that were tried: a better one may lie beyond.")
    counts = {line.settings for line in lines}
    if len(counts) > 1:
        notes.append(
            f"Methods had {min(counts)} to {max(counts)} settings to choose from: the comparison favours those with more."
        )
    fixed: dict[str, list[str]] = {}
    for line in lines:
        if line.never_varied:
            fixed.setdefault(line.algorithm, list(line.never_varied))
    if fixed:
        said = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in fixed.items())
        notes.append(f"Never varied: {said}.")
    return notes


def values_in_words(chosen: Mapping[str, Any], at_edge: Collection[str] = ()) -> str:
    """Write keys with their values, those at the edge with a star."""
    words = (f"{key} = {value}{'*' if key in at_edge else ''}" for key, value in chosen.items())
    return ", ".join(words) or "-"


def number(values: Sequence[float], figure: Figure | str) -> Number:
    """Return mean and standard deviation of some runs' values."""
    shown = find_figure(figure) if isinstance(figure, str) else figure
    if min(values) == max(values):
        return Number(values[0], 0.0, shown)
    with np.errstate(all="ignore"):  # a damaged file may hold any number
        std = float(np.std(values, ddof=1))
    return Number(_average(values), std if math.isfinite(std) else math.inf, shown)


def closing_table(runs: Sequence[Run], figure: str, choice: Choice | None = None) -> Table:
    """Lay out the results of a sweep: a line for each setting, means over its seeds, and what a choice chose."""
    title = find_figure(figure).label
    table = Table(
        "run", *(["chosen"] if choice else []), f"best {title}", f"last {title}", "rounds", "uplink", "downlink", "total", "wall time",
        box=None, pad_edge=False,
    )  # fmt: skip
    for label, group in labelled(runs):
        shown = [value.text() for value in _best_and_last(group, figure)] or ["-", "-"]
        *sent, seconds = (
            _average([sum(value or 0 for value in run.column(kind)) for run in group])
            for kind in (*BYTES, "wall_seconds")
        )
        rounds = f"{_average([len(run.rounds) for run in group]):.0f}"
        chosen = [Text(values_in_words(choice.chosen(group[0])))] if choice else []
        table.add_row(
            Text(label), *chosen, *shown, rounds, *map(human_bytes, sent), human_time(seconds)
        )
    return table


def _best_and_last(group: Sequence[Run], figure: str) -> list[Number]:
    """Return the best and the last figure, means over the seeds; nothing if a run has none."""
    known = [[v for v in run.column(figure) if v is not None] for run in group]
    if not all(known):
        return []
    best, last = [run.result(figure) for run in group], [values[-1] for values in known]
    return [number(best, figure), number(last, figure)]


def _spent(group: Sequence[Run], figure: str, target: float) -> list[Number | str]:
    """Return what the runs of a group spent to reach a target."""
    spent = [reached for run in group if (reached := reach(run, target, figure))]
    if len(spent) < len(group):
        return [f"{len(spent)} of {len(group)} did" if spent else "never", *5 * ["-"]]
    rounds = number([s.rounds for s in spent], Figure("rounds", format=".0f"))
    costs = [number([getattr(s, kind) for s in spent], kind) for kind in BYTES]
    times = [
        number([s.seconds for s in spent], "simulated_seconds"),
        number([s.seconds_nominal for s in spent], "simulated_seconds_nominal"),
    ]
    return [rounds, *costs, *times]


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
