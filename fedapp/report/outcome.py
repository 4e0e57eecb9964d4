"""The end of a sweep: how its runs ended, and the table that it closes with."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedapp.config import RunConfig
from fedapp.errors import ConfigError, RunError
from fedapp.names import one_line

MOST_NAMES = 20  # in a list of runs


@dataclass
class Tally:
    """How the runs of a command ended: the exit code, and which of them were not run, or not to their end."""

    code: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # run -> why
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)  # complete already, or diverged before
    ran: list[str] = field(default_factory=list)  # to their end

    def refuse(self, config: RunConfig, why: str) -> None:
        """Count a run that is not started."""
        self.refused[config.run_name] = why
        self.code = max(self.code, 1)

    def fail(self, config: RunConfig, error: ConfigError | RunError) -> None:
        """Count a run that ended early."""
        self.failed[config.run_name] = one_line(str(error))
        self.code = max(self.code, 2 if isinstance(error, ConfigError) else 1)


def show_outcome(runs: Sequence[RunConfig], best_by: str, per: Sequence[str], tally: Tally) -> None:
    """Print the results of a sweep: a table of its runs, and which of them are not complete."""
    from fedapp.manifest import results_dir, run_path
    from fedapp.report.choice import choose
    from fedapp.report.runs import Run, figure_to_show, load_runs
    from fedapp.report.table import closing_table
    from fedapp.terminal import make_console

    loaded: list[Run] = []
    for place in map(run_path, runs):
        if (place / "rounds.jsonl").is_file():
            try:
                loaded += load_runs([place])
            except ConfigError as error:
                print(one_line(str(error)), file=sys.stderr)
    if best_by == "test_accuracy" and all(math.isnan(run.best(best_by)) for run in loaded):
        best_by = figure_to_show(loaded)
    if loaded:
        choice = None
        try:
            choice = choose(loaded, per, best_by) if per else None
        except ConfigError as error:  # no run has the metric: all are shown
            print(one_line(str(error)), file=sys.stderr)
        print()
        make_console(width=None if sys.stdout.isatty() else 160).print(
            closing_table(choice.runs if choice else loaded, best_by, choice)
        )
        if choice:
            print(choice.in_words())
    for what, names in (
        ("Run", tally.ran),
        ("Skipped, because they had ended before", tally.skipped),
        ("Refused, because their directories hold other runs", list(tally.refused)),
        ("Failed", list(tally.failed)),
    ):
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            print(f"{what}: {', '.join(names[:MOST_NAMES])}{more}")
    print(f"Results: {results_dir(runs[0])}")
