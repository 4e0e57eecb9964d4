"""The problems, as far as a run's config describes them, before torch or any data are loaded.

Commands that only read results ask here too, so nothing in this module imports torch.
A new problem is one `Kind` here and one module with its class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from fedapp.doors import is_outside
from fedapp.errors import ConfigError
from fedapp.models.keys import VitKeys
from fedapp.names import did_you_mean
from fedapp.problems.keys import (
    CharacterKeys,
    ErmKeys,
    QuadraticKeys,
    TextKeys,
    chosen_metrics,
)
from fedapp.tables import Table

if TYPE_CHECKING:
    from fedapp.config import RunConfig
    from fedapp.data import Divisible, Shard
    from fedapp.problems.arrays import ArrayProblem
    from fedapp.problems.outline import Outline
    from fedapp.problems.protocols import FederatedProblem


@dataclass(frozen=True)
class Kind:
    """What a config says about its problem, and how to build it."""

    name: str
    make: "Callable[[RunConfig, Shard | None], FederatedProblem]"
    outline: "Callable[[RunConfig], Outline]"  # its size, without its data
    metrics: "Callable[[RunConfig], tuple[str, ...]]"  # the figures that `evaluate` returns
    tables: Mapping[str, type[Table]]  # its config keys, by the name of the table
    datasets: tuple[str, ...] = ()  # values of the key dataset that choose this problem
    models: tuple[str, ...] = ()  # values of the key model that choose it
    uses_model: bool = True  # whether the key model matters, so that it belongs into labels
    is_network: bool = False  # algorithms may look into it, and nodes may have their own data
    # The samples that a partition divides, by class, by tenths of a number or by group; None: there are none.
    data: "Callable[[RunConfig], Divisible] | None" = None
    columns: tuple[str, ...] = ()  # the keys that it reads of those that name a table's columns
    regularizer: str = ""  # the key of the problem's own regulariser; weight-decay is then refused


def _make_quadratic(config: "RunConfig", shard: "Shard | None") -> "FederatedProblem":
    from fedapp.problems.quadratic import Quadratic

    return Quadratic(config)


def _outline_quadratic(config: "RunConfig") -> "Outline":
    from fedapp.problems.quadratic import outline

    return outline(config)


def _make_linear(config: "RunConfig", shard: "Shard | None") -> "FederatedProblem":
    from fedapp.problems.erm import LinearERM

    return LinearERM(config)


def _outline_linear(config: "RunConfig") -> "Outline":
    from fedapp.problems.erm import outline

    return outline(config)


def _make_classification(config: "RunConfig", shard: "Shard | None") -> "FederatedProblem":
    from fedapp.problems.classification import Classification

    return Classification(config, shard)


def _outline_classification(config: "RunConfig") -> "Outline":
    from fedapp.problems.classification import outline

    return outline(config)


def _make_outside(config: "RunConfig", shard: "Shard | None") -> "FederatedProblem":
    from fedapp.problems.outside import outside_problem

    return outside_problem(config)


def _images(config: "RunConfig") -> "Divisible":
    from fedapp.data import configured_images

    return configured_images(config)


def _array_problem(place: str) -> "type[ArrayProblem]":
    module, _, name = place.partition(":")
    found: type[ArrayProblem] = getattr(import_module(f"fedapp.problems.{module}"), name)
    return found


def _makes(place: str) -> "Callable[[RunConfig, Shard | None], FederatedProblem]":
    """Return the function that makes a problem on tables or texts, which is at `module:class`."""

    def make(config: "RunConfig", shard: "Shard | None") -> "FederatedProblem":
        from fedapp.problems.network import NetworkProblem

        return NetworkProblem(_array_problem(place)(config, shard), config)

    return make


def _loads(place: str) -> "Callable[[RunConfig], Divisible]":
    """Return the function that loads the data of such a problem."""

    def load(config: "RunConfig") -> "Divisible":
        from fedapp.data import load_arrays

        return load_arrays(config, _array_problem(place).decoder)

    return load


def _inferred(config: "RunConfig") -> Kind:
    """Return the problem that the user's data are for."""
    from fedapp.data.outside import given_data, problem_of

    name = problem_of(given_data(config), config)
    return next(kind for kind in KINDS if kind.name == name)


def _make_inferred(config: "RunConfig", shard: "Shard | None") -> "FederatedProblem":
    return _inferred(config).make(config, shard)


def _inferred_data(config: "RunConfig") -> "Divisible":
    load = _inferred(config).data
    assert load is not None  # it is one for images, tables or texts
    return load(config)


def _outline_made(config: "RunConfig") -> "Outline":
    """Make the problem to know its size: it depends on the data, which are small or memory-mapped."""
    from fedapp.problems.outline import outline_of, server_shard

    return outline_of(kind_of(config).make(config, server_shard(config)), config.dtype)


def _measured(of_classes: bool) -> "Callable[[RunConfig], tuple[str, ...]]":
    """Return the function that names the figures of a network's evaluation."""

    def figures(config: "RunConfig") -> tuple[str, ...]:
        metrics = chosen_metrics(config.metrics, of_classes)
        objective = ["objective"] if config.eval_train else []
        return ("test_loss", *(f"test_{name}" for name in metrics), *objective)

    return figures


QUADRATIC = Kind(
    name="quadratic",
    make=_make_quadratic,
    outline=_outline_quadratic,
    metrics=lambda config: ("test_loss", "gap", "distance", "squared_gradient"),
    tables={"quadratic": QuadraticKeys},
    datasets=("quadratic",),
    uses_model=False,
)
LINEAR = Kind(
    name="linear",
    make=_make_linear,
    outline=_outline_linear,
    metrics=lambda config: (
        "test_loss",
        "test_accuracy",
        "objective",
        "squared_gradient",
        *(["gap"] if config.model == "logistic" else []),
    ),
    tables={"erm": ErmKeys},
    models=("logistic", "sigmoid-erm"),
    regularizer="erm.regularization",
    data=_images,
)
CLASSIFICATION = Kind(
    name="classification",
    make=_make_classification,
    outline=_outline_classification,
    metrics=_measured(of_classes=True),
    tables={"vit": VitKeys},
    is_network=True,
    data=_images,
)
REGRESSION = Kind(
    name="tabular-regression",
    make=_makes("tabular:RegressionTable"),
    outline=_outline_made,
    metrics=_measured(of_classes=False),
    tables={},
    datasets=("diabetes",),
    is_network=True,
    data=_loads("tabular:RegressionTable"),
    columns=("features", "target", "group"),
)
TABLE = Kind(
    name="tabular-classification",
    make=_makes("tabular:Table"),
    outline=_outline_made,
    metrics=_measured(of_classes=True),
    tables={},
    datasets=("breast_cancer", "wine"),
    is_network=True,
    data=_loads("tabular:Table"),
    columns=("features", "target", "group"),
)
TEXT = Kind(
    name="text-classification",
    make=_makes("text:Text"),
    outline=_outline_made,
    metrics=_measured(of_classes=True),
    tables={"text": TextKeys},
    datasets=("speeches",),
    is_network=True,
    data=_loads("text:Text"),
    columns=("features", "target", "group"),
)
CHARACTERS = Kind(
    name="next-character",
    make=_makes("characters:Characters"),
    outline=_outline_made,
    metrics=_measured(of_classes=True),
    tables={"characters": CharacterKeys},
    datasets=("shakespeare",),
    is_network=True,
    data=_loads("characters:Characters"),
    columns=("features", "group"),
)
INFERRED = Kind(  # a user's data set decides what is trained
    name="dataset",
    make=_make_inferred,
    outline=_outline_made,
    metrics=lambda config: ("test_loss", *(["objective"] if config.eval_train else [])),
    tables={},
    is_network=True,
    data=_inferred_data,
)
OUTSIDE = Kind(  # a user's own
    name="problem",
    make=_make_outside,
    outline=_outline_made,
    metrics=lambda config: ("test_loss", *(["objective"] if config.eval_train else [])),
    tables={},
    uses_model=False,
    is_network=True,
)
# The first that is chosen by name; otherwise the last:
KINDS = (QUADRATIC, LINEAR, REGRESSION, TABLE, TEXT, CHARACTERS, CLASSIFICATION)
# Names that are neither a data set of images nor a network:
DATASETS = tuple(name for kind in KINDS for name in kind.datasets)
MODELS = tuple(name for kind in KINDS for name in kind.models)


def kind_of(config: "RunConfig") -> Kind:
    """Return the problem of a run."""
    return find_kind(config.problem, config.dataset, config.model)


def subject(config: "RunConfig") -> str:
    """Return what a run is known by beside its algorithm: its data set or, without one, its problem."""
    return config.dataset if kind_of(config).data else config.problem or config.dataset


def find_kind(problem: str, dataset: str, model: str) -> Kind:
    """Return the problem that these values of the keys `problem`, `dataset` and `model` choose."""
    if is_outside(problem):
        return OUTSIDE
    named = [kind for kind in KINDS if problem == kind.name]
    if problem and not named:
        known = [kind.name for kind in KINDS]
        raise ConfigError(
            f"problem = {problem!r} is not known{did_you_mean(problem, known)}: choose {', '.join(known)}, or "
            "package.module:name."
        )
    chosen = (kind for kind in KINDS if dataset in kind.datasets or model in kind.models)
    otherwise = INFERRED if is_outside(dataset) else CLASSIFICATION
    return named[0] if named else next(chosen, otherwise)
