"""Run the theorems' sweeps, and show the results: a table, and a picture for each theorem."""

import json
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.files import writable_directory
from fedapp.parallel import run_all
from fedapp.parsing import parse_run_config
from fedapp.report.panels import draw_panels
from fedapp.report.runs import load_runs
from fedapp.report.status import State
from fedapp.sweeps import read_runs
from fedapp.theory import THEOREMS
from fedapp.theory.outcome import Finding, Outcome


def plan(name: str, presets: Path, directory: Path) -> list[RunConfig]:
    """Return the runs of a theorem's sweep."""
    path = presets / f"{name}.toml"
    if not path.is_file():
        raise ConfigError(
            f"{path} is not there: run this in a clone of the repository, or give --presets."
        )
    where = {"results-dir": str(directory / name)}
    return [
        parse_run_config(run.values | {"run-name": run.name} | where) for run in read_runs(path)
    ]


def conclude(name: str, directory: Path) -> Outcome:
    """Read a theorem's runs and compare them with what it says."""
    try:
        runs = load_runs([directory / name])
        if left := [
            run for run in runs if run.status.state not in (State.COMPLETE, State.DIVERGED)
        ]:
            told = f"{left[0].name}: {left[0].status.text}"
            return Outcome([Finding("its runs", "complete", told, False)], [])
        check = THEOREMS[name].check
        assert check is not None  # its runs are not played
        return check(runs)
    except (IndexError, KeyError, ValueError) as error:  # runs that it needs have no rounds
        told = f"runs are missing ({type(error).__name__}: {error})"
        return Outcome([Finding("its runs", "complete", told, False)], [])


def play(name: str, presets: Path, directory: Path) -> Outcome:
    """Play a theorem's runs in this process, and compare them with what it says."""
    theorem = THEOREMS[name]
    assert theorem.play is not None
    try:
        with np.errstate(all="ignore"):
            return theorem.play(plan(name, presets, directory))
    except (ArithmeticError, IndexError, KeyError, ValueError) as error:
        told = f"they ended early ({type(error).__name__}: {error})"
        return Outcome([Finding("its runs", "complete", told, False)], [])


def play_all(
    names: Sequence[str], presets: Path, directory: Path, workers: int
) -> Iterator[tuple[str, Outcome]]:
    """Play theorems, `workers` at a time (0: in this process); yield each as it ends."""
    if workers == 0 or not names:
        yield from ((name, play(name, presets, directory)) for name in names)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        playing = {pool.submit(play, name, presets, directory): name for name in names}
        for ended in as_completed(playing):
            yield playing[ended], ended.result()


def check_theorems(names: Sequence[str], presets: Path, directory: Path, workers: int) -> bool:
    """Check the theorems (all, if none is named); return whether all of them hold."""
    for name in names:
        if name not in THEOREMS:
            raise ConfigError(f"There is no theorem {name!r}: choose {', '.join(THEOREMS)}.")
    chosen = list(names) or list(THEOREMS)
    planned = {name: plan(name, presets, directory) for name in chosen}
    played = [name for name in chosen if THEOREMS[name].play]
    writable_directory("--out", directory)
    console = Console(highlight=False)
    # Long runs first, so that no worker is left with one at the end.
    configs = sorted(
        (config for name, runs in planned.items() if name not in played for config in runs),
        key=lambda c: -c.num_rounds * c.clients_per_round * (3 + c.local_steps),
    )
    console.print(
        f"{len(configs)} runs, {max(workers, 1)} at a time, in {directory}; {len(played)} theorems are played"
    )
    progress = Progress(
        TextColumn("running"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    with progress:
        task = progress.add_task("", total=len(configs) + len(played))
        found = {}
        for name, outcome in play_all(played, presets, directory, workers):
            progress.advance(task)
            found[name] = outcome
        for config, error in run_all(configs, workers):
            progress.advance(task)
            if error:
                console.print(f"{config.run_name} ended early: {error}")
    outcomes = {name: found.get(name) or conclude(name, directory) for name in chosen}
    for name, outcome in outcomes.items():
        if outcome.panels:
            draw_panels(outcome.panels, THEOREMS[name].title, directory / f"{name}.png")
    rows = [
        (THEOREMS[name].title, replace(f, scope=f.scope or THEOREMS[name].scope))
        for name, outcome in outcomes.items()
        for f in outcome.findings
    ]
    (directory / "theory.md").write_text(markdown(rows))
    facts = [{"theorem": title} | asdict(finding) for title, finding in rows]
    (directory / "theory.json").write_text(json.dumps(facts, indent=2) + "\n")
    console.print(table(rows))
    held = sum(finding.holds for _, finding in rows)
    console.print(f"{held} of {len(rows)} hold. Table and pictures: {directory}")
    return held == len(rows)


def table(rows: Iterable[tuple[str, Finding]]) -> Table:
    """Lay the findings out for a terminal."""
    shown = Table("theorem", "hypotheses", "predicted", "observed", "holds")
    for title, finding in rows:
        holds = "yes" if finding.holds else "[bold red]NO[/]"
        claim = f"{title}: {finding.claim}"
        shown.add_row(claim, finding.scope, finding.predicted, finding.observed, holds)
    return shown


def markdown(rows: Iterable[tuple[str, Finding]]) -> str:
    """Write the findings as a Markdown table."""
    lines = ["| theorem | hypotheses | predicted | observed | holds |", "|---|---|---|---|---|"]
    for title, f in rows:
        holds = "yes" if f.holds else "**no**"
        cells = (f"{title}: {f.claim}", f.scope, f.predicted, f.observed, holds)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
