"""The `fedapp` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedapp.config import RunConfig, absolute_paths, parse_run_config, read_overrides
from fedapp.errors import ConfigError

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)

Presets = Annotated[list[Path] | None, typer.Argument(metavar="[PRESET.toml]...")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("-c", "--run-config", metavar="KEY=VALUE", help="as `flwr run -c` takes it"),
]


def _config(presets: list[Path] | None, assignments: list[str] | None) -> RunConfig:
    return parse_run_config(absolute_paths(read_overrides(presets or [], assignments or [])))


@app.command()
def algorithms() -> None:
    """List the algorithms, and the keys of their own with their defaults."""
    from fedapp.registry import ALGORITHMS

    width = max(map(len, ALGORITHMS)) + 2
    for algorithm in ALGORITHMS.values():
        typer.echo(f"{algorithm.name:{width}}{algorithm.summary}")
        options = RunConfig(algorithm=algorithm.name).options
        values = options.model_dump(by_alias=True) if options else {}
        keys = [f"server-lr = {algorithm.strategy.default_server_lr}"]
        keys += [f"{algorithm.name}.{key} = {value}" for key, value in values.items()]
        typer.echo(" " * width + ", ".join(keys))


@app.command()
def partition(
    presets: Presets = None,
    config: Assignments = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="the PNG to write")] = Path(
        "partition.png"
    ),
) -> None:
    """Draw who holds which classes: one dot per client and class, its size by the count."""
    from fedapp.data import load_images, load_partition
    from fedapp.report.partition import draw_partition

    if output.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"-o {output} is no picture that can be written: use .png, .svg or .pdf.")
    run = _config(presets, config)
    if run.dataset == "quadratic":
        raise ConfigError("The quadratic problem has no classes: choose an image data set.")
    data = load_images(run.dataset, run.data_dir)
    held = load_partition(data, run)
    counts = held.class_counts(data.train_labels, data.num_classes)
    how = {
        "dirichlet": f"Dirichlet({run.partition_alpha:g})",
        "classes": f"{run.classes_per_client} classes per client",
        "writer": "by writer",
        "iid": "i.i.d.",
    }[run.partition]
    draw_partition(counts, f"{run.dataset}, {how}, {run.num_clients} clients", output)
    sizes = counts.sum(1)
    typer.echo(
        f"{output}: {run.num_clients} clients hold {sizes.min()} to {sizes.max()} samples each "
        f"(median {sorted(sizes)[len(sizes) // 2]}), {(counts > 0).sum(1).mean():.1f} classes on average"
    )


def main() -> None:
    """Run the command; what the user can mend is one sentence."""
    try:
        app()
    except ConfigError as error:
        typer.echo(error, err=True)
        sys.exit(2)
