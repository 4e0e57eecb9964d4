"""Federated learning as a Flower app: run experiments, and look at data, models and runs."""

import sys
import textwrap
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedapp.commandline import Assignments, Presets, complete_key, read_config
from fedapp.errors import ConfigError, traceback_of
from fedapp.names import one_line
from fedapp.report import commands
from fedapp.terminal import columns

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


def _show_version(asked: bool) -> None:
    if asked:
        import fedapp

        typer.echo(f"fedapp {fedapp.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show the version"),
    ] = False,
) -> None:
    """Take what is not a command."""


class Engine(StrEnum):
    """Where clients run."""

    RAY = "ray"
    INLINE = "inline"


@app.command()
def run(
    context: typer.Context,
    presets: Presets = None,
    config: Assignments = None,
    engine: Annotated[
        Engine | None,
        typer.Option(
            "--engine",
            help="where clients run: on Ray workers, or in this process; default: what is faster for these runs",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            min=0,
            metavar="N",
            help="number of Ray workers (this chooses Ray), 0: one for each CPU; inline: runs of a sweep at once",
        ),
    ] = 0,
    workers_per_gpu: Annotated[
        int,
        typer.Option(
            "--workers-per-gpu",
            min=0,
            metavar="N",
            help='Ray workers that share a GPU, with device = "auto" or "cuda"; 0: one',
        ),
    ] = 0,
    address: Annotated[
        str, typer.Option("--address", help="a Ray cluster to join; default: start Ray here")
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="check the runs and show how many bytes they would send, without running them",
        ),
    ] = False,
    best_by: Annotated[
        str, typer.Option("--best-by", metavar="METRIC", help="the metric that --per chooses by")
    ] = "test_accuracy",
    per: Annotated[
        list[str] | None,
        typer.Option(
            "--per",
            metavar="KEY",
            help="at the end of a sweep, show only the best run for each value of this key; may be repeated",
            autocompletion=complete_key,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="results directory")
    ] = None,
) -> None:
    """Run presets and sweeps without a SuperLink; without a preset, one run with the default config.

    Each preset is one run, or several if it has a table `sweep`. Runs of a sweep that are complete already are skipped.

    Ctrl-C ends a run after its round, saves a checkpoint, and prints the command that continues it.

    Exit code 0: all runs ended well; 1: a run could not finish, or its directory holds a run with another config; 2: the
    config is invalid; 130: interrupted.
    """
    from fedapp.runner import EngineChoice, Runner, run_command

    for_ray = bool(workers or address or workers_per_gpu)
    inline = engine is Engine.INLINE if engine or for_ray else None
    chosen = EngineChoice(inline, workers, address, workers_per_gpu)
    code = run_command(
        lambda: Runner.read(presets or [], config or [], out, best_by, per or []),
        chosen,
        dry_run,
        context.obj,
    )
    raise typer.Exit(code)


@app.command()
def check(
    presets: Presets = None,
    config: Assignments = None,
    superlink: Annotated[
        str,
        typer.Option(
            "--superlink",
            metavar="NAME",
            help="check the nodes of this SuperLink, as `flwr run` names it",
        ),
    ] = "",
    app_directory: Annotated[
        Path,
        typer.Option(
            "--app", metavar="DIR", help="the Flower app whose pyproject.toml declares the keys"
        ),
    ] = Path(),
) -> None:
    """Check presets, keys, data, model, memory and nodes, before `flwr run` submits a run or `fedapp run` starts it.

    Prints one sentence for each problem. Exit code 0: no problem was found; 2: the config must be fixed first.
    """
    from fedapp.checking import check as check_runs
    from fedapp.parallel import silence

    with silence():
        found = check_runs(presets or [], config or [], app_directory, superlink)
    for problem in found.problems:
        typer.echo(problem, err=True)
    for note in dict.fromkeys(found.notes):
        typer.echo(note)
    if found.problems:
        raise typer.Exit(2)
    typer.echo(f"No problem found: {'; '.join(found.checked)}.")
    if found.command:
        typer.echo(f"Submit it with: {found.command}")


def _complete_algorithm(incomplete: str) -> list[str]:
    from fedapp.commandline import names_of

    return [name for name in names_of("algorithm") if name.startswith(incomplete)]


@app.command()
def algorithms(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="show this one: the paper, what travels, its keys",
            autocompletion=_complete_algorithm,
        ),
    ] = "",
) -> None:
    """List the algorithms, with the keys that each has and what it needs; or describe one."""
    if name:
        from fedapp.about import describe

        typer.echo(describe(name, columns()))
        return
    from fedapp import memory
    from fedapp.registry import ALGORITHMS

    config = read_config([], [])
    width = max(map(len, ALGORITHMS)) + 2

    def show(text: str, head: str = "") -> None:
        room = columns(narrowest=width + 40) if sys.stdout.isatty() else 1000
        head, below = f"{head:{width}}", " " * width
        typer.echo(
            textwrap.fill(
                text, room, initial_indent=head, subsequent_indent=below, break_on_hyphens=False
            )
        )

    for algorithm in ALGORITHMS.values():
        show(algorithm.summary, algorithm.name)
        keys = [f"{key} = {value}" for key, value in algorithm.keys().items()]
        show(", ".join(keys or ["no keys of its own"]))
        if needs := algorithm.needs.in_words():
            show(f"needs {', '.join(needs)}")
        kept = memory.in_words(algorithm.strategy, config)
        show(f"keeps on the server: {kept}")


@app.command()
def keys(
    name: Annotated[
        str,
        typer.Argument(
            metavar="ALGORITHM",
            help="a name, or package.module:name",
            autocompletion=_complete_algorithm,
        ),
    ],
) -> None:
    """List every key that an algorithm listens to, with its default, what it takes and what it means.

    The output is TOML: `fedapp keys scaffold > scaffold.toml` makes a preset for `fedapp run`.
    """
    from fedapp.about import keys_of

    typer.echo(keys_of(name, columns()))


@app.command("config")
def show_config(
    presets: Presets = None,
    config: Assignments = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="print the block that pyproject.toml declares, instead")
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="PYPROJECT", help="replace that block in this file"),
    ] = None,
) -> None:
    """Show the run config: every key with its value, its default if that is another, and what it means."""
    from fedapp.keys import config_table, toml_block, with_toml_block

    if toml:
        typer.echo(toml_block(type(read_config([], []))), nl=False)
        return
    if write:
        if not write.is_file():
            raise ConfigError(f"--write {write} is not a file: give the path of a pyproject.toml.")
        write.write_text(with_toml_block(write.read_text(), type(read_config([], []))))
        return
    from rich.console import Console

    run_config = read_config(presets or [], config or [])
    shown = config_table(type(run_config), run_config.flat())
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


@app.command()
def certify(
    presets: Presets = None,
    config: Assignments = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of text")] = False,
) -> None:
    """Say which of the papers' theorems covers a run: constants of its problem, and which inequality fails by what factor.

    Constants are exact for quadratics, and estimates otherwise. The largest lr, server-lr, tau and c that a theorem
    admits are those with the other keys as they are.
    """
    from fedapp.theory.certify import as_json as in_json
    from fedapp.theory.certify import as_text, certificate

    found = certificate(read_config(presets or [], config or []))
    typer.echo(in_json(found) if as_json else as_text(found))


for command in (
    commands.partition,
    commands.similarity,
    commands.blocks,
    commands.plot,
    commands.grid,
    commands.table,
    commands.report,
    commands.watch,
    commands.theory,
):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (by default this process's) and return its exit code; what a user can fix is one sentence."""
    # What a user brings lies beside the current directory, as with `python -m`; last, so that it hides nothing of ours.
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        app(words, prog_name="fedapp", obj=words)
    except SystemExit as ended:  # typer ends every command so
        return int(ended.code or 0)
    except ConfigError as error:
        typer.echo(one_line(str(error)) + traceback_of(error), err=True)
        return 2
    return 0
