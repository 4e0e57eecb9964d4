"""A user's own Problem: several inputs of any type, its own loss and metrics; the same bits everywhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from safetensors.torch import load_file

from fedapp import Problem, RunConfig, client_app, wire
from fedapp.doors import name_of
from fedapp.engine import InlineGrid
from fedapp.engine.ray_workers import RayWorkers
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.problems.outside.problems import Prices, TwoInputs
from tests.support.commands import fedapp
from tests.support.runs import assert_same
from tests.support.workers import run_on

HOME = "tests.problems.outside.problems"
KEYS: dict[str, Value] = {
    "num_clients": 4,
    "clients_per_round": 3,
    "num_rounds": 4,
    "local_steps": 3,
    "batch_size": 8,
    "lr": 0.05,
    "algorithm": "scaffold",
}


def named(name: str) -> dict[str, Value]:
    return KEYS | {"problem": f"{HOME}:{name}"}


@pytest.mark.parametrize("name", ["Prices", "Words"])
def test_the_same_bits_on_any_number_of_nodes_and_when_resumed(
    name: str, run_inline: RunInline
) -> None:
    whole = run_inline(**named(name), run_name="whole")
    assert_same(whole, run_inline(nodes=4, **named(name), run_name="nodes"))
    halves = named(name) | {"run_name": "halves", "checkpoint_every": 1}
    run_inline(**halves | {"num_rounds": 3})
    assert_same(whole, run_inline(**halves, resume=True))


def test_its_own_metrics_are_recorded(run_inline: RunInline) -> None:
    directory = run_inline(**named("Prices"), eval_train=True)
    lines = read_rounds(directory)
    assert all(line["test_rmse"] == pytest.approx(line["test_loss"] ** 0.5) for line in lines)
    assert all(line["test_worst"] >= line["test_rmse"] for line in lines)
    assert lines[-1]["objective"] < lines[0]["objective"]
    TwoInputs().load_state_dict(load_file(directory / "model.safetensors"))


def test_a_problem_without_test_data_is_trained(run_inline: RunInline) -> None:
    lines = read_rounds(run_inline(**named("Words")))
    assert all(line["test_loss"] is None and line["clients"] == 3 for line in lines)
    assert lines[-1]["uplink_bytes"] == 3 * (2 * (4 * (20 * 6 + 93) + 128) + 128)


def test_the_loss_is_the_problem_s() -> None:
    problem = make_problem(parse_run_config(kebab(named("Prices"))))
    x, buffers = problem.initial()
    figures = problem.evaluate(x, buffers)
    network = TwoInputs().eval()
    network.load_state_dict({k: _torch(v) for k, v in problem.named_tensors(x, buffers).items()})
    from tests.problems.outside.problems import samples

    words, numbers, prices = samples(99, 30)
    outputs = network(_torch(words), _torch(np.array(numbers, np.float32)))
    expected = np.mean((outputs.detach().numpy() - prices.numpy().astype(np.float32)) ** 2)
    assert figures["test_loss"] == pytest.approx(expected)


def _torch(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unequal", r"The data of client 0 should be inputs and targets, .* \[\(4, 5\), \(3,\)\]"),
        ("Empty", "Client 0 has no samples"),
        ("NUMBER", "gives int: return a class derived from fedapp.Problem"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(name: str, said: str, run_inline: RunInline) -> None:
    with pytest.raises(ConfigError, match=said):
        run_inline(**named(name))


@pytest.mark.parametrize("engine", ["inline", "ray"])
@pytest.mark.parametrize(
    ("name", "sentence", "cause"),
    [
        ("BrokenMaker", "AttributeError while making it", "my problem"),
        ("BrokenModel", "KeyError while making the network", "my model"),
        ("BrokenData", "FileNotFoundError while loading the data of client 0", "my file"),
        ("BrokenTest", "OSError while loading the test data", "my test data"),
        ("BrokenForward", "IndexError while computing the network's outputs", "my outputs"),
        ("BrokenLoss", "ValueError while computing the loss", "my loss"),
        ("BrokenMetrics", "ZeroDivisionError while computing metrics", "my metrics"),
    ],
)
def test_an_error_in_the_problem_shows_its_traceback(
    name: str,
    sentence: str,
    cause: str,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    out = ["--engine", engine, "--out", str(tmp_path)]
    assert fedapp(monkeypatch, "run", *out, "-c", f'problem="{HOME}:{name}"') == 2
    first, second, *rest = capfd.readouterr().err.splitlines()
    assert first == f"problem = '{HOME}:{name}' raised {sentence}: see the traceback."
    assert second == "Traceback (most recent call last):"
    assert cause in rest[-1] and any("problems/outside/problems.py" in line for line in rest)
    assert not list(tmp_path.iterdir())


def test_a_node_reports_an_error_in_the_problem_and_logs_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In a federation, nodes try the user's code on their own data before the first round."""
    config = parse_run_config(kebab(named("BrokenLoss")))
    grid = InlineGrid(client_app.app, config.flat(), 2)
    message = Message(wire.pack_query({"shared-data": True}), 2, "query")
    (reply,) = grid.send_and_receive([message])
    report = wire.unpack_report(reply, config.num_clients)
    sentence = "raised ValueError while computing the loss: see the traceback."
    assert list(report.clients) == [1, 3] and report.problem.endswith(sentence)
    assert sentence in caplog.text and "ValueError: my loss" in caplog.text


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("name", ["Prices", "Words"])
def test_the_same_bits_on_ray(
    name: str, workers: RayWorkers, run_inline: RunInline, tmp_path: Path
) -> None:
    there = run_on(workers, tmp_path / "ray", **named(name))
    assert_same(there, run_inline(**named(name)))


def test_a_problem_sees_the_whole_config() -> None:
    seen: list[RunConfig] = []

    def made(config: RunConfig) -> Problem:
        seen.append(config)
        return Prices(config)

    values: dict[str, Value] = {
        "problem": name_of(made),
        "lr": 0.33,
        "num-rounds": 3,
        "algorithm": "scaffold",
    }
    config = parse_run_config(values)
    make_problem(config)
    assert seen == [config]
