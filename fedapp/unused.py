"""Keys that are set and make no difference: those of another algorithm, or of a part that the run does not have."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedapp.algorithm import Algorithm
from fedapp.compression import COMPRESSORS
from fedapp.config import RunConfig
from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.problems.kinds import KINDS, find_kind
from fedapp.registry import ALGORITHMS, find_algorithm

# key -> the key that decides whether it is used, and the values with which it is
USED_WITH: dict[str, tuple[str, tuple[object, ...]]] = {
    "lr-decay": ("lr-schedule", ("exponential",)),
    "trim": ("aggregation", ("trimmed-mean",)),
    "clip-radius": ("aggregation", ("centered-clipping",)),
    "partition-alpha": ("partition", ("dirichlet",)),
    "classes-per-client": ("partition", ("classes",)),
    "norm": ("model", ("resnet18", "resnet20")),
    "optimizer.momentum": ("client-optimizer", ("momentum",)),
    "optimizer.beta1": ("client-optimizer", ("adam",)),
    "optimizer.beta2": ("client-optimizer", ("adam",)),
    "optimizer.eps": ("client-optimizer", ("adam",)),
    "optimizer.state": ("client-optimizer", ("momentum", "adam")),
    "grid.kappa": ("downlink", ("grid",)),
    "grid.keep": ("downlink", ("grid",)),
}
# key -> the key that must be above 0 for it
USED_ABOVE_0 = {
    "on-long-update": "max-update-norm",
    "dp.noise-multiplier": "dp.clip",
    "dp.where": "dp.clip",
    "dp.delta": "dp.clip",
    "dp.noise-from": "dp.clip",
    "dp.max-epsilon": "dp.clip",
    "lora.alpha": "lora.rank",
    "lora.targets": "lora.rank",
}
# key -> the keys that must be 0 for it
USED_AT_0 = {
    "local-steps": ("local-epochs",),
    "dithered.step": ("dithered.nmse",),
    "contextual.step": ("contextual.nmse", "contextual.max-bytes"),
}
COLUMNS = ("features", "target", "group")  # keys that name columns of a table


def unused_keys(config: RunConfig) -> dict[str, str]:
    """Return the keys with another value than their default that this run ignores, each with the reason."""
    values, defaults = config.flat(), type(config)().flat()
    changed = [key for key, value in values.items() if value != defaults[key]]
    return ignored(changed, values, find_algorithm(config.algorithm))


def ignored(
    keys: Iterable[str], values: Mapping[str, Any], algorithm: Algorithm | None
) -> dict[str, str]:
    """Return those of these keys that a run with these values ignores, each with the reason.

    Where a value that decides is not known, as in results of older versions, nothing is ignored; nor where the algorithm is not.
    """
    reasons = dict(_reasons(values, algorithm))
    found = {key: reasons.get(key) or reasons.get(_table(key)) for key in keys}
    return {key: why for key, why in found.items() if why}


def _table(key: str) -> str:
    """Return the beginning that a key shares with those of its table, "fedprox." of "fedprox.mu"; or nothing."""
    table, dot, _ = key.partition(".")
    return table + dot if dot else ""


def warning(configs: Sequence[RunConfig]) -> str:
    """Return one sentence about the keys that none of these runs uses; an empty string if there are none."""
    unused = unused_keys(configs[0]) if configs else {}
    for config in configs[1:]:
        if not unused:
            break
        others = unused_keys(config)
        unused = {key: why for key, why in unused.items() if key in others}
    if not unused:
        return ""
    runs = "this run" if len(configs) == 1 else "any of these runs"
    return f"Not used by {runs}: {', '.join(f'{key} ({why})' for key, why in unused.items())}."


def _reasons(values: Mapping[str, Any], algorithm: Algorithm | None) -> Iterator[tuple[str, str]]:
    """Yield the keys and whole tables ("fedprox.") that a run ignores, and why."""
    if algorithm is not None:
        yield from _of_algorithms(values, algorithm)
    for key, (decisive, used_with) in USED_WITH.items():
        value = values.get(decisive, used_with[0])
        if value not in used_with and not (key == "norm" and is_outside(value)):
            yield key, f"{decisive} is {value}"
    for key, decisive in USED_ABOVE_0.items():
        if not values.get(decisive, 1):
            yield key, f"{decisive} is 0"
    for key, others in USED_AT_0.items():
        for decisive in others:
            if value := values.get(decisive):
                yield key, f"{decisive} is {value}"
    if values.get("aggregation") == "mean" and values.get("mixing") == "none":
        yield "hostile", "aggregation is mean"
    if "dataset" in values:
        yield from _of_problems(*(str(values.get(k, "")) for k in ("problem", "dataset", "model")))


def _of_algorithms(values: Mapping[str, Any], algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """Yield the tables of other algorithms and compressors, and the keys of its table that an algorithm does not read."""
    why = f"algorithm is {values['algorithm']}"
    for other in ALGORITHMS.values():
        # qsgd is an algorithm and a compressor; the table is the compressor's.
        if other.table != algorithm.table and other.table not in COMPRESSORS:
            yield f"{other.table}.", why
    for name in algorithm.unread:
        yield f"{algorithm.table}.{name}", why
    if "compressor" in values:
        compressor = str(values["compressor"] or algorithm.compressor)
        used = COMPRESSORS.keys() if is_outside(compressor) else {*_made_of(compressor, values)}
        for name in COMPRESSORS.keys() - used:
            yield f"{name}.", f"compressor is {compressor}"


def _made_of(compressor: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a compressor, and the one for the numbers that it keeps, if it has one."""
    yield compressor
    inner = values.get(f"{compressor}.values")
    if inner in COMPRESSORS:
        yield from _made_of(str(inner), values)


def _of_problems(problem: str, dataset: str, model: str) -> Iterator[tuple[str, str]]:
    """Yield the tables of other problems, and the model's keys if there is no such model."""
    try:
        kind = find_kind(problem, dataset, model)
    except ConfigError:  # results of a newer version
        return
    why = f"the problem is {kind.name}"
    if not kind.uses_model and not is_outside(problem):
        yield "model", why
    if not is_outside(problem) and not is_outside(dataset):
        for key in COLUMNS:
            if key not in kind.columns:
                yield key, why
    if any(map(is_outside, (problem, dataset, model))):
        return
    for other in KINDS:
        for table in other.tables.keys() - kind.tables.keys():
            yield f"{table}.", why
    if model != "vit-base":
        yield "vit.", f"model is {model}"
