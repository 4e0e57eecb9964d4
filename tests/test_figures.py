"""The table of figures: what it says of those that are declared, and of those that are not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedapp import figures
from fedapp.figures import (
    COLUMNS,
    FIGURES,
    TOTAL,
    Figure,
    accuracy_of,
    declare,
    find_figure,
    headline,
    ranked,
    value_in,
)
from fedapp.report.runs import load_runs


@pytest.fixture
def own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the table as it was."""
    monkeypatch.setattr(figures, "FIGURES", dict(FIGURES))
    yield


def test_every_column_of_a_line_is_declared() -> None:
    assert set(COLUMNS) <= FIGURES.keys()
    assert all(figure.name == name for name, figure in FIGURES.items())


def test_more_accuracy_and_less_loss_are_better() -> None:
    accuracy, loss = find_figure("test_accuracy"), find_figure("test_loss")
    assert accuracy.best([0.2, 0.9, 0.5]) == 0.9
    assert loss.best([0.2, 0.9, 0.5]) == 0.2
    assert [accuracy.reaches(value, 0.9) for value in (0.89, 0.9, 0.91)] == [False, True, True]
    assert [loss.reaches(value, 0.9) for value in (0.89, 0.9, 0.91)] == [True, True, False]


def test_only_what_each_attempt_at_a_round_costs_is_added_up() -> None:
    assert {name for name, figure in FIGURES.items() if figure.summed} == {
        "failures",
        "uplink_bytes",
        "downlink_bytes",
        "uplink_overhead_bytes",
        "downlink_overhead_bytes",
        "uplink_bits_nominal",
        "simulated_seconds",
        "simulated_seconds_nominal",
    }


def test_a_figure_that_nobody_declared_has_its_name_as_label() -> None:
    assert find_figure("tracking_norm") == Figure("tracking_norm", "tracking norm", "higher")
    assert find_figure("tracking_norm").text(0.000123456) == "0.0001235"


def test_a_loss_or_an_error_that_nobody_declared_is_better_if_it_is_less() -> None:
    for name in ("test_rmse", "own_error", "mae", "validation_loss"):
        assert find_figure(name).better == "lower", name
    for name in ("errors_found", "lossless", "test_f1"):
        assert find_figure(name).better == "higher", name


def test_clients_figures_are_like_those_of_the_test_set() -> None:
    accuracy, spread = find_figure("client_accuracy_mean"), find_figure("client_accuracy_std")
    assert (accuracy.unit, accuracy.better, accuracy.in_console) == ("fraction", "higher", True)
    assert (spread.better, spread.in_console) == ("lower", False)
    assert find_figure("client_finetuned_loss_worst10").better == "lower"
    assert find_figure("client_loss_mean").label == "client loss"
    assert (
        find_figure("client_finetuned_accuracy_worst10").label == "fine-tuned accuracy, worst tenth"
    )
    own = find_figure("client_own_error_mean_by_client")  # a user's metric
    assert (own.label, own.better) == ("client own error, each client alike", "lower")
    every = ["client_loss_mean", "client_accuracy_std", "client_accuracy_mean", "train_loss"]
    assert headline(every) == "client_accuracy_mean"
    assert headline([*every, "test_accuracy"]) == "test_accuracy"


def test_the_target_is_the_test_accuracy_or_else_the_clients() -> None:
    assert accuracy_of({"test_accuracy": 0.5, "client_accuracy_mean": 0.9}) == 0.5
    assert accuracy_of({"test_accuracy": None, "client_accuracy_mean": 0.9}) == 0.9
    assert accuracy_of({"test_accuracy": 0.0, "client_accuracy_mean": 0.9}) == 0.0
    assert accuracy_of({"test_loss": 3.0}) == 0.0


def test_runs_are_judged_by_the_most_telling_figure_that_they_have() -> None:
    every = ["round", "own", "train_loss", "test_loss", "gap", "test_accuracy", "uplink_bytes"]
    assert ranked(every) == ["test_accuracy", "gap", "test_loss", "train_loss", "own"]
    assert headline(every) == "test_accuracy"
    assert headline(["round", "own", "test_loss"]) == "test_loss"
    assert headline(["round", "wall_seconds", "own"]) == "own"
    assert headline(["round", "wall_seconds"]) == ""


@pytest.mark.usefixtures("own_table")
def test_a_problem_can_declare_figures_of_its_own() -> None:
    error = Figure("mean_error", "mean error", "lower", format=".2f")
    declare(error)
    declare(error)  # a module may be imported twice
    assert find_figure("mean_error").best([3.0, 1.0]) == 1.0
    assert headline(["mean_error", "round"]) == "mean_error"
    declare(Figure("test_recall", unit="fraction", in_console=True))
    assert figures.FIGURES["client_recall_mean"].in_console
    with pytest.raises(ValueError, match="another figure 'mean_error'"):
        declare(Figure("mean_error"))
    with pytest.raises(ValueError, match="another figure 'gap'"):
        declare(Figure("gap", better="higher"))


def test_the_total_follows_from_what_went_up_and_down_in_old_records_too() -> None:
    assert value_in({"uplink_bytes": 3, "downlink_bytes": 4}, TOTAL) == 7
    assert value_in({"uplink_bytes": 3, "downlink_bytes": 4}, "uplink_bytes") == 3
    assert value_in({"uplink_bytes": 3, "downlink_bytes": None}, TOTAL) is None
    assert value_in({"downlink_bytes": 4}, TOTAL) is None
    assert value_in({"uplink_bytes": 1e308, "downlink_bytes": 1e308}, TOTAL) is None
    old = load_runs([Path(__file__).parent / "old_runs" / "scaffold"])[0]
    sent = [r["uplink_bytes"] + r["downlink_bytes"] for r in old.rounds]
    assert old.column(TOTAL) == sent
    assert old.outcome(TOTAL) == old.running_total(TOTAL)[-1] == sum(sent)
    assert old.outcome("test_loss") == min(r["test_loss"] for r in old.rounds)
