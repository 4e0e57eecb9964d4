"""Keys that are set and make no difference: those of another algorithm, or of a part that the run does not have."""

from collections.abc import Iterator, Sequence

from fedapp.compression import COMPRESSORS
from fedapp.config import RunConfig
from fedapp.doors import is_outside
from fedapp.problems import KINDS, kind_of
from fedapp.registry import ALGORITHMS, find_algorithm

# key -> the key that decides whether it is used, and the values with which it is
USED_WITH: dict[str, tuple[str, tuple[object, ...]]] = {
    "lr-decay": ("lr-schedule", ("exponential",)),
    "local-steps": ("local-epochs", (0,)),
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
    "too-long": "max-update-norm",
    "dp.noise-multiplier": "dp.clip",
    "dp.where": "dp.clip",
    "dp.delta": "dp.clip",
    "dp.noise-from": "dp.clip",
    "dp.max-epsilon": "dp.clip",
    "lora.alpha": "lora.rank",
    "lora.targets": "lora.rank",
}


def unused_keys(config: RunConfig) -> dict[str, str]:
    """Return the keys with another value than their default that this run ignores, each with the reason."""
    values, defaults = config.flat(), type(config)().flat()
    reasons = dict(_reasons(config))
    return {
        key: reasons[key]
        for key, value in values.items()
        if key in reasons and value != defaults[key]
    }


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


def _reasons(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the keys that a run ignores, whatever their values, and why."""
    values = config.flat()
    unused = dict(_unused_tables(config))
    for key in values:
        table, dot, _ = key.partition(".")
        if dot and table in unused:
            yield key, unused[table]
    algorithm = find_algorithm(config.algorithm)
    for name in algorithm.unread:
        yield f"{algorithm.table}.{name}", f"algorithm is {config.algorithm}"
    for key, (decisive, used_with) in USED_WITH.items():
        if values[decisive] not in used_with and not (key == "norm" and is_outside(config.model)):
            yield key, f"{decisive} is {values[decisive]}"
    for key, decisive in USED_ABOVE_0.items():
        if not values[decisive]:
            yield key, f"{decisive} is 0"
    kind = kind_of(config)
    if not kind.uses_model and not is_outside(config.problem):
        yield "model", f"the problem is {kind.name}"


def _unused_tables(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the tables of algorithms, compressors and problems that a run does not have, and why."""
    chosen = find_algorithm(config.algorithm)
    for other in ALGORITHMS.values():
        # qsgd is an algorithm and a compressor; the table is the compressor's.
        if other.table != chosen.table and other.table not in COMPRESSORS:
            yield other.table, f"algorithm is {config.algorithm}"
    compressor = config.compressor or chosen.compressor
    if not is_outside(compressor):
        inner = getattr(config.table(COMPRESSORS[compressor]), "values", None)  # a sparsifier's
        for name in COMPRESSORS.keys() - {compressor, getattr(inner, "name", "")}:
            yield name, f"compressor is {compressor}"
    if not any(map(is_outside, (config.problem, config.dataset, config.model))):
        kind = kind_of(config)
        for problem in KINDS:
            for table in problem.tables.keys() - kind.tables.keys():
                yield table, f"the problem is {kind.name}"
        if config.model != "vit-base":
            yield "vit", f"model is {config.model}"
