"""What a run shows: a header, a line for each round, a summary; on a terminal, a progress bar."""

import time
from collections.abc import Collection, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedapp.attendance import Attendance
from fedapp.config import RunConfig
from fedapp.costs import human_bytes
from fedapp.figures import FIGURES, Figure
from fedapp.hosting import Hosting
from fedapp.run_directory import RunDirectory

MOST_NODES = 50  # that are shown one by one
MOST_CLIENTS = 5  # of a node


class RunConsole:
    """Show one run as it goes; use as a context manager."""

    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        num_parameters: int,
        notes: Sequence[str] = (),
    ) -> None:
        self.config, self.directory, self.num_parameters = config, directory, num_parameters
        self.notes = notes
        self.console = Console(highlight=False, markup=False, soft_wrap=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[latest]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.rounds = 0
        self.best: dict[str, tuple[float, float]] = {}  # figure -> its best, and its last
        self.totals = dict.fromkeys(("uplink_bytes", "downlink_bytes", "failures"), 0)
        self.started = time.perf_counter()

    def __enter__(self) -> "RunConsole":
        """Say which run this is and where its results go."""
        c = self.config
        what = "" if c.dataset == "quadratic" else f", model {c.model}"
        self.console.print(
            f"Run {self.directory.path.name}: {c.algorithm} on {c.dataset}{what} "
            f"({self.num_parameters:,} parameters), {c.num_clients} clients, "
            f"{c.clients_per_round} a round, {c.num_rounds} rounds, seed {c.seed}"
        )
        for text in (*self.notes, f"Results: {self.directory.path}"):
            self.console.print(text)
        self.progress.start()
        self.task = self.progress.add_task(c.algorithm, total=c.num_rounds, latest="")
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal as it was."""
        self.progress.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text)

    def round(self, record: dict[str, Any]) -> None:
        """Show a round in one line."""
        self._count(record)
        figures = _figures(record)
        self.console.print(
            f"round {record['round']:>{len(str(self.config.num_rounds))}}/{self.config.num_rounds}"
            f"  {'  '.join(figures)}  clients {record['clients']}"
            + (f" ({record['failures']} failed)" if record["failures"] else "")
            + f"  up {human_bytes(record['uplink_bytes'])}"
            f"  down {human_bytes(record['downlink_bytes'])}  {record['wall_seconds']:.2f} s"
        )
        self.progress.update(self.task, completed=record["round"], latest="  ".join(figures[:2]))

    def nodes(self, hosting: Hosting, deployed: bool) -> None:
        """Show the nodes before the first round: a table of a federation, a line of a simulation that lacks some."""
        rows = hosting.rows()
        summary = f"{len(hosting.clients)} of {hosting.num_clients} clients have a node"
        if not rows or not (deployed or hosting.has_own_data()):
            if len(hosting.clients) < hosting.num_clients:
                self.console.print(summary)
            return
        table = Table(box=None, pad_edge=False)
        for column in ("node", "clients", "samples", "state"):
            table.add_column(column, overflow="fold")
        for row in rows[:MOST_NODES]:
            samples = "" if row.samples is None else f"{row.samples:,}"
            table.add_row(str(row.node), _clients(row.clients), samples, row.problem or "ready")
        self.console.print(table)
        if len(rows) > MOST_NODES:
            wrong = sum(bool(row.problem) for row in rows[MOST_NODES:])
            self.console.print(
                f"and {len(rows) - MOST_NODES} more nodes, {wrong} of them not ready"
            )
        self.console.print(summary)

    def _count(self, record: dict[str, Any]) -> None:
        """Add a round to the summary; rounds themselves are not kept, for there may be very many."""
        self.rounds += 1
        for name in self.totals:
            self.totals[name] += record[name]
        for figure in _shown():
            if figure.source == "evaluation" and (value := record.get(figure.name)) is not None:
                best, _ = self.best.get(figure.name, (value, value))
                self.best[figure.name] = (figure.best((best, value)), value)

    def summary(self, attendance: Attendance | None = None, hosted: Collection[int] = ()) -> None:
        """Close with the run's results, and with who took part; `hosted` are the clients that have a node now."""
        if not self.rounds:
            return
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_row("rounds", str(self.rounds))
        for figure in _shown():
            if figure.name in self.best:
                best, last = map(figure.text, self.best[figure.name])
                table.add_row(figure.label, f"best {best}, last {last}")
        for direction in ("uplink", "downlink"):
            table.add_row(direction, human_bytes(self.totals[f"{direction}_bytes"]))
        if failures := self.totals["failures"]:
            table.add_row("failed clients", str(failures))
        if attendance:
            for name, text in attendance.summary(hosted):
                table.add_row(name, text)
        table.add_row("time", f"{time.perf_counter() - self.started:.1f} s")
        self.progress.stop()
        self.console.print(table)
        self.console.print(f"Results: {self.directory.path}")


def _clients(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:MOST_CLIENTS]))
    return f"{len(clients)}: {shown}, ..." if len(clients) > MOST_CLIENTS else shown


def _shown() -> list[Figure]:
    return [figure for figure in FIGURES.values() if figure.in_console]


def _figures(record: dict[str, Any]) -> list[str]:
    """Write a round's figures, the most telling first; say so if it was not evaluated."""
    known = [figure for figure in _shown() if record.get(figure.name) is not None]
    shown = [f"{figure.label} {figure.text(record[figure.name])}" for figure in known]
    if not any(figure.source == "evaluation" for figure in known):
        shown.insert(0, "not evaluated")
    return shown
