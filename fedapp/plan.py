"""What runs would cost, without data and without training, for dry runs."""

from collections.abc import Sequence

from rich.table import Table

from fedapp.building import expected_bytes, make_strategy
from fedapp.config import RunConfig
from fedapp.figures import human_bytes
from fedapp.problems import kind_of, subject

COLUMNS = ["algorithm", "compressor", "data", "model", "parameters", "clients", "rounds"]


def plan(configs: Sequence[RunConfig]) -> tuple[str, Table]:
    """Check that every run can start; return what all have in common, and a table of costs per round."""
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
    kind = kind_of(config)
    strategy = make_strategy(config, kind.outline(config))
    compressor = strategy.compressor
    what = (
        config.algorithm,
        compressor.name if compressor else "none",
        subject(config),
        config.model if kind.uses_model else kind.name,
        f"{strategy.x.size:,}",
        f"{config.clients_per_round} of {config.num_clients}",
        f"{config.num_rounds:,}",
    )
    return what, expected_bytes(strategy)


def _range(values: Sequence[float]) -> str:
    low, high = human_bytes(min(values)), human_bytes(max(values))
    return low if low == high else f"{low} to {high}"
