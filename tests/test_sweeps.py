"""Sweeps: their product of runs, what is skipped, and the table at their end."""

import re
import shutil
from functools import partial
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp

from fedapp import parallel
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.files import seal, unseal
from fedapp.parsing import parse_run_config
from fedapp.report.runs import load_runs
from fedapp.sweeps import read_runs
from fedapp.tables import Value
from tests.conftest import read_rounds
from tests.support.commands import fedapp

SWEEP = """
dataset = "quadratic"
num-rounds = 3
quadratic.dim = 5

[[sweep.method]]
name = "eight"
algorithm = "fedpaq"
qsgd.levels = 8

[[sweep.method]]
name = "plain"
algorithm = "fedavg"

[sweep]
seed = [0, 1]
"""

SHORT = 'dataset = "quadratic"\nquadratic.dim = 3\nnum-rounds = 1\n'


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "try.toml"
    path.write_text(SWEEP)
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    return fedapp(monkeypatch, "run", "--engine", "inline", *map(str, arguments))


def test_runs_are_the_product_of_the_axes(sweep: Path) -> None:
    runs = {run.name: run.values for run in read_runs(sweep)}
    assert list(runs) == ["try-eight-seed-0", "try-eight-seed-1", "try-plain-seed-0", "try-plain-seed-1"]  # fmt: skip
    assert runs["try-eight-seed-1"] == {
        "dataset": "quadratic",
        "num-rounds": 3,
        "quadratic.dim": 5,
        "algorithm": "fedpaq",
        "qsgd.levels": 8,
        "seed": 1,
    }


def test_lists_in_a_point_are_a_grid_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "try.toml").write_text(
        '[[sweep.method]]\nname = "prox"\nalgorithm = "fedprox"\nfedprox.mu = [0.1, 1.0]\n'
        'lr = [0.2, 0.3]\n[[sweep.method]]\nname = "avg"\nalgorithm = "fedavg"\n'
    )
    runs = {run.name: run.values for run in read_runs(tmp_path / "try.toml")}
    assert list(runs) == [
        "try-prox-mu-0.1-lr-0.2",
        "try-prox-mu-0.1-lr-0.3",
        "try-prox-mu-1.0-lr-0.2",
        "try-prox-mu-1.0-lr-0.3",
        "try-avg",
    ]
    assert runs["try-prox-mu-1.0-lr-0.2"] == {"algorithm": "fedprox", "fedprox.mu": 1.0, "lr": 0.2}


def test_a_file_can_begin_with_another(sweep: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.toml"
    more.write_text(
        'include = "try.toml"\nnum-rounds = 7\n[quadratic]\nnoise = 1.0\n[sweep]\nseed = [5]'
    )
    runs = {run.name: run.values for run in read_runs(more)}
    assert list(runs) == ["more-eight-seed-5", "more-plain-seed-5"]
    assert runs["more-plain-seed-5"]["num-rounds"] == 7
    assert runs["more-plain-seed-5"]["quadratic.dim"] == 5
    assert runs["more-plain-seed-5"]["quadratic.noise"] == 1.0
    (tmp_path / "cycle.toml").write_text('include = "more.toml"')
    more.write_text('include = "cycle.toml"')
    with pytest.raises(ConfigError, match="another file beside it"):
        read_runs(more)
    more.write_text('include = "more.toml"')
    with pytest.raises(ConfigError, match="another file beside it"):
        read_runs(more)


@pytest.mark.slow
def test_runs_side_by_side_are_the_same(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two at a time, each in its own process; and what is complete is not run again."""
    assert run(monkeypatch, sweep, "--out", tmp_path / "one") == 0
    capfd.readouterr()
    for _ in range(2):
        assert run(monkeypatch, sweep, "--out", tmp_path / "two", "--workers", 2) == 0
        assert "4/4, 0 s left: try-" in capfd.readouterr().out
    for directory in (tmp_path / "one").iterdir():
        ours, theirs = (read_rounds(tmp_path / n / directory.name) for n in ("one", "two"))
        assert [r | {"wall_seconds": 0} for r in ours] == [r | {"wall_seconds": 0} for r in theirs]


@pytest.mark.slow
def test_one_bad_run_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'dataset = "quadratic"\nnum-rounds = 2\n[[sweep.method]]\nname = "bad"\nalgorithm = "gradma-s"\n'
        'gradma.memory-size = 1\n[[sweep.method]]\nname = "good"\nalgorithm = "fedavg"\n'
    )
    assert run(monkeypatch, path, "--out", tmp_path / "out", "--workers", 2) == 2
    told = capfd.readouterr().out
    assert "gradma.memory-size = 1 is not allowed" in told
    assert len(read_rounds(tmp_path / "out" / "bad-good")) == 2


def test_a_sweep_goes_on_where_it_stopped(
    sweep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert run(monkeypatch, sweep, "--out", out) == 0
    before = {place.name: read_rounds(place) for place in out.iterdir()}
    assert len(before) == 4
    # As if it had been killed in the middle of a run's third line, before the next.
    cut = out / "try-eight-seed-1" / "rounds.jsonl"
    cut.write_bytes(cut.read_bytes()[:-20])
    for file in (out / "try-plain-seed-1").iterdir():
        file.unlink()
    (out / "try-plain-seed-1").rmdir()
    for name in ("config.json", "model.safetensors", "rounds.jsonl"):  # killed as it began
        (out / "try-eight-seed-0" / name).unlink()
    capsys.readouterr()
    assert run(monkeypatch, sweep, "--out", out) == 0
    told = capsys.readouterr().out
    assert told.count("skipped, it is complete already") == 1
    assert (
        "try-eight-seed-1 was not complete: its 2 rounds are now in try-eight-seed-1.partial-1"
        in told
    )
    assert len(load_runs([out])) == 4, "what was set aside is not shown"
    for name, rounds in before.items():
        now = [r | {"wall_seconds": 0} for r in read_rounds(out / name)]
        assert now == [r | {"wall_seconds": 0} for r in rounds]


def test_another_config_under_the_same_name_is_refused(
    sweep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    assert run(monkeypatch, sweep, "--out", out) == 0
    assert run(monkeypatch, sweep, "--out", out, "-c", "seed=3") == 2
    told = capsys.readouterr()
    assert "it is an axis of the sweep" in told.err
    # A key that an older run's config does not have counts as its default.
    for file in out.glob("*/config.json"):
        facts = unseal(file)
        assert facts
        del facts["config"]["topk.ratio"]
        file.write_text(seal(facts))
    assert run(monkeypatch, sweep, "--out", out) == 0
    assert capsys.readouterr().out.count("complete already") == 4
    for key in ("topk.ratio=0.3", "lr=0.01"):
        for workers in (0, 2):
            words = [sweep, "--out", out, "-c", key, "--workers", workers]
            assert run(monkeypatch, *words) == 1
            told = capsys.readouterr()
            assert told.err.count("holds a run with another config") == 4
            assert told.out == "", "results of the older config are not those of this one"


@pytest.mark.slow
def test_the_end_of_a_sweep_names_what_is_not_in_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    preset, out = tmp_path / "try.toml", tmp_path / "out"
    preset.write_text(
        'dataset = "quadratic"\nnum-rounds = 2\n[[sweep.method]]\nname = "bad"\nalgorithm = "gradma-s"\n'
        'gradma.memory-size = 1\n[[sweep.method]]\nname = "other"\nalgorithm = "fedavg"\n'
        '[[sweep.method]]\nname = "good"\nalgorithm = "fedprox"\n'
    )
    assert run(monkeypatch, preset, "--out", out) == 2
    assert run(monkeypatch, preset, "--out", tmp_path / "before", "-c", "lr=0.123") == 2
    shutil.rmtree(out / "try-other")
    (tmp_path / "before" / "try-other").rename(out / "try-other")
    for workers in (0, 2):
        capfd.readouterr()
        assert run(monkeypatch, preset, "--out", out, "--workers", workers) == 2
        shown = capfd.readouterr()
        table = shown.out[shown.out.index("best gap") :].splitlines()
        assert table[1].startswith("FedProx ")
        assert table[2:-1] == [
            "Skipped, because they had ended before: try-good",
            "Refused, because their directories hold other runs: try-other",
            "Failed: try-bad",
        ]
        assert "try-good: skipped" in shown.out
        assert "try-other: refused, " in shown.err
        assert "try-other holds a run with another config" in shown.err
        assert "try-bad: failed, gradma.memory-size = 1 is not allowed" in shown.out + shown.err


def test_the_table_of_a_sweep_says_what_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "try.toml"
    preset.write_text('dataset = "quadratic"\nnum-rounds = 4\n[sweep]\nlr = [0.1, 1e9]\n')
    assert run(monkeypatch, preset, "--out", tmp_path / "results") == 1
    shown = capsys.readouterr().out
    assert re.search(r"1000000000.0 \(diverged after \d of 4 rounds\)", shown)
    assert "Failed: try-lr-1000000000.0" in shown


def test_an_error_that_nobody_foresaw_ends_one_run_of_a_sweep(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def grid(app: ClientApp, keys: dict[str, Value]) -> InlineGrid:
        if keys["seed"] == 0:
            raise ZeroDivisionError("by chance")
        return InlineGrid(app, keys)

    monkeypatch.setattr("fedapp.engine.InlineGrid", grid)
    preset = tmp_path / "try.toml"
    preset.write_text(SHORT + "[sweep]\nseed = [0, 1]\n")
    assert run(monkeypatch, preset, "--out", tmp_path / "out") == 1
    shown = capsys.readouterr().out
    assert "Run: try-seed-1\nFailed: try-seed-0" in shown
    assert "ZeroDivisionError: by chance" in caplog.text
    preset.write_text(SHORT + "seed = 0\n")
    with pytest.raises(ZeroDivisionError):
        run(monkeypatch, preset, "--out", tmp_path / "out")


def test_a_killed_process_is_a_failure_of_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_run_values", partial(exec, "import os; os._exit(9)"))
    configs = [parse_run_config({"run-name": name}) for name in ("a", "b", "c")]
    ended = {config.run_name: str(error) for config, error in parallel.run_all(configs, 1)}
    assert ended.keys() == {"a", "b", "c"}
    assert all("was killed, perhaps for want of memory" in text for text in ended.values())


def test_a_sweep_without_the_metric_to_choose_by_shows_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "try.toml"
    preset.write_text(SHORT + "[sweep]\nlr = [0.1, 0.2]\n")
    choice = "--per", "algorithm", "--best-by", "gapp"
    assert run(monkeypatch, preset, "--out", tmp_path / "out", *choice) == 0
    told = capsys.readouterr()
    assert "These runs have no metric 'gapp'." in told.err
    assert re.search(r"^FedAvg, lr = 0\.1 .*\nFedAvg, lr = 0\.2 ", told.out, re.M)
    assert "Run: try-lr-0.1, try-lr-0.2" in told.out


@pytest.mark.parametrize("key", ["fedprox.mu", "'fedprox.mu'"])
def test_an_axis_may_be_a_dotted_key(key: str, tmp_path: Path) -> None:
    (tmp_path / "try.toml").write_text(f"[sweep]\nseed = [1]\n{key} = [0.01, 0.1]\n")
    runs = read_runs(tmp_path / "try.toml")
    assert [run.values for run in runs] == [{"seed": 1, "fedprox.mu": mu} for mu in (0.01, 0.1)]
    assert runs[0].name == "try-seed-1-fedprox.mu-0.01"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[sweep]\nseed = 3", "a list of values"),
        ("[[sweep.method]]\nlr = 0.1", "needs a name"),
        ("[sweep]\nseed = [1, 1]", "the same name"),
        ("sweep = [1]", "a list of values"),
        ("sweep = 1", "a list of values"),
        ("[sweep]\nfedprox.mu = 0.1", "a list of values"),
        ("[sweep.fedprox]", "a list of values"),
        ("[sweep", "cannot be read"),
        ('[[sweep.method]]\nname = "a"\nlr = []', "leaves nothing to run"),
        ('[[sweep.method]]\nname = "a"\nlr = 0.1\n[sweep]\nlr = [1.0]', "Two axes of .* set lr"),
        ("lr = [1, 2]\n[sweep]\nseed = [1]", "cannot be read"),
    ],
)
def test_mistakes_in_a_sweep_are_told(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_runs(tmp_path / "wrong.toml")


def test_a_sweep_ends_with_a_table(
    sweep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "results"
    assert run(monkeypatch, sweep, "--out", out) == 0
    shown = capsys.readouterr().out
    assert "Run 4 of 4, about" in shown
    assert len(re.findall(r"^try-\S+-seed-[01]: run, 3 rounds$", shown, re.M)) == 4
    table = shown[shown.index("best gap") :].splitlines()
    assert [line.split()[0] for line in table[1:3]] == ["FedPAQ", "FedAvg"]
    gaps = [read_rounds(out / f"try-plain-seed-{seed}")[-1]["gap"] for seed in (0, 1)]
    assert f"{sum(gaps) / 2:.4g}" in table[2]
    choice = "--best-by", "gap", "--per", "num-clients"
    assert run(monkeypatch, sweep, "--out", out, *choice) == 0
    shown = capsys.readouterr().out
    lines = shown[shown.index("best gap") :].splitlines()
    assert len(lines) == 5  # one setting, how it was chosen, what was skipped, and the place
    assert lines[2].startswith("Settings were chosen on training data, by the best gap (gap)")
    assert lines[3].startswith("Skipped, because they had ended before: try-eight-seed-0, ")


def test_what_diverged_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "try.toml"
    keys = 'dataset = "quadratic"\nnum-rounds = 300\nlocal-steps = 9\n'
    preset.write_text(keys + "[sweep]\nlr = [0.1, 1e9]\n")
    assert run(monkeypatch, preset, "--out", tmp_path / "results") == 1
    assert "update is finite any more in round 1: lower lr" in capsys.readouterr().err
    assert run(monkeypatch, preset, "--out", tmp_path / "results") == 0
    assert "diverged after" in capsys.readouterr().out
    assert len(list((tmp_path / "results").iterdir())) == 2
