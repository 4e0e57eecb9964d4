"""What nodes with data of their own must know about the images of a run."""

from collections.abc import Mapping
from typing import Any

from fedapp.data import ImageFacts
from fedapp.wire.arrays import WireError
from fedapp.wire.checks import are_finite_numbers, are_whole_numbers


def facts_head(facts: ImageFacts | None) -> dict[str, Any]:
    """Return the facts as entries of a config record."""
    if facts is None:
        return {}
    return {
        "image-shape": list(facts.shape),
        "num-classes": facts.num_classes,
        "pixel-mean": list(facts.mean),
        "pixel-std": list(facts.std),
    }


def facts_of(head: Mapping[str, Any]) -> ImageFacts | None:
    """Read what `facts_head` wrote."""
    if "image-shape" not in head:
        return None
    keys = ("image-shape", "num-classes", "pixel-mean", "pixel-std")
    shape, classes, mean, std = (head.get(key, []) for key in keys)
    sound = isinstance(shape, list) and len(shape) == 3 and are_whole_numbers([*shape, classes])
    if not sound or not all(are_finite_numbers(numbers, shape[0]) for numbers in (mean, std)):
        raise WireError("what it says of the images makes no sense")
    return ImageFacts(tuple(shape), classes, tuple(mean), tuple(std))
