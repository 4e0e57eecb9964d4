"""The live view of a run in the terminal: how far it is, its latest metrics, its curves.

All of it comes from the run's directory: the run itself goes on in another process, or is over.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedapp.durations import human_time
from fedapp.errors import ConfigError
from fedapp.figures import (
    TOTAL,
    Figure,
    figures_of,
    find_figure,
    human_bytes,
    is_of_clients,
    value_in,
)
from fedapp.manifest import DEFAULT_RESULTS, PARTIAL
from fedapp.names import did_you_mean, one_line
from fedapp.problems import find_kind
from fedapp.report.runs import read_run
from fedapp.report.status import State, Status, status_of

SIDE_BY_SIDE = 80  # columns from which on there is room for two things in a row
HEADER = 4  # lines
LOWEST_CURVE = 6  # lines of a curve with its frame, below which it says nothing
LOG_FROM = 100.0  # largest over smallest from which on a curve is on a log scale
PRINTED = 34  # lines of a view that is printed, not shown
RECENT = 20  # rounds whose time tells how long the next ones take
# The bit of each dot of a Braille character, row by row; the character without any is U+2800.
DOTS = [(0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80)]
NO_DOTS = 0x2800


def watch(directory: Path | None = None, every: float = 1.0, once: bool = False) -> None:
    """Show a run, refreshed every few seconds, until it ends; then its last view stays.

    Of several runs in a directory, it is the one that was written to last. With `once`, or when
    the output is not a terminal, the view is printed once.
    """
    place = find_place(directory).resolve()
    if not place.parent.is_dir():
        raise ConfigError(f"{directory} cannot be watched: there is no directory {place.parent}.")
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{directory} cannot be watched: it is a file, not a run's directory.")
    run, console = WatchedRun(place), Console(highlight=False)
    run.read_new()
    if sys.stdout.isatty() and not console.is_dumb_terminal and not once and not run.ended:
        with (
            suppress(KeyboardInterrupt),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while not run.ended:
                live.update(view(run, *console.size), refresh=True)
                time.sleep(every)
                run.read_new()
    # A terminal needs a line for its prompt; other outputs have room.
    console.print(view(run, console.width, console.height - 1 if sys.stdout.isatty() else PRINTED))


class WatchedRun:
    """A run, as far as it has been read from a place where it is or will be."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.directory: Path | None = None
        self.config: dict[str, Any] = {}
        self.rounds: list[dict[str, Any]] = []
        self.status = Status()
        self.written = 0.0  # when its last round was
        self.ended = False
        self._seen: tuple[int, ...] = ()  # which file, how long and of when

    @property
    def num_rounds(self) -> int:
        """How many rounds it is to have."""
        return int(self.config["num-rounds"])

    @property
    def round(self) -> int:
        """The last round that it has had; 0 before the first."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    def read_new(self) -> None:
        """Read the run, if it has changed; a last line that is not whole yet does not count."""
        self.directory = self.directory or find_run(self.place)
        if not self.directory:
            return
        # Asked before the rounds are read, of which none follows it.
        closed = (self.directory / "model.safetensors").exists()
        try:
            status = (self.directory / "rounds.jsonl").stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if seen != self._seen:
                run = read_run(self.directory)
                self.config, self.rounds, self.status = run.config, run.rounds, run.status
                self._seen, self.written = seen, status.st_mtime
            elif not self.ended:
                self.status = status_of(self.directory, self.config, self.rounds)
        except FileNotFoundError:  # removed, perhaps to start again, or not complete yet
            return
        self.ended = closed or self.status.state in (State.COMPLETE, State.DIVERGED, State.FAILED)

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Return the rounds that have a metric, and its value in each."""
        known = [record for record in self.rounds if record.get(name) is not None]
        return [record["round"] for record in known], [record[name] for record in known]

    def total(self, name: str) -> float:
        """Return the sum of a metric over the rounds."""
        return sum(self.series(name)[1])

    def seconds_left(self) -> float:
        """Estimate the time to the last round from that of the recent ones."""
        recent = self.series("wall_seconds")[1][-RECENT:]
        return (self.num_rounds - self.round) * sum(recent) / max(len(recent), 1)


def find_place(given: Path | None) -> Path:
    """Return where to look for a run: by default in the results directory; a name is that of a run in there."""
    if given is None:
        return DEFAULT_RESULTS.expanduser()
    place = given.expanduser()
    is_name = len(place.parts) == 1 and not place.exists()
    return DEFAULT_RESULTS.expanduser() / place if is_name else place


def runs_in(results: Path) -> list[str]:
    """Return the names of the runs in a directory."""
    if not results.is_dir():
        return []
    runs = (run for run in results.iterdir() if PARTIAL not in run.name)
    return sorted(run.name for run in runs if (run / "rounds.jsonl").is_file())


def find_run(place: Path) -> Path | None:
    """Return the run in a directory: itself, or the one of several that was written to last."""
    if not place.is_dir():
        return None
    written: dict[Path, float] = {}
    for run in (place, *place.iterdir()):
        with suppress(FileNotFoundError, NotADirectoryError):
            if run == place or PARTIAL not in run.name:
                written[run] = (run / "rounds.jsonl").stat().st_mtime
    return place if place in written else max(written, key=written.__getitem__, default=None)


def _latest_beside(place: Path) -> str:
    """Return " (the latest there is 'x')" for the run beside a place that was written to last; "" if there is none."""
    latest = None if place.exists() else find_run(place.parent)
    return f" (the latest there is {latest.name!r})" if latest else ""


def view(run: WatchedRun, width: int, height: int) -> RenderableType:
    """Lay out a run in a number of columns and, if that is possible, lines."""
    if not run.config:
        what = "holds no run yet" if run.place.is_dir() else "is not there yet"
        what += did_you_mean(run.place.name, runs_in(run.place.parent)) or _latest_beside(run.place)
        return Panel(Text(f"Waiting for a run: {one_line(str(run.place))} {what}."), width=width)
    if not run.rounds:
        what = "It ended before its first round." if run.ended else "No rounds yet."
        why = one_line(run.status.reason)
        return Group(_header(run, width), Panel(Text(f"{what} {why}".strip()), width=width))
    figures = _figures(run, width)
    left = height - HEADER - (figures.height or 0)
    return Group(_header(run, width), figures, *_curves(run, width, left))


def _uses_model(config: Mapping[str, Any]) -> bool:
    """Tell whether a run's problem has a model; so does one that only a newer version knows, as most do."""
    try:
        return find_kind(config.get("problem", ""), config["dataset"], config["model"]).uses_model
    except ConfigError:
        return True


def _header(run: WatchedRun, width: int) -> Panel:
    """Say which run it is and how far."""
    config = run.config
    model = f", {config['model']}" if _uses_model(config) else ""
    what = Text(
        f"{config['algorithm']} on {config['dataset']}{model}, {config['num-clients']} clients, "
        f"{config['clients-per-round']} a round, seed {config['seed']}",
        no_wrap=True,
        overflow="ellipsis",
    )
    spent = f"{human_time(run.total('wall_seconds'))} so far"
    if run.ended:
        spent = f"took {human_time(run.total('wall_seconds'))}"
    elif run.rounds:
        spent += f", about {human_time(run.seconds_left())} left"
    progress = Table.grid(padding=(0, 1), expand=True)
    progress.add_column(no_wrap=True)
    progress.add_column(ratio=1)
    progress.add_column(no_wrap=True)
    bar = ProgressBar(total=run.num_rounds, completed=run.round)
    progress.add_row(Text(f"round {run.round} of {run.num_rounds}", "bold"), bar, Text(spent))
    name = Text(one_line((run.directory or run.place).name), "bold")
    name.truncate(width - 6, overflow="ellipsis")
    return Panel(
        Group(what, progress),
        title=name,
        title_align="left",
        subtitle=_state(run),
        subtitle_align="right",
        width=width,
        height=HEADER,
    )


def _state(run: WatchedRun) -> Text:
    """Say whether the run goes on."""
    target = float(run.config["target-accuracy"])
    if run.status.complete and run.round < run.num_rounds:
        return Text(f"ended: test accuracy {target:g} is reached", "green")
    if run.status.complete:
        return Text("complete", "green")
    if run.status.state in (State.DIVERGED, State.FAILED):
        return Text(run.status.text, "red")
    if run.ended:
        return Text(f"ended before round {run.num_rounds}", "yellow")
    since = f"last round {human_time(max(time.time() - run.written, 0))} ago" if run.rounds else ""
    parts = [str(run.status.state), *([since] if since else [])]
    return Text(", ".join(parts), "" if run.status.state is State.RUNNING else "yellow")


def _figures(run: WatchedRun, width: int) -> Panel:
    """Lay out the latest and the best metrics, beside or above what was sent."""
    learnt, sent = _learnt(run), _sent(run)
    if width >= SIDE_BY_SIDE:
        both = Table.grid(padding=(0, 2))
        both.add_column(min_width=width // 2 - 2)  # the curves' middle
        both.add_row(learnt, sent)
        return Panel(both, width=width, height=3 + max(learnt.row_count, sent.row_count))
    height = 4 + learnt.row_count + sent.row_count
    return Panel(Group(learnt, sent), width=width, height=height)


def _figures_with_values(run: WatchedRun, source: str) -> list[Figure]:
    """Return the metrics that a run has; of the clients' evaluations, only those that the console shows."""
    found = [figure for figure in figures_of(source) if run.series(figure.name)[1]]
    return [figure for figure in found if figure.in_console or not is_of_clients(figure.name)]


def _learnt(run: WatchedRun) -> Table:
    """List each metric's last and best value, and their rounds."""
    table = _table("", "last", "round", "best", "round")
    every = int(run.config.get("eval-every", 1))
    evaluated = run.round if run.round == run.num_rounds else run.round - run.round % every
    # Every round has a train loss, or with differential privacy an epsilon; with neither, the run diverged at once.
    trained = _figures_with_values(run, "training") or [find_figure("train_loss")]
    for figure in [*_figures_with_values(run, "evaluation"), *trained]:
        rounds, values = run.series(figure.name)
        due = run.round if figure.source == "training" else evaluated
        if not rounds or rounds[-1] < due:  # records leave out what is not finite
            missing = "no answer" if is_of_clients(figure.name) else "diverged"
            last = [Text(missing, "red"), Text(str(due), "dim")]
        else:
            last = [Text(_number(figure, values[-1]), "bold"), Text(str(rounds[-1]), "dim")]
        best = [Text("-"), Text("")]
        if values:
            value = figure.best(values)
            at = rounds[values.index(value)]
            best = [Text(_number(figure, value), "green"), Text(str(at), "dim")]
        table.add_row(figure.label, *last, *best)
    return table


def _sent(run: WatchedRun) -> Table:
    """List what the last round and all rounds sent, and who took part."""
    last, table = run.rounds[-1], _table("", "last", "so far")
    for name in ("uplink", "downlink"):
        amounts = (last.get(f"{name}_bytes") or 0, run.total(f"{name}_bytes"))
        table.add_row(name, *(human_bytes(amount) for amount in amounts))
    amounts = value_in(last, TOTAL) or 0, run.total("uplink_bytes") + run.total("downlink_bytes")
    table.add_row("total", *(human_bytes(amount) for amount in amounts))
    table.add_row("clients", _count(last.get("clients")), "")
    failures = _count(run.total("failures"))
    style = "red" if failures != "0" else ""
    table.add_row("failures", _count(last.get("failures")), Text(failures, style))
    if down := run.total("eval_downlink_bytes"):
        table.add_row("evaluation", "", human_bytes(down + run.total("eval_uplink_bytes")))
        failures = _count(run.total("eval_failures"))
        style = "red" if failures != "0" else ""
        table.add_row("not evaluated", "", Text(failures, style))
    return table


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value > 1e9 else f"{value:.0f}"


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for title in titles:
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    return table


def _curves(run: WatchedRun, width: int, height: int) -> list[RenderableType]:
    """Draw the main metric of the run and that of its training in a number of lines, or what fits of them."""
    trained = _figures_with_values(run, "training")
    drawn = _figures_with_values(run, "evaluation")[:1] + trained[:1]
    if len(drawn) == 2 and width >= SIDE_BY_SIDE:
        both = Table.grid()
        half = width // 2
        both.add_row(
            _curve(run, drawn[0], half, height), _curve(run, drawn[1], width - half, height)
        )
        return [both]
    fitting = drawn[: max(height // LOWEST_CURVE, 1)]
    lines = [height // len(fitting) + (n < height % len(fitting)) for n in range(len(fitting))]
    return [_curve(run, figure, width, high) for figure, high in zip(fitting, lines, strict=True)]


def _curve(run: WatchedRun, figure: Figure, width: int, height: int) -> Panel:
    """Draw one metric over the rounds, with the ranges of both."""
    rounds, values = run.series(figure.name)
    low, high = min(values), max(values)
    log = figure.unit != "fraction" and low > 0 and high / low > LOG_FROM
    ends = [_number(figure, high), _number(figure, low)]
    margin = max(map(len, ends))
    heights = [math.log10(value) for value in values] if log else values
    # Besides the dots: two sides and spaces, the labels and the axis; two borders and the rounds.
    columns, lines = max(width - 4 - margin - 2, 1), max(height, LOWEST_CURVE) - 3
    labels = lines * [""]
    if low < high:
        labels[0], labels[-1] = ends
    else:
        labels[lines // 2] = ends[0]
    drawing = Text(no_wrap=True, overflow="crop")
    style = "cyan" if figure.source == "evaluation" else "magenta"
    for label, dots in zip(labels, braille(rounds, heights, columns, lines), strict=True):
        drawing.append(f"{label:>{margin}} {'┤' if label else '│'}", "dim")
        drawing.append(dots + "\n", style)
    begin, end = f"{rounds[0]} " if len(rounds) > 1 else "", f" round {rounds[-1]}"
    axis = f"{begin}{'─' * (columns - len(begin) - len(end))}{end}"
    drawing.append(f"{'':{margin}} └{axis}", "dim")
    title = Text(figure.label, style).append(", log scale" if log else "", "dim")
    return Panel(drawing, title=title, title_align="left", width=width, border_style="dim")


def braille(xs: Sequence[float], ys: Sequence[float], width: int, height: int) -> list[str]:
    """Draw the line through some points in lines of Braille characters, each of 2 by 4 dots.

    The points fill the drawing: the smallest x is at the left, the largest y at the top.
    """
    across = [round(x * (2 * width - 1)) for x in _scaled(xs)]
    down = [round((1 - y) * (4 * height - 1)) for y in _scaled(ys)]
    points = list(zip(across, down, strict=True))
    characters = [[NO_DOTS] * width for _ in range(height)]
    for (x, y), (next_x, next_y) in pairwise(points[:1] + points):
        steps = max(abs(next_x - x), abs(next_y - y), 1)
        for step in range(steps + 1):
            column = x + round(step * (next_x - x) / steps)
            row = y + round(step * (next_y - y) / steps)
            characters[row // 4][column // 2] |= DOTS[row % 4][column % 2]
    return ["".join(map(chr, line)) for line in characters]


def _scaled(values: Sequence[float]) -> list[float]:
    """Map numbers to [0, 1], from the smallest to the largest; to the middle if all are the same."""
    if not values:
        return []
    # Over the largest first, so that no difference overflows.
    largest = max(map(abs, values)) or 1.0
    low, high = min(values) / largest, max(values) / largest
    return [(value / largest - low) / (high - low) if high > low else 0.5 for value in values]


def _number(figure: Figure, value: float) -> str:
    """Write a value in at most eight characters, or nine with a minus."""
    short = figure.text(value)
    return f"{value:.2e}" if "e" in short or len(short) > 8 else short
