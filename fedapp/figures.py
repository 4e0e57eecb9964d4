"""The table of figures (metrics) that a round can have: behind `rounds.jsonl` and everything that shows one.

A figure that is not in the table is shown too, under its own name; more of it counts as better, unless its name says
that it is a loss or an error. A problem or an algorithm with figures of its own adds them with `declare`. For every
figure `test_<metric>` on the server's test set there are some of the clients' own evaluations, `client_<metric>_mean`
and others.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


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


# How the metrics of clients are put together, and how each is labelled.
OVER_CLIENTS = {
    "mean": "",  # weighted by samples
    "mean_by_client": ", each client alike",
    "worst10": ", worst tenth",
    "std": ", std over clients",
}
TOTAL = "total_bytes"
# Names of what is better when it is less.
ERRORS = re.compile(r"(^|_)(loss|error|mse|rmse|mae|perplexity)$")
_OF_CLIENTS = re.compile(rf"client_(finetuned_)?(.+?)_({'|'.join(OVER_CLIENTS)})")


def client_figure(metric: str, over: str, finetuned: bool = False) -> str:
    """Return the name of a figure of the clients' own evaluations; `over` is a key of `OVER_CLIENTS`."""
    return f"client_{'finetuned_' if finetuned else ''}{metric}_{over}"


def is_of_clients(name: str) -> bool:
    """Tell whether a figure is one of the clients' own evaluations."""
    return bool(_OF_CLIENTS.fullmatch(name))


def _with_clients(figure: Figure) -> Iterator[Figure]:
    """Yield a figure and, if it is one on the server's test set, those of clients' evaluations of the same metric."""
    yield figure
    if not figure.name.startswith("test_"):
        return
    metric, what = figure.name.removeprefix("test_"), figure.label.removeprefix("test ")
    for finetuned in (False, True):
        for over, words in OVER_CLIENTS.items():
            label = f"{'fine-tuned' if finetuned else 'client'} {what}{words}"
            name = client_figure(metric, over, finetuned)
            better: Literal["higher", "lower"] = "lower" if over == "std" else figure.better
            telling = over == "mean" and (figure.unit == "fraction" or not finetuned)
            telling |= over == "worst10" and figure.unit == "fraction" and not finetuned
            shown = figure.in_console and telling
            yield replace(figure, name=name, label=label, better=better, in_console=shown)


# The most telling figure comes first: a run is judged by the first one that it has.
FIGURES = {
    figure.name: figure
    for declared in (
        Figure("test_accuracy", unit="fraction", format=".4f", in_console=True),
        Figure("test_auc", "test AUC", unit="fraction", format=".4f", in_console=True),
        Figure("test_f1", "test F1", unit="fraction", format=".4f", in_console=True),
        Figure("test_rmse", "test RMSE", "lower", in_console=True),
        Figure("test_mae", "test MAE", "lower", in_console=True),
        Figure("gap", better="lower", in_console=True),
        Figure("distance", better="lower", in_console=True),
        Figure("objective", "full training loss", "lower"),
        Figure("squared_gradient", better="lower"),
        Figure("test_loss", better="lower", in_console=True),
        Figure("train_loss", better="lower", source="training", in_console=True),
        Figure("uplink_nmse", "relative error of compression", "lower", source="training"),
        Figure("uplink_gq", "G_q of compression", "lower", source="training"),
        Figure("tracking_sum", "|sum of tracking variables|", "lower", source="training"),
        Figure("consensus_error", better="lower", source="training"),
        Figure("local_drift", better="lower", source="training"),
        Figure("control_change", "change of control variates", "lower", source="training"),
        Figure("control_age", "age of clients' states in rounds", "lower", source="training"),
        Figure(
            "active_constraints", "share of active constraints", unit="fraction", source="training"
        ),
        Figure("epsilon", better="lower", source="training", in_console=True),
        Figure("round", "communication rounds", source="round"),
        Figure("clients", source="round"),
        _cost("failures"),
        _cost("uplink_bytes", "uplink bytes, all clients", "bytes"),
        _cost("downlink_bytes", "downlink bytes, all clients", "bytes"),
        _cost("uplink_overhead_bytes", "uplink headers and records, all clients", "bytes"),
        _cost("downlink_overhead_bytes", "downlink headers and records, all clients", "bytes"),
        # Not in the file: `value_in` adds uplink and downlink up.
        Figure(TOTAL, "total bytes, all clients", "lower", "bytes", source="round"),
        _cost("uplink_bits_nominal", "nominal uplink bits, all clients", "bits"),
        _cost("simulated_seconds", "simulated time", "seconds"),
        _cost("simulated_seconds_nominal", "simulated time, nominal bits", "seconds"),
        # Not summed: the loop times all attempts at a round together.
        Figure("wall_seconds", "wall time", "lower", "seconds", source="round"),
        # From the clients' evaluations: one for each round at most.
        Figure("eval_clients", "clients that evaluated", source="round"),
        Figure("eval_failures", "clients that failed to evaluate", "lower", source="round"),
        Figure("eval_uplink_bytes", "uplink bytes of evaluation", "lower", "bytes", source="round"),
        Figure(
            "eval_downlink_bytes", "downlink bytes of evaluation", "lower", "bytes", source="round"
        ),
    )
    for figure in _with_clients(declared)
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
    for declared in figures:
        for figure in _with_clients(declared):
            if FIGURES.setdefault(figure.name, figure) != figure:
                raise ValueError(f"There is another figure {figure.name!r} already.")


def find_figure(name: str) -> Figure:
    """Return a figure; one that nobody declared has the defaults, or is made from what its name says."""
    if name in FIGURES:
        return FIGURES[name]
    if found := _OF_CLIENTS.fullmatch(name):
        like = find_figure(f"test_{found[2]}")
        return next(figure for figure in _with_clients(like) if figure.name == name)
    if name.startswith("valid_"):  # the same metric on the validation samples
        like = find_figure(f"test_{name.removeprefix('valid_')}")
        label = like.label.replace("test ", "validation ", 1)
        return replace(like, name=name, label=label, in_console=False)
    return Figure(name, better="lower" if ERRORS.search(name) else "higher")


def value_in(record: Mapping[str, Any], name: str) -> Any:
    """Return a figure of a round's record, or what follows from others in it; None if there is none."""
    if name != TOTAL or TOTAL in record:
        return record.get(name)
    up, down = record.get("uplink_bytes"), record.get("downlink_bytes")
    if up is None or down is None:
        return None
    return up + down if math.isfinite(up + down) else None


def accuracy_of(record: Mapping[str, Any]) -> float:
    """Return what `target-accuracy` is compared with: the test accuracy, or else the clients'; 0 without either."""
    names = ("test_accuracy", client_figure("accuracy", "mean"))
    return next((float(record[name]) for name in names if record.get(name) is not None), 0.0)


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


def human_bytes(count: float) -> str:
    """Write a number of bytes with three digits and a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.0f} TB"
