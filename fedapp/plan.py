"""What runs would do, without data and without training: for `fedapp run --dry-run`."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from rich.table import Table

from fedapp.config import RunConfig
from fedapp.costs import human_bytes
from fedapp.data import load_images
from fedapp.data.sources import SHAPES, find_source
from fedapp.models.layout import Layout
from fedapp.models.networks import layout_of, make_network
from fedapp.problems import is_network
from fedapp.problems.problem import Vector
from fedapp.registry import make_strategy


class Outline:
    """A problem's measures: all that a strategy needs to be made."""

    def __init__(self, config: RunConfig) -> None:
        self.dtype = np.dtype(config.dtype)
        self.layout, self.num_buffers = _measures(
            config.dataset,
            config.data_dir,
            config.model if is_network(config) else "",
            config.norm,
            config.vit.image_size,
            config.quadratic.dim,
        )

    def initial(self) -> tuple[Vector, Vector]:
        """Return zeros, the same every time."""
        return _zeros(self.layout.size, self.dtype), _zeros(self.num_buffers, self.dtype)


@lru_cache
def _zeros(count: int, dtype: np.dtype[Any]) -> Vector:
    return np.zeros(count, dtype)


@lru_cache
def _measures(
    dataset: str, data_dir: str, network: str, norm: str, image_size: int, dim: int
) -> tuple[Layout, int]:
    """Return a model's layout, and how many numbers its statistics are."""
    if dataset == "quadratic":
        return Layout((dim,), (dim,)), 0
    find_source(dataset, data_dir)  # what is wrong with it is told
    if dataset in SHAPES:
        shape, num_classes = SHAPES[dataset]
    else:
        data = load_images(dataset, data_dir)
        shape, num_classes = data.train_images.shape[1:], data.num_classes
    if not network:
        size = int(np.prod(shape))
        return Layout((size,), (size,)), 0
    with torch.device("meta"):
        made = make_network(network, shape, num_classes, norm, 0, image_size)
    buffers = sum(b.numel() for b in made.buffers() if b.is_floating_point())
    return layout_of(made, network), buffers


COLUMNS = ["algorithm", "compressor", "data", "model", "parameters", "clients", "rounds"]


def plan(configs: Sequence[RunConfig]) -> tuple[str, Table]:
    """Check that every run could start; return what is common to all, and what a round of each would cost."""
    rows: dict[tuple[str, ...], list[tuple[float, float, int]]] = {}
    known: dict[RunConfig, tuple[tuple[str, ...], tuple[float, float]]] = {}
    for config in configs:
        alike = config.model_copy(update={"seed": 0, "run_name": "", "partition_alpha": 1.0})
        if alike not in known:
            known[alike] = _cost(config)
        what, (up, down) = known[alike]
        rows.setdefault(what, []).append((up, down, config.num_rounds))
    differ = [k for k in range(len(COLUMNS)) if k == 0 or len({what[k] for what in rows}) > 1]
    first = next(iter(rows))
    common = [f"{COLUMNS[k]} {first[k]}" for k in range(len(COLUMNS)) if k not in differ]
    names = [*(COLUMNS[k] for k in differ), "runs", "up a round", "down a round"]
    table = Table(*names, box=None, pad_edge=False)
    for what, costs in rows.items():
        ups, downs, _ = zip(*costs, strict=True)
        table.add_row(*(what[k] for k in differ), str(len(costs)), _range(ups), _range(downs))
    every = [cost for costs in rows.values() for cost in costs]
    total_up, total_down = (sum(cost[k] * cost[2] for cost in every) for k in (0, 1))
    common.append(
        f"{len(configs):,} runs, {sum(rounds for _, _, rounds in every):,} rounds in all: "
        f"{human_bytes(total_up)} up, {human_bytes(total_down)} down"
    )
    return ", ".join(common), table


def _cost(config: RunConfig) -> tuple[tuple[str, ...], tuple[float, float]]:
    strategy = make_strategy(config, Outline(config))
    compressor = strategy.compressor
    what = (
        config.algorithm,
        type(compressor).__name__.lower() if compressor else "none",
        config.dataset,
        "quadratic" if config.dataset == "quadratic" else config.model,
        f"{strategy.x.size:,}",
        f"{config.clients_per_round} of {config.num_clients}",
        f"{config.num_rounds:,}",
    )
    return what, strategy.expected_bytes()


def _range(values: Sequence[float]) -> str:
    low, high = human_bytes(min(values)), human_bytes(max(values))
    return low if low == high else f"{low} to {high}"
