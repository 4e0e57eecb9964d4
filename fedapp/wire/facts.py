"""What nodes with data of their own must know about the inputs and targets of a run."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedapp.data import Facts
from fedapp.wire.arrays import WireError
from fedapp.wire.checks import are_finite_numbers, are_whole_numbers

LONGEST_SHAPE = 8  # dimensions of one input
_KEYS = {field.name: field.name.replace("_", "-") for field in fields(Facts)}


def facts_head(facts: Facts | None) -> dict[str, Any]:
    """Return the facts as entries of a config record."""
    if facts is None:
        return {}
    values = {key: getattr(facts, name) for name, key in _KEYS.items()}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def facts_of(head: Mapping[str, Any]) -> Facts | None:
    """Read what `facts_head` wrote."""
    if "shape" not in head:
        return None
    told: dict[str, Any] = {name: head.get(key) for name, key in _KEYS.items()}
    shape, mean, std = told["shape"], told["mean"], told["std"]
    counts = [told["num_classes"], told["vocabulary"]]
    targets = [told["target_mean"], told["target_std"]]
    sound = isinstance(shape, list) and 0 < len(shape) <= LONGEST_SHAPE
    sound = sound and are_whole_numbers([*shape, *counts]) and min([*shape, *counts]) >= 0
    scales = [0, shape[0]] if sound else []
    sound = sound and all(isinstance(numbers, list) for numbers in (mean, std))
    sound = sound and len(mean) == len(std) and len(mean) in scales
    if not sound or not all(
        are_finite_numbers(numbers, len(numbers)) for numbers in (mean, std, targets)
    ):
        raise WireError("what it says of the data makes no sense")
    return Facts(**told | {name: tuple(told[name]) for name in ("shape", "mean", "std")})
