"""The table of figures (metrics) that a round can have: behind `rounds.jsonl` and everything that shows one.

A figure that is not in the table is shown too, under its own name, and more of it counts as better unless the name ends
in loss, error, rmse or mae. A problem or an algorithm with figures of its own adds them with `declare`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """One number of a round's record: what it is called, which direction is better, and how it is written."""

    name: str  # in `rounds.jsonl`
    label: str = ""  # in tables and pictures; default: the name
    better: Literal["higher", "lower"] = "higher"
    unit: Literal["", "fraction", "bytes", "bits", "seconds"] = ""
    format: str = ".4g"
    # Who gives it: the problem's evaluation (every `eval-every` rounds), the training of every round, or the round
    # itself, as a count or cost.
    source: Literal["evaluation", "training", "round"] = "evaluation"
    summed: bool = False  # over the attempts at a round
    in_console: bool = False  # in the line that a run prints for each round

    def __post_init__(self) -> None:
        """Fill in the label."""
        object.__setattr__(self, "label", self.label or self.name.replace("_", " "))

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values."""
        return max(values) if self.better == "higher" else min(values)

    def reaches(self, value: float, target: float) -> bool:
        """Tell whether a value is at least as good as a target."""
        return value >= target if self.better == "higher" else value <= target

    def text(self, value: float) -> str:
        """Write a value, without its unit."""
        return f"{value:{self.format}}"


def _cost(name: str, label: str = "", unit: Literal["", "bytes", "bits", "seconds"] = "") -> Figure:
    """Declare what each attempt at a round costs."""
    return Figure(name, label, "lower", unit, source="round", summed=True)


# The most telling figure comes first: a run is judged by the first one that it has.
FIGURES = {
    figure.name: figure
    for figure in (
        Figure("test_accuracy", unit="fraction", format=".4f", in_console=True),
        Figure("test_auc", "test AUC", format=".4f", in_console=True),
        Figure("test_f1", "test F1", format=".4f", in_console=True),
        Figure("test_rmse", "test RMSE", "lower", in_console=True),
        Figure("test_mae", "test MAE", "lower", in_console=True),
        Figure("gap", better="lower", in_console=True),
        Figure("distance", better="lower", in_console=True),
        Figure("objective", better="lower"),
        Figure("squared_gradient", better="lower"),
        Figure("test_loss", better="lower", in_console=True),
        Figure("train_loss", better="lower", source="training", in_console=True),
        Figure("epsilon", better="lower", source="training", in_console=True),
        Figure("round", "communication rounds", source="round"),
        Figure("clients", source="round"),
        _cost("failures"),
        _cost("uplink_bytes", "uplink bytes, all clients", "bytes"),
        _cost("downlink_bytes", "downlink bytes, all clients", "bytes"),
        _cost("uplink_bits_nominal", "nominal uplink bits, all clients", "bits"),
        _cost("simulated_seconds", "simulated time", "seconds"),
        _cost("simulated_seconds_nominal", "simulated time, nominal bits", "seconds"),
        # Not summed: the loop times all attempts at a round together.
        Figure("wall_seconds", "wall time", "lower", "seconds", source="round"),
    )
}
# The order of a line in `rounds.jsonl`; every line has these, and figures that only some runs have follow.
COLUMNS = (
    "round",
    "test_loss",
    "test_accuracy",
    "train_loss",
    "clients",
    "failures",
    "uplink_bytes",
    "downlink_bytes",
    "uplink_bits_nominal",
    "simulated_seconds",
    "simulated_seconds_nominal",
    "wall_seconds",
)


def declare(*figures: Figure) -> None:
    """Add figures of a problem or an algorithm to the table."""
    for figure in figures:
        if FIGURES.setdefault(figure.name, figure) != figure:
            raise ValueError(f"There is another figure {figure.name!r} already.")


def find_figure(name: str) -> Figure:
    """Return a figure; of one that nobody declared, less is better if its name says that it is a loss or an error."""
    lower = name.endswith(("loss", "error", "rmse", "mae"))
    return FIGURES.get(name) or Figure(name, better="lower" if lower else "higher")


def figures_of(source: str) -> list[Figure]:
    """Return the declared figures from one source, the most telling first."""
    return [figure for figure in FIGURES.values() if figure.source == source]


def ranked(names: Iterable[str]) -> list[str]:
    """Return the figures that say how good a model is, the most telling first; those nobody declared come last."""
    found = dict.fromkeys(names)
    declared = [name for name, f in FIGURES.items() if f.source != "round" and name in found]
    return declared + [name for name in found if name not in FIGURES]


def headline(names: Iterable[str]) -> str:
    """Return the figure that runs with these figures are judged by; an empty string if there is none."""
    return next(iter(ranked(names)), "")
