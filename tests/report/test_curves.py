"""Curves, tables and maps of many runs: which are averaged, how they are named and sorted, and which is best."""

from pathlib import Path

import pytest
from PIL import Image

from fedapp.errors import ConfigError
from fedapp.report.curves import Look, draw_curves
from fedapp.report.labels import labelled
from fedapp.report.runs import best_per, load_runs, reach, short_names
from tests.conftest import RunInline, read_rounds
from tests.support.commands import fedapp


def test_curves_and_table(
    run_inline: RunInline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("run-fedavg", "run-fedcom"):
        run_inline(algorithm=name[4:], num_rounds=12, run_name=name, eval_every=2)
    picture = tmp_path / "curves.png"
    assert fedapp(monkeypatch, "plot", str(tmp_path), "-o", str(picture)) == 0
    with Image.open(picture) as drawn:
        assert drawn.width < 1.4 * drawn.height, "one panel, unless more are asked for"
        assert len(set(drawn.convert("L").getdata())) > 50
    capsys.readouterr()
    assert fedapp(monkeypatch, "table", str(tmp_path), "--target", "0.3") == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in shown[2:]] == ["| FedAvg", "| FedCOM"]
    assert fedapp(monkeypatch, "table", str(tmp_path), "--target", "1.0") == 0
    assert capsys.readouterr().out.count("| never |") == 2
    losses = "--figure", "train_loss", "--target", "2.0"
    assert fedapp(monkeypatch, "table", str(tmp_path), *losses) == 0
    shown = capsys.readouterr().out.splitlines()[2].split(" | ")
    rounds = read_rounds(tmp_path / "run-fedavg")
    assert int(shown[4]) == next(r["round"] for r in rounds if r["train_loss"] <= 2.0)
    assert shown[1] == f"{min(r['train_loss'] for r in rounds):.4g}"
    assert fedapp(monkeypatch, "plot", str(tmp_path), "-y", "gap", "-o", str(picture)) == 2
    assert "has no metric 'gap'" in capsys.readouterr().err
    assert fedapp(monkeypatch, "plot", str(tmp_path / "none")) == 2
    assert "holds no run" in capsys.readouterr().err


def test_panels(run_inline: RunInline, tmp_path: Path) -> None:
    for name in ("try-s-1", "try-s-2", "try-tau-1", "try-tau-2", "try-sigma"):
        run_inline(dataset="quadratic", num_rounds=3, run_name=name, seed=len(name))
    runs = load_runs([tmp_path])
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    draw_curves(runs, ["bytes"], "gap", one)
    draw_curves(runs, ["bytes"], "gap", two, Look(panels=["s", "tau"]))
    with Image.open(one) as narrow, Image.open(two) as wide:
        assert wide.width > 1.5 * narrow.width
    with pytest.raises(ConfigError, match="no run's name begins so"):
        draw_curves(runs, ["bytes"], "gap", two, Look(panels=["rho"]))


def test_what_a_target_costs(run_inline: RunInline, tmp_path: Path) -> None:
    run_inline(num_rounds=12, run_name="a-b-one", eval_every=2)
    run_inline(num_rounds=2, run_name="a-b-two")
    one, two = load_runs([tmp_path])
    assert short_names([one, two]) == ["one", "two"]
    records = read_rounds(tmp_path / "a-b-one")
    target = max(r["test_accuracy"] for r in records if r["test_accuracy"])
    spent = reach(one, target)
    assert spent is not None
    reached = next(r["round"] for r in records if (r["test_accuracy"] or 0) >= target)
    assert spent.rounds == reached
    assert spent.uplink_bytes == sum(r["uplink_bytes"] for r in records[:reached])
    assert spent.total_bytes == spent.uplink_bytes + spent.downlink_bytes > spent.uplink_bytes
    assert spent.seconds == pytest.approx(sum(r["simulated_seconds"] for r in records[:reached]))
    assert reach(one, target + 1e-9) is None


def test_runs_that_differ_in_their_seeds_are_one_curve(
    run_inline: RunInline, tmp_path: Path
) -> None:
    for seed in (0, 1, 2):
        run_inline(num_rounds=3, run_name=f"x-fedavg-seed-{seed}", seed=seed)
    run_inline(num_rounds=3, run_name="x-prox", algorithm="fedprox")
    runs = load_runs([tmp_path])
    assert [(name, len(group)) for name, group in labelled(runs)] == [("FedAvg", 3), ("FedProx", 1)]
    draw_curves(runs, ["rounds"], "test_accuracy", tmp_path / "band.png")
    with Image.open(tmp_path / "band.png") as drawn:
        # The first curve's colour at a fifth of its strength, over white.
        assert (204, 226, 239) in set(drawn.convert("RGB").getdata())


def test_runs_are_sorted_by_the_numbers_in_their_names(
    run_inline: RunInline, tmp_path: Path
) -> None:
    for size in (100, 9, 20):
        run_inline(num_rounds=1, run_name=f"m-{size}")
    assert [run.name for run in load_runs([tmp_path])] == ["m-9", "m-20", "m-100"]


def test_names_leave_out_what_is_the_same_for_all(run_inline: RunInline, tmp_path: Path) -> None:
    for algorithm in ("fedavg", "fedprox"):
        for seed in (0, 1):
            name = f"x-{algorithm}-lr-0.1-seed-{seed}"
            run_inline(num_rounds=1, run_name=name, algorithm=algorithm, seed=seed, lr=0.1)
    assert [name for name, _ in labelled(load_runs([tmp_path]))] == ["FedAvg", "FedProx"]


def test_the_best_setting_of_each_algorithm(run_inline: RunInline, tmp_path: Path) -> None:
    for lr in (0.001, 0.2):
        for algorithm in ("fedavg", "fedprox"):
            for seed in (0, 1):
                name = f"{algorithm}-{lr}-{seed}"
                run_inline(num_rounds=8, run_name=name, lr=lr, algorithm=algorithm, seed=seed)
    kept = best_per(load_runs([tmp_path]), ["algorithm"])
    assert {(r.config["algorithm"], r.config["lr"], r.config["seed"]) for r in kept} == {
        (algorithm, 0.2, seed) for algorithm in ("fedavg", "fedprox") for seed in (0, 1)
    }
    with pytest.raises(ConfigError, match="takes a config key, not colour"):
        best_per(load_runs([tmp_path]), ["algorithm", "colour"])
    worst = best_per(load_runs([tmp_path]), ["algorithm"], "test_loss")
    assert {r.config["lr"] for r in worst} == {0.2}, "a small loss is good"
    with pytest.raises(ConfigError, match="no metric 'gap'"):
        best_per(load_runs([tmp_path]), ["algorithm"], "gap")


def test_a_map_over_two_keys(
    run_inline: RunInline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for lr in (0.1, 0.2):
        for steps in (1, 3):
            run_inline(num_rounds=2, run_name=f"g-{lr}-{steps}", lr=lr, local_steps=steps)
    words = ["grid", str(tmp_path), "-x", "lr", "-y", "local-steps", "-o", str(tmp_path / "g.png")]
    assert fedapp(monkeypatch, *words) == 0
    with Image.open(tmp_path / "g.png") as drawn:
        assert len(set(drawn.convert("L").getdata())) > 50
    svg = tmp_path / "g.svg"
    spent = ["--value", "uplink_bytes", "--width", "2.5", "--font-size", "6", "-o", str(svg)]
    assert fedapp(monkeypatch, *words, *spent) == 0
    assert "<!-- uplink, all clients (kB) -->" in svg.read_text(), "a unit that people use"
    for text in ("local step size", "local steps per round", "FedAvg, digits"):
        assert f"<!-- {text}" in svg.read_text()
    assert 'width="180pt"' in svg.read_text()
    run_inline(num_rounds=2, run_name="g-other", lr=0.1, local_steps=1, batch_size=7)
    assert fedapp(monkeypatch, *words) == 2
    assert "differ in batch-size" in capsys.readouterr().err
    words[3] = "colour"
    assert fedapp(monkeypatch, *words) == 2
    assert "colour is not a config key" in capsys.readouterr().err
