"""The commands that show something: data, models, runs, and whether the theorems hold."""

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from fedapp.commandline import Assignments, Presets, complete_key, read_config
from fedapp.config import RunConfig
from fedapp.errors import ConfigError

Picture = Annotated[Path, typer.Option("-o", "--output", help="the picture to write")]
Width = Annotated[
    float | None,
    typer.Option("--width", min=1, max=100, help="inches; default: by what is drawn"),
]
FontSize = Annotated[
    float | None, typer.Option("--font-size", min=1, max=100, help="points; default: 10")
]


def partition(
    presets: Presets = None,
    config: Assignments = None,
    width: Width = None,
    font_size: FontSize = None,
    output: Picture = Path("partition.png"),
) -> None:
    """Draw who holds which classes: one dot per client and class, its size by the count."""
    from fedapp.data import load_partition
    from fedapp.problems import kind_of
    from fedapp.report.partition import draw_partition

    _check_picture(output)
    run = read_config(presets or [], config or [])
    kind = kind_of(run)
    if kind.data is None:
        raise ConfigError(f"The {kind.name} problem has no classes: choose a data set of samples.")
    data = kind.data(run)
    held = load_partition(data, run)
    counts = held.class_counts(data.train_labels, data.num_classes)
    draw_partition(counts, _division(run), output, width or 0, font_size or 0)
    sizes = counts.sum(1)
    typer.echo(
        f"{output}: {run.num_clients} clients hold {sizes.min()} to {sizes.max()} samples each "
        f"(median {np.median(sizes):.10g}), {(counts > 0).sum(1).mean():.1f} classes on average"
    )


def _division(run: RunConfig) -> str:
    """Say how a data set is divided."""
    from fedapp.report.labels import dataset_name

    how = {
        "dirichlet": f"Dirichlet({run.partition_alpha:g})",
        "classes": f"{run.classes_per_client} classes per client",
        "writer": f"by {run.group or 'writer'}",
        "iid": "i.i.d.",
    }[run.partition]
    drawn = f", {run.samples_per_client} drawn by each" if run.samples_per_client else ""
    return f"{dataset_name(run.dataset)}, {how}, {run.num_clients} clients{drawn}"


def similarity(
    presets: Presets = None,
    config: Assignments = None,
    width: Width = None,
    font_size: FontSize = None,
    output: Picture = Path("similarity.png"),
) -> None:
    """Draw how alike the clients are: cosines of their full gradients at the initial model."""
    from fedapp.problems import kind_of, make_problem
    from fedapp.report.similarity import cosine_similarities, draw_similarities

    _check_picture(output)
    run = read_config(presets or [], config or [])
    if run.num_clients < 2:
        raise ConfigError("Similarity is between clients: set num-clients to 2 or more.")
    cosines = cosine_similarities(make_problem(run), range(run.num_clients))
    kind = kind_of(run)
    title = _division(run) if kind.data else kind.name
    draw_similarities(cosines, title, output, width or 0, font_size or 0)
    pairs = cosines[~np.eye(len(cosines), dtype=bool)]
    typer.echo(
        f"{output}: cosines of {pairs.min():.2f} to {pairs.max():.2f} between different clients, "
        f"{pairs.mean():.2f} on average; {(pairs > 0.5).sum(0) / len(cosines):.1f} others of each are above 0.5"
    )


def blocks(presets: Presets = None, config: Assignments = None) -> None:
    """Show how FedBCGD divides the config's model into blocks, and what each group uploads."""
    from rich.console import Console

    from fedapp.problems import kind_of
    from fedapp.report.blocks import blocks_table
    from strategies.fedbcgd import Options

    run = read_config(presets or [], config or [])
    Console().print(blocks_table(kind_of(run).outline(run).layout, run.table(Options).blocks))


Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="directories of runs, or that hold several")
]
BestBy = Annotated[
    str,
    typer.Option(
        "--best-by",
        help="the metric that --per chooses by; default: what is shown, on validation data if there are any",
    ),
]
METRIC = (
    "a metric of rounds.jsonl; default: test_accuracy, or the most telling one that the runs have"
)
Per = Annotated[
    list[str] | None,
    typer.Option(
        "--per",
        help="only the best runs for each value of this key; may be repeated",
        autocompletion=complete_key,
    ),
]


def plot(
    runs: Runs,
    x: Annotated[
        list[str] | None,
        typer.Option(
            "-x",
            "--x",
            help="rounds (default), bytes, total-bytes, time or nominal-time; repeated: one panel each",
        ),
    ] = None,
    y: Annotated[str, typer.Option("-y", "--y", help=METRIC)] = "",
    log: Annotated[bool, typer.Option("--log", help="logarithmic y axis")] = False,
    log_x: Annotated[bool, typer.Option("--log-x", help="logarithmic bytes and time")] = False,
    lowest: Annotated[float | None, typer.Option("--from", help="where the y axis begins")] = None,
    title: Annotated[str, typer.Option("--title")] = "",
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label", metavar="RUN=NAME", help="what the legend calls a run; may be repeated"
        ),
    ] = None,
    panels: Annotated[
        list[str] | None,
        typer.Option(
            "--panel",
            metavar="WORD[=TITLE]",
            help="a panel for the runs whose names begin so, in the legend or as directories; may be repeated",
        ),
    ] = None,
    best_by: BestBy = "",
    per: Per = None,
    width: Width = None,
    font_size: FontSize = None,
    output: Picture = Path("curves.png"),
) -> None:
    """Draw curves of runs against rounds, uplink bytes, total bytes or simulated time.

    Runs that differ in their seeds are one curve: their mean, with a band of one standard deviation.

    RUN is the directory of a run, or one that holds several.
    """
    from fedapp.report.curves import AXES, Look, draw_curves
    from fedapp.report.runs import best_per, figure_to_show, judged_by, load_runs

    _check_picture(output)
    chosen = x or ["rounds"]
    for name in chosen:
        if name not in AXES:
            raise ConfigError(f"-x {name} is not known: choose {', '.join(AXES)}.")
    loaded = load_runs(runs)
    y = figure_to_show(loaded, y)
    loaded = best_per(loaded, per, best_by or judged_by(loaded, y)) if per else loaded
    look = Look(
        title, log, log_x, lowest, width or 0, font_size or 0, labels or [], panels or [], per or []
    )
    draw_curves(loaded, chosen, y, output, look)
    typer.echo(str(output))


def grid(
    runs: Runs,
    x: Annotated[
        str,
        typer.Option(
            "-x", "--x", help="the config key of the columns", autocompletion=complete_key
        ),
    ],
    y: Annotated[
        str,
        typer.Option("-y", "--y", help="the config key of the rows", autocompletion=complete_key),
    ],
    value: Annotated[str, typer.Option("--value", help=METRIC)] = "",
    title: Annotated[str, typer.Option("--title")] = "",
    width: Width = None,
    font_size: FontSize = None,
    output: Picture = Path("grid.png"),
) -> None:
    """Draw a heat map: the runs' best metric over two config keys.

    RUN is the directory of a run, or one that holds several.
    """
    from fedapp.report.grid import draw_grid
    from fedapp.report.runs import figure_to_show, load_runs

    _check_picture(output)
    loaded = load_runs(runs)
    metric = figure_to_show(loaded, value)
    draw_grid(loaded, x, y, metric, output, title, width or 0, font_size or 0)
    typer.echo(str(output))


class TableFormat(StrEnum):
    """What a table is printed as."""

    MARKDOWN = "markdown"
    LATEX = "latex"
    CSV = "csv"
    JSON = "json"


def table(
    runs: Runs,
    figure: Annotated[str, typer.Option("--metric", "--figure", help=METRIC)] = "",
    target: Annotated[
        float | None,
        typer.Option(
            "--target", help="a value of the metric: also show what was spent to reach it"
        ),
    ] = None,
    best_by: BestBy = "",
    per: Per = None,
    form: Annotated[
        TableFormat, typer.Option("--format", help="what to print: CSV and JSON have plain numbers")
    ] = TableFormat.MARKDOWN,
) -> None:
    """Print the results of runs: means over seeds, and standard deviations.

    Means are of complete runs with different seeds. A run that is running, interrupted, failed or diverged has a line
    of its own that says so. With --per, each line tells how many settings it was chosen from, which of the chosen values
    are at the edge of those tried, and which keys were never varied. Runs with valid-share are chosen on their
    validation data.

    RUN is the directory of a run, or one that holds several.
    """
    from fedapp.report.choice import choose
    from fedapp.report.formats import FORMATS
    from fedapp.report.runs import figure_to_show, load_runs
    from fedapp.report.table import results

    loaded = load_runs(runs)
    figure = figure_to_show(loaded, figure)
    choice = choose(loaded, per, figure, best_by) if per else None
    made = results(choice.runs if choice else loaded, figure, target, choice)
    typer.echo(FORMATS[form](made))


def report(
    runs: Runs,
    output: Annotated[Path, typer.Option("-o", "--output", help="the page to write")] = Path(
        "report.html"
    ),
    target: Annotated[float, typer.Option("--target", help="test accuracy to reach")] = 0.9,
    title: Annotated[str, typer.Option("--title")] = "fedapp report",
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="do not write a page: serve one to this machine, new while runs work"
        ),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port", min=0, max=65535, help="where --serve listens; 0: any port that is free"
        ),
    ] = 8765,
) -> None:
    """Write one page with a table, curves and config differences of runs, to be opened from disk.

    RUN is the directory of a run, or one that holds several.
    """
    if serve:
        from fedapp.report.serve import serve_report

        serve_report(runs, title, target, port, typer.echo)
        return
    from fedapp.report.page import write_report
    from fedapp.report.runs import load_runs

    _check_directory(output)
    loaded = load_runs(runs)
    write_report(loaded, output, title, target)
    typer.echo(f"{output}: {len(loaded)} runs")


def _complete_run(incomplete: str) -> list[str]:
    from fedapp.manifest import DEFAULT_RESULTS
    from fedapp.report.watch import runs_in

    names = runs_in(DEFAULT_RESULTS.expanduser())
    return [name for name in names if name.startswith(incomplete)]


def watch(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="a run's directory, one that holds several, or a name in ~/fedapp-results; default: the latest run there",
            autocompletion=_complete_run,
        ),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", min=0.1, metavar="SECONDS", help="seconds between updates")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="show it once and end")] = False,
) -> None:
    """Follow a run: its metrics and curves, updated until it ends; by default the latest run.

    If RUN is a directory that holds several runs, the one written to last is shown.
    """
    from fedapp.report.watch import watch as watch_run

    watch_run(run, every, once)


PRESETS = Path(__file__).parents[2] / "experiments" / "theory"
NAMES = sorted(path.stem for path in PRESETS.glob("*.toml"))


def theory(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...",
            help=f"default: all of {', '.join(NAMES)}",
            autocompletion=lambda: NAMES,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="directory for runs and pictures; complete runs there are kept"),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=0, help="runs at a time; 0: in this process")
    ] = os.cpu_count() or 1,
    presets: Annotated[
        Path, typer.Option("--presets", help="directory of the theorems' sweeps")
    ] = PRESETS,
) -> None:
    """Check the papers' theorems: run them, fit the rates, and say which hold; without a NAME, all of them."""
    from fedapp.theory.check import check_theorems

    directory = (
        out or Path.home() / "fedapp-results" / time.strftime("theory-%Y%m%d-%H%M%S")
    ).absolute()
    if not check_theorems(names or [], presets, directory, workers):
        raise typer.Exit(1)


def _check_directory(output: Path) -> None:
    if output.is_dir():
        raise ConfigError(f"-o {output} is a directory: give the name of a file.")
    if not output.parent.is_dir():
        raise ConfigError(f"-o {output} cannot be written: there is no directory {output.parent}.")


def _check_picture(output: Path) -> None:
    _check_directory(output)
    if output.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(
            f"-o {output} is not a picture that can be written: use .png, .svg or .pdf."
        )
