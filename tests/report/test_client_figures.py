"""The figures of clients' evaluations in every view of a run that has no test set."""

from pathlib import Path

import pytest

from fedapp.report.page import write_report
from fedapp.report.runs import figure_to_show, load_runs
from tests.conftest import RunInline, read_rounds
from tests.support.commands import Fedapp
from tests.support.reports import embedded, texts
from tests.support.watching import read, text_of


@pytest.fixture
def evaluated(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """Return a run whose clients evaluate every second round."""
    from fedapp.problems.classification import Images

    monkeypatch.setattr(Images, "test_data", lambda self: None)
    return run_inline(
        model="logreg", num_clients=4, clients_per_round=2, num_rounds=4, eval_every=2, eval_clients="all",
        test_share=0.2, eval_finetune=2, run_name="evaluated",
    )  # fmt: skip


def test_every_view_shows_them(
    evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Fedapp
) -> None:
    last = read_rounds(evaluated)[-1]
    shown = capsys.readouterr().out
    assert f"  client accuracy {last['client_accuracy_mean']:.4f}" in shown
    assert f"  client accuracy, worst tenth {last['client_accuracy_worst10']:.4f}" in shown
    assert f"  fine-tuned accuracy {last['client_finetuned_accuracy_mean']:.4f}" in shown
    assert f"last {last['client_loss_mean']:.4g}" in shown
    assert "round 1/4  not evaluated" in shown
    assert "up 880 B, down 22.8 kB" in shown.split("evaluation")[-1]

    assert command("table", str(evaluated)) == 0
    assert f"| {last['client_accuracy_mean']:.4f} |" in capsys.readouterr().out
    assert command("table", str(evaluated), "--metric", "client_loss_worst10") == 0
    losses = [r["client_loss_worst10"] for r in read_rounds(evaluated) if r["round"] % 2 == 0]
    assert f"| {min(losses):.4g} |" in capsys.readouterr().out  # the best loss is the smallest one

    picture = tmp_path / "curves.svg"
    assert command("plot", str(evaluated), "-o", str(picture)) == 0
    assert "client accuracy" in texts(picture)
    assert command("plot", str(evaluated), "-y", "client_accuracy_std", "-o", str(picture)) == 0
    assert "client accuracy, std over clients" in texts(picture)

    write_report(load_runs([evaluated]), tmp_path / "report.html")
    data = embedded(tmp_path / "report.html")
    assert data["headline"] == "client_accuracy_mean"
    figures = {name for name in last if name.startswith("client_")}
    assert figures <= set(data["figures"])
    assert data["metrics"]["client_accuracy_worst10"]["fraction"]
    assert data["metrics"]["client_finetuned_loss_mean"]["smallerIsBetter"]

    live = text_of(read(evaluated))
    assert "client accuracy, worst tenth" in live
    assert "fine-tuned accuracy" in live
    assert "std over clients" not in live  # one of many that do not fit


def test_runs_are_shown_by_the_most_telling_figure_that_they_have(evaluated: Path) -> None:
    runs = load_runs([evaluated])
    assert figure_to_show(runs) == "client_accuracy_mean"
    assert figure_to_show(runs, "gap") == "gap"
    assert figure_to_show([]) == "test_accuracy"
