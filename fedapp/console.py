"""What a run shows: a header, a line for each round, a summary; on a terminal, a progress bar."""

from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedapp.attendance import Attendance
from fedapp.config import RunConfig
from fedapp.durations import human_time
from fedapp.figures import FIGURES, Figure, human_bytes
from fedapp.hosting import Hosting
from fedapp.names import one_line
from fedapp.observers import Observer
from fedapp.problems import kind_of, subject
from fedapp.rounds_file import Record
from fedapp.terminal import make_console

MOST_NODES = 50  # that are shown one by one
MOST_CLIENTS = 5  # named for one node
# What the summary adds up over the rounds.
TOTALS = ("uplink_bytes", "downlink_bytes", "failures", "eval_uplink_bytes", "eval_downlink_bytes", "eval_failures")  # fmt: skip


class RunConsole(Observer):
    """Shows one run as it goes."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        num_parameters: int,
        notes: Sequence[str] = (),
        attendance: Attendance | None = None,
    ) -> None:
        self.config, self.directory, self.num_parameters = config, directory, num_parameters
        self.notes, self.attendance = notes, attendance
        self.hosting: Hosting | None = None
        self.console = make_console(highlight=False, markup=False, soft_wrap=True)
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
        self.task = self.progress.add_task(config.algorithm, total=config.num_rounds, latest="")
        self.rounds = 0
        self.best: dict[str, tuple[float, float]] = {}  # metric -> its best, and its last
        self.totals = dict.fromkeys(TOTALS, 0)
        self.seconds = 0.0  # the rounds' time, as it is recorded

    def show_header(self) -> None:
        """Say which run this is and where its results go."""
        c = self.config
        what = f", model {c.model}" if kind_of(c).uses_model else ""
        header = (
            f"Run {self.directory.name}: {c.algorithm} on {subject(c)}{what} "
            f"({self.num_parameters:,} parameters), {c.num_clients} clients, "
            f"{c.clients_per_round} a round, {c.num_rounds} rounds, seed {c.seed}"
        )
        for text in (header, *self.notes, f"Results: {self.directory}"):
            self.console.print(one_line(text))

    def show_complete(self) -> None:
        """Say that there is nothing left to run."""
        self.show_header()
        self.console.print("This run is complete already.")

    def on_start(self) -> None:
        """Show the header, and a progress bar on a terminal."""
        self.show_header()
        self.progress.start()

    def on_round(self, record: Record) -> None:
        """Show a round in one line."""
        self._count(record)
        figures = _figures(record)
        round_ = f"{record['round']:>{len(str(self.config.num_rounds))}}"
        failed = f" ({record['failures']} failed)" if record["failures"] else ""
        if record.get("eval_failures"):
            failed += f" ({record['eval_failures']} not evaluated)"
        first = f"round {round_}/{self.config.num_rounds}"
        rest = f"clients {record['clients']}{failed}  up {human_bytes(record['uplink_bytes'])}"
        rest += (
            f"  down {human_bytes(record['downlink_bytes'])}  {human_time(record['wall_seconds'])}"
        )
        shown = list(figures)
        while (
            self.console.is_terminal
            and len(shown) > 1
            and len("  ".join([first, *shown, rest])) > self.console.width
        ):
            shown.pop()  # so that a round is one line
        self.console.print("  ".join([first, *shown, rest]))
        self.progress.update(self.task, completed=record["round"], latest="  ".join(figures[:2]))

    def on_nodes(self, hosting: Hosting, deployed: bool) -> None:
        """Show the nodes of a federation in a table, and of a simulation only that some are missing."""
        self.hosting = hosting
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

    def _count(self, record: Record) -> None:
        """Add a round to the summary; rounds themselves are not kept, for there may be very many."""
        self.rounds += 1
        self.seconds += record["wall_seconds"]
        for name in self.totals:
            self.totals[name] += record.get(name) or 0
        for figure in _shown():
            if figure.source == "evaluation" and (value := record.get(figure.name)) is not None:
                best, _ = self.best.get(figure.name, (value, value))
                self.best[figure.name] = (figure.best((best, value)), value)

    def on_end(self, error: BaseException | None) -> None:
        """Leave the terminal as it was, with the results of the run and who took part."""
        self.progress.stop()
        if self.rounds:
            self._show_summary()

    def _show_summary(self) -> None:
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_row("rounds", str(self.rounds))
        for figure in _shown():
            if figure.name in self.best:
                best, last = map(figure.text, self.best[figure.name])
                table.add_row(figure.label, f"best {best}, last {last}")
        for direction in ("uplink", "downlink"):
            table.add_row(direction, human_bytes(self.totals[f"{direction}_bytes"]))
        up, down = self.totals["eval_uplink_bytes"], self.totals["eval_downlink_bytes"]
        if down:
            table.add_row("evaluation", f"up {human_bytes(up)}, down {human_bytes(down)}")
        for name, label in (
            ("failures", "failed clients"),
            ("eval_failures", "failed to evaluate"),
        ):
            if failures := self.totals[name]:
                table.add_row(label, str(failures))
        if self.attendance and self.hosting:
            for name, text in self.attendance.summary(self.hosting.clients):
                table.add_row(name, text)
        table.add_row("wall time", human_time(self.seconds))
        self.console.print(table)
        self.console.print(one_line(f"Results: {self.directory}"))


def _clients(clients: Sequence[int]) -> str:
    shown = ", ".join(map(str, clients[:MOST_CLIENTS]))
    return f"{len(clients)}: {shown}, ..." if len(clients) > MOST_CLIENTS else shown


def _shown() -> list[Figure]:
    return [figure for figure in FIGURES.values() if figure.in_console]


def _figures(record: Record) -> list[str]:
    """Write a round's metrics, the main one first, or that it was not evaluated."""
    known = [figure for figure in _shown() if record.get(figure.name) is not None]
    shown = [f"{figure.label} {figure.text(record[figure.name])}" for figure in known]
    if not any(figure.source == "evaluation" for figure in known):
        shown.insert(0, "not evaluated")
    return shown
