"""Dry runs: every experiment could start, and a round costs what they say."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from fedapp.building import expected_bytes, make_strategy
from fedapp.cli import main
from fedapp.parsing import parse_run_config
from fedapp.plan import plan
from fedapp.problems import kind_of
from fedapp.problems.keys import QuadraticKeys
from fedapp.registry import ALGORITHMS
from fedapp.sweeps import PlannedRun, read_runs
from tests.conftest import RunInline, kebab, read_rounds

EXPERIMENTS = sorted((Path(__file__).parents[1] / "experiments").rglob("*.toml"))
PARTS = {path.parent / "study.toml" for path in EXPERIMENTS}  # which other files include
# Keys that are checked each by itself, and that no cost depends on.
ALONE = {"seed", "partition-alpha"}


def without_repetitions(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Leave out runs whose values of `ALONE` and whose others were in runs before: eight of nine of GradMA's."""
    seen: set[object] = set()
    kept = []
    for run in runs:
        alone = {item for item in run.values.items() if item[0] in ALONE}
        parts: set[object] = {frozenset(run.values.items() - alone), *alone}
        if not parts <= seen:
            kept.append(run)
            seen |= parts
    return kept


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path for path in EXPERIMENTS if path not in PARTS],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_every_experiment_could_start(path: Path) -> None:
    runs = without_repetitions(read_runs(path))
    configs = [parse_run_config(planned.values) for planned in runs]
    common, table = plan(configs)
    assert f"{len(configs):,} runs" in common
    assert table.row_count >= len({config.algorithm for config in configs})


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("model", ["mlp-20", "resnet20"])
def test_a_round_costs_what_the_plan_says(name: str, model: str, run_inline: RunInline) -> None:
    everyone = name in ("fedcet", "qsgd", "diana")
    keys = kebab(
        {
            "algorithm": name,
            "model": model,
            "compressor": "none",  # so that there is no coding to guess at
            "num_clients": 4,
            "clients_per_round": 4 if everyone or model == "resnet20" else 2,
            "local_steps": 1 if everyone or name == "vrdiana" else 2,
            "lr": 0.01,
            "num_rounds": 1 if model == "resnet20" else 8,
            "eval_every": 8,
            "batch_size": 4,
        }
    )
    config = parse_run_config(keys)
    up, down = expected_bytes(make_strategy(config, kind_of(config).outline(config)))
    directory = run_inline(
        **{key.replace("-", "_").replace(".", "__"): v for key, v in keys.items()}
    )
    last = read_rounds(directory)[-1]
    headers = config.clients_per_round * 8 * 200  # names, shapes and frames
    assert up <= last["uplink_bytes"] <= up + headers
    if model == "mlp-20":  # by round 8 everyone has taken part before
        assert down <= last["downlink_bytes"] <= down + headers


def test_repetitions_add_no_value_and_no_combination_of_the_others() -> None:
    def others(runs: Iterable[PlannedRun]) -> set[object]:
        return {frozenset((k, v) for k, v in run.values.items() if k not in ALONE) for run in runs}

    runs = read_runs(EXPERIMENTS[0].parents[1] / "gradma" / "mnist.toml")
    kept = without_repetitions(runs)
    assert others(kept) == others(runs)
    assert {i for run in kept for i in run.values.items()} == {
        i for run in runs for i in run.values.items()
    }
    assert len(kept) < len(runs) / 8


def test_a_dry_run_needs_no_data_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def dry_run(text: str) -> int:
        (tmp_path / "try.toml").write_text(text)
        words = ["--dry-run", str(tmp_path / "try.toml"), "--out", str(tmp_path / "results")]
        return main(["run", *words])

    assert dry_run('dataset = "cifar100"\nmodel = "lenet5"\n[sweep]\nseed = [0, 1, 2]') == 0
    shown = capsys.readouterr().out
    assert "3 runs, 150 rounds in all" in shown
    assert f"{5 * 4 * 815_332 / 1e6:.3g} MB" in shown  # LeNet-5 with 100 classes
    assert not (tmp_path / "results").exists()
    assert dry_run('algorithm = "fedcet"') == 2
    assert "needs all clients" in capsys.readouterr().err
    assert dry_run('model = "lenet6"') == 2
    assert "'lenet6' is not known" in capsys.readouterr().err
    assert dry_run('dataset = "nowhere"') == 2
    assert "'nowhere' is not known" in capsys.readouterr().err


def test_the_plan_of_a_compressed_run_is_nominal() -> None:
    config = parse_run_config({"algorithm": "fedpaq", "dataset": "quadratic", "qsgd.levels": 3})
    up, _ = expected_bytes(make_strategy(config, kind_of(config).outline(config)))
    bits = config.table(QuadraticKeys).dim * (1 + np.ceil(np.log2(3 + 1))) + 32
    assert up == config.clients_per_round * bits / 8
