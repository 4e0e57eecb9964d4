"""What a run shows: a header, a line for each round, a summary; on a terminal, a progress bar."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedapp.config import RunConfig
from fedapp.records import RunDirectory


def human_bytes(count: float) -> str:
    """Write a number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.0f} TB"


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
        self.records: list[dict[str, Any]] = []
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
        self.records.append(record)
        figures = _figures(record)
        self.console.print(
            f"round {record['round']:>{len(str(self.config.num_rounds))}}/{self.config.num_rounds}"
            f"  {figures}"
            + ("" if (loss := record.get("train_loss")) is None else f"  train loss {loss:.4g}")
            + f"  clients {record['clients']}"
            + (f" ({record['failures']} failed)" if record["failures"] else "")
            + f"  up {human_bytes(record['uplink_bytes'])}"
            f"  down {human_bytes(record['downlink_bytes'])}  {record['wall_seconds']:.2f} s"
        )
        self.progress.update(self.task, completed=record["round"], latest=figures)

    def summary(self) -> None:
        """Close with what the run came to."""
        if not self.records:
            return
        table = Table(show_header=False, box=None, pad_edge=False)
        table.add_row("rounds", str(len(self.records)))
        for name, best in (("test_accuracy", max), ("gap", min), ("distance", min)):
            values = [r[name] for r in self.records if r.get(name) is not None]
            if values:
                shown = f"best {best(values):.4g}, last {values[-1]:.4g}"
                table.add_row(name.replace("_", " "), shown)
        for direction in ("uplink", "downlink"):
            total = sum(r[f"{direction}_bytes"] for r in self.records)
            table.add_row(direction, human_bytes(total))
        if failures := sum(r["failures"] for r in self.records):
            table.add_row("failed clients", str(failures))
        table.add_row("time", f"{time.perf_counter() - self.started:.1f} s")
        self.progress.stop()
        self.console.print(table)
        self.console.print(f"Results: {self.directory.path}")


def _figures(record: dict[str, Any]) -> str:
    formats = {"test_accuracy": ".4f", "test_loss": ".4g", "gap": ".4g", "distance": ".4g"}
    formats["epsilon"] = ".4g"
    shown = [
        f"{name.replace('_', ' ')} {record[name]:{form}}"
        for name, form in formats.items()
        if record.get(name) is not None
    ]
    return "  ".join(shown) or "not evaluated"
