"""Tables of the results of runs, and of what they spent to reach a target."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from fedapp.durations import human_time
from fedapp.figures import TOTAL, find_figure, human_bytes
from fedapp.report.runs import Run, over_seeds, reach

BYTES = ("uplink_bytes", "downlink_bytes", TOTAL)


def markdown_table(runs: Sequence[Run], figure: str, target: float) -> str:
    """Return a line for each setting: means over its seeds and, if there are several, their ranges.

    Means are of complete runs; every other run has a line of its own that says what it is.
    """
    aim = f"{100 * target:g} %" if find_figure(figure).unit == "fraction" else f"{target:g}"
    lines = [
        f"| run | best | last | uplink a round | rounds to {aim} | uplink to {aim} "
        f"| downlink to {aim} | total to {aim} | simulated time | with nominal bits |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, group in over_seeds(runs):
        if outcome := _best_and_last(group, figure):
            cells = [name, *outcome, *_spent(group, figure, target)]
        else:
            cells = [name, f"no {find_figure(figure).label}", *8 * ["-"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def closing_table(runs: Sequence[Run], figure: str) -> Table:
    """Lay out the results of a sweep: a line for each setting, means over its seeds."""
    title = find_figure(figure).label
    table = Table(
        "run", f"best {title}", f"last {title}", "rounds", "uplink", "downlink", "total", "wall time",
        box=None, pad_edge=False,
    )  # fmt: skip
    for name, group in over_seeds(runs):
        shown = _best_and_last(group, figure) or ["-", "-"]
        *sent, seconds = (
            _average([sum(value or 0 for value in run.column(kind)) for run in group])
            for kind in (*BYTES, "wall_seconds")
        )
        rounds = _mean([len(run.rounds) for run in group], ".0f")
        table.add_row(Text(name), *shown, rounds, *map(human_bytes, sent), human_time(seconds))
    return table


def _best_and_last(group: Sequence[Run], figure: str) -> list[str]:
    """Write the best and the last figure, means over the seeds; nothing if a run has none."""
    known = [[v for v in run.column(figure) if v is not None] for run in group]
    if not all(known):
        return []
    best, last = [run.best(figure) for run in group], [values[-1] for values in known]
    form = find_figure(figure).format
    return [_mean(best, form), _mean(last, form)]


def _spent(group: Sequence[Run], figure: str, target: float) -> list[str]:
    a_round = [run.running_total("uplink_bytes")[-1] / len(run.rounds) for run in group]
    cells = [human_bytes(_average(a_round))]
    spent = [reached for run in group if (reached := reach(run, target, figure))]
    if len(spent) < len(group):
        return [*cells, f"{len(spent)} of {len(group)} did" if spent else "never", *5 * ["-"]]
    cells.append(_mean([s.rounds for s in spent], ".0f"))
    means = {
        kind: _average([getattr(s, kind) for s in spent])
        for kind in (*BYTES, "seconds", "seconds_nominal")
    }
    cells += [human_bytes(means[kind]) for kind in BYTES]
    cells += [f"{means['seconds']:,.0f} s", f"{means['seconds_nominal']:,.0f} s"]
    return cells


def _mean(values: Sequence[float], form: str) -> str:
    mean, low, high = (f"{f(values):{form}}" for f in (_average, min, max))
    return mean if low == high else f"{mean} ({low} to {high})"


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)
