"""The config keys of the problems."""

from typing import Literal

from pydantic import Field

from fedapp.errors import ConfigError
from fedapp.names import did_you_mean
from fedapp.tables import Table


class QuadraticKeys(Table):
    """The quadratic problem, `dataset = "quadratic"`."""

    dim: int = Field(30, ge=1, description="number of coordinates")
    condition: float = Field(10.0, ge=1, description="condition number of every client's Hessian")
    heterogeneity: float = Field(1.0, ge=0, description="spread of the clients' own optima")
    noise: float = Field(0.0, ge=0, description="standard deviation of the gradient noise")
    hessians: Literal["own", "shared"] = Field(
        "own", description='"own": every client\'s differs; "shared": all have the same'
    )
    flat: int = Field(
        0,
        ge=0,
        description="directions in which no client's quadratic changes: still PL, no longer strongly convex",
    )


class ErmKeys(Table):
    """The binary problems, `model = "logistic"` and `"sigmoid-erm"`."""

    positive: int = Field(
        0,
        ge=0,
        description='class that model = "logistic" and "sigmoid-erm" separate from others',
    )
    negative: int = Field(-1, ge=-1, description="the other class; -1: all the rest")
    regularization: float = Field(1e-4, gt=0, description="lambda over the smoothness constant L")


class TextKeys(Table):
    """The classification of texts, `problem = "text-classification"`."""

    vocabulary: int = Field(
        4096,
        ge=2,
        le=2**20,
        description="numbers that words are hashed to, so that nodes need not agree on a list of words",
    )
    length: int = Field(64, ge=1, le=2**16, description="words of a text that are read")


class CharacterKeys(Table):
    """The prediction of the next character, `problem = "next-character"`."""

    length: int = Field(80, ge=1, le=2**16, description="characters of a sample")


OF_CLASSES = ("accuracy", "auc", "f1")
OF_NUMBERS = ("rmse", "mae")


def chosen_metrics(metrics: str, of_classes: bool) -> tuple[str, ...]:
    """Return the metrics that the key `metrics` names, or those that are usual for classes or for numbers."""
    known = OF_CLASSES if of_classes else OF_NUMBERS
    names = tuple(dict.fromkeys(metrics.replace(",", " ").split()))
    for name in names:
        if name not in known:
            raise ConfigError(
                f"metrics = {metrics!r} names {name!r}{did_you_mean(name, known)}: choose among {', '.join(known)}."
            )
    return names or (OF_CLASSES[:1] if of_classes else OF_NUMBERS)
