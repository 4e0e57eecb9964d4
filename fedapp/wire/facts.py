"""What all must know about the inputs and targets of a run: in messages, and as a text in the config."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedapp.data import Facts
from fedapp.data.samples import MOST_CLASSES
from fedapp.errors import ConfigError
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
    sound = sound and all(
        are_finite_numbers(numbers, len(numbers)) for numbers in (mean, std, targets)
    )
    sound = sound and min([*std, targets[1]]) > 0 and counts[0] <= MOST_CLASSES
    if not sound:
        raise WireError("what it says of the data makes no sense")
    return Facts(**told | {name: tuple(told[name]) for name in ("shape", "mean", "std")})


def facts_text(facts: Facts) -> str:
    """Write facts as JSON, for the config."""
    return json.dumps(facts_head(facts))


def facts_from_text(text: str) -> Facts:
    """Read what `facts_text`, or a user, wrote; what is left out has its default."""
    try:
        given = json.loads(text)
        unknown = sorted(given.keys() - set(_KEYS.values()))
        head = facts_head(Facts((1,), 0)) | given
        for key in ("mean", "std"):
            head[key] = [float(number) for number in head[key]]
        for key in ("target-mean", "target-std"):
            head[key] = float(head[key])
        facts = facts_of(head) if "shape" in given and not unknown else None
    except (ValueError, TypeError, AttributeError):
        facts = None
    if facts is None:
        raise ConfigError(
            f"facts = {text!r} is not allowed: write JSON with the keys {', '.join(_KEYS.values())}, such as "
            '\'{"shape": [1, 28, 28], "num-classes": 10, "mean": [33.3], "std": [78.6]}\'.'
        )
    return facts
