"""Which engine is chosen where none is named."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.cli import main
from fedapp.config import RunConfig
from fedapp.engine.choice import RAY_START, inline_is_faster, seconds_of_step, seconds_of_training
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.protocols import FederatedProblem
from fedapp.runner import EngineChoice
from tests.conftest import read_rounds


@given(st.floats(0, 1e6), st.integers(1, 64))
def test_the_engine_that_ends_sooner_is_chosen(seconds: float, workers: int) -> None:
    on_ray = RAY_START + seconds / workers
    if abs(on_ray - seconds) > 1e-6 * seconds:
        assert inline_is_faster(seconds, workers) == (seconds < on_ray)


def test_the_estimate_grows_with_rounds_clients_steps_and_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedapp.engine.choice.seconds_of_step", lambda config, problem: 0.5)
    config = parse_run_config({"num-rounds": 3, "clients-per-round": 4, "local-steps": 2})
    problem = make_problem(config)
    assert seconds_of_training([config], problem) == 12
    passes = config.model_copy(update={"local_epochs": 2})
    steps = passes.local_work.num_steps(problem.objective(0).num_examples)
    assert seconds_of_training([config, passes], problem) == 12 + 6 * steps


@pytest.mark.parametrize("dataset", ["digits", "quadratic", "diabetes"])
def test_timing_a_step_changes_nothing(dataset: str) -> None:
    config = parse_run_config({"dataset": dataset, "num-clients": 3, "clients-per-round": 1})
    problem = make_problem(config)
    before = problem.objective(0).buffers.clone()
    assert 0 < seconds_of_step(config, problem) < 60
    assert (problem.objective(0).buffers == before).all()


def test_what_is_named_is_taken_and_a_server_without_data_uses_ray() -> None:
    for inline in (True, False):
        choice = EngineChoice(inline, 0, "")
        assert choice.decided([], None) is choice
    assert EngineChoice(None, 0, "").decided([parse_run_config({})], None).inline is False


def test_the_choice_is_about_the_runs_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []

    def seconds(configs: Sequence[RunConfig], problem: FederatedProblem) -> float:
        sizes.append((len(configs), problem.layout.size))
        return 0.0

    monkeypatch.setattr("fedapp.engine.choice.seconds_of_training", seconds)
    preset, words = tmp_path / "try.toml", ["--out", str(tmp_path / "out")]
    for dims in ("[3]", "[3, 5]"):
        preset.write_text(
            f'dataset = "quadratic"\nnum-rounds = 1\n[sweep]\n"quadratic.dim" = {dims}\n'
        )
        assert main(["run", str(preset), *words]) == 0
    assert sizes == [(1, 3), (1, 5)]


def test_a_small_run_is_inline_without_being_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = "dataset=quadratic num-rounds=2 run-name=small"
    assert main(["run", "-c", keys, "--out", str(tmp_path)]) == 0
    assert "Engine: inline, for about " in capsys.readouterr().out
    assert len(read_rounds(tmp_path / "small")) == 2
