"""Federated learning as a Flower app: run experiments, and look at data, models and runs."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedapp.commandline import Assignments, Presets, complete_key, read_config
from fedapp.errors import ConfigError, traceback_of
from fedapp.names import one_line
from fedapp.report import commands

app = typer.Typer(help=__doc__, no_args_is_help=True, pretty_exceptions_enable=False)


class Engine(StrEnum):
    """Where clients run."""

    RAY = "ray"
    INLINE = "inline"


@app.command()
def run(
    presets: Presets = None,
    config: Assignments = None,
    engine: Annotated[
        Engine,
        typer.Option("--engine", help="where clients run: on Ray workers, or in this process"),
    ] = Engine.RAY,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            min=0,
            help="Ray workers, 0: one for each CPU that Ray sees; inline: runs of a sweep at once",
        ),
    ] = 0,
    workers_per_gpu: Annotated[
        int,
        typer.Option(
            "--workers-per-gpu",
            min=0,
            help='Ray workers that share a GPU, with device = "auto" or "cuda"; 0: one',
        ),
    ] = 0,
    address: Annotated[
        str, typer.Option("--address", help="a Ray cluster to join; default: start Ray here")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check the runs, and show what they would cost")
    ] = False,
    best_by: Annotated[
        str, typer.Option("--best-by", metavar="METRIC", help="what --per chooses by")
    ] = "test_accuracy",
    per: Annotated[
        list[str] | None,
        typer.Option(
            "--per",
            metavar="KEY",
            help="of a sweep's runs, show at the end only the best for each value of this key; may be repeated",
            autocompletion=complete_key,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="results directory")
    ] = None,
) -> None:
    """Run presets and sweeps without a SuperLink; without a preset, one run with the default config.

    Each preset is one run, or several if it has a table `sweep`. Runs of a sweep that are complete already are skipped.

    Exit code 0: all went well; 1: a run could not finish, or its directory holds a run with another config;
    2: the config is invalid; 130: interrupted.
    """
    from fedapp.runner import EngineChoice, Runner, run_command

    chosen = EngineChoice(engine is Engine.INLINE, workers, address, workers_per_gpu)
    code = run_command(
        lambda: Runner.read(presets or [], config or [], out, best_by, per or []), chosen, dry_run
    )
    raise typer.Exit(code)


@app.command()
def algorithms() -> None:
    """List the algorithms, the keys that each reads with their defaults, and what each needs."""
    from fedapp import memory
    from fedapp.registry import ALGORITHMS

    config = read_config([], [])
    width = max(map(len, ALGORITHMS)) + 2
    for algorithm in ALGORITHMS.values():
        typer.echo(f"{algorithm.name:{width}}{algorithm.summary}")
        keys = [f"{key} = {value}" for key, value in algorithm.keys().items()]
        typer.echo(" " * width + ", ".join(keys or ["no keys of its own"]))
        if needs := algorithm.needs.in_words():
            typer.echo(f"{'':{width}}needs {', '.join(needs)}")
        kept = memory.in_words(algorithm.strategy, config)
        typer.echo(f"{'':{width}}keeps on the server: {kept}")


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

    Constants are exact for quadratics, and estimates otherwise. The largest lr, server-lr and tau that a theorem admits
    are those with the other keys as they are.
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
        app(arguments, prog_name="fedapp")
    except SystemExit as ended:  # typer ends every command so
        return int(ended.code or 0)
    except ConfigError as error:
        typer.echo(one_line(str(error)) + traceback_of(error), err=True)
        return 2
    return 0
