"""Any nn.Module by `model = "package.module:name"`: the same bits everywhere, and a model that can be loaded."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from fedapp.data.facts import Facts
from fedapp.engine.ray_workers import RayWorkers
from fedapp.errors import ConfigError
from fedapp.models.outside import outside_model
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.commands import fedapp
from tests.support.runs import assert_same
from tests.support.workers import run_on

HOME = "tests.models.outside.networks"
# Name -> numbers that are trained, and statistics that travel with them.
NETWORKS = {
    "Tied": (64 * 64 + 2 * 64 + 650, 0),
    "frozen": (130, 0),
    "ManyBuffers": (64 * 8 + 8 + 64 + 8 + 4 * 8 + 90, 4 * 8),
    "Assigned": (650, 64),
    "shared_buffers": (64 * 64 + 64 + 650, 64),
    "Masked": (4 * 64 + 4 * 8 + 650, 0),
    "Counting": (651, 0),
    "Fading": (650, 0),
    "cumulative": (128 + 650, 128),
    "dropout": (64 * 20 + 20 + 210, 0),
    "Noisy": (650, 0),
    "lstm": (4 * 6 * (8 + 6 + 2) + 4 * 6 * (6 + 6 + 2) + 70, 0),
    "gru": (3 * 6 * (8 + 6 + 2) + 3 * 6 * (6 + 6 + 2) + 70, 0),
    "parametrized": (650 + 10, 0),
    "Embedded": (5 * 64 + 60, 0),
    "PRETRAINED": (128 + 650, 128),
}
KEYS: dict[str, Value] = {
    "algorithm": "scaffold",
    "num_clients": 5,
    "clients_per_round": 3,
    "num_rounds": 3,
    "local_steps": 2,
    "train_samples": 200,
    "partition": "iid",
}
HEADER = 128  # bytes of an array before its numbers


def named(name: str) -> dict[str, Value]:
    return KEYS | {"model": f"{HOME}:{name}"}


def new(name: str) -> nn.Module:
    return outside_model(f"{HOME}:{name}", Facts((1, 8, 8), 10))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_bits_on_any_number_of_nodes_and_when_resumed(
    name: str, run_inline: RunInline
) -> None:
    whole = run_inline(**named(name), run_name="whole")
    assert_same(whole, run_inline(nodes=3, **named(name), run_name="nodes"))
    halves = named(name) | {"run_name": "halves", "checkpoint_every": 1}
    run_inline(**halves | {"num_rounds": 2})
    assert_same(whole, run_inline(**halves, resume=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_only_what_is_trained_is_sent(name: str, run_inline: RunInline) -> None:
    trained, statistics = NETWORKS[name]
    for line in read_rounds(run_inline(**named(name) | {"num_rounds": 1})):
        sent = 2 * (4 * trained + HEADER) + 4 * statistics + HEADER  # u_i and the change of c_i
        assert line["uplink_bytes"] == line["downlink_bytes"] == 3 * sent
        assert (line["clients"], line["failures"]) == (3, 0)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_model_is_a_state_dict_of_the_network(name: str, run_inline: RunInline) -> None:
    directory = run_inline(**named(name))
    state = load_file(directory / "model.safetensors")
    network = new(name)
    network.load_state_dict(state)  # strict: tied weights are there under both names
    assert not any(tensor.isnan().any() for tensor in state.values())
    config = parse_run_config(kebab(named(name)))
    problem = make_problem(config)
    x, _ = problem.initial()
    begun = problem.named_tensors(x, np.zeros(NETWORKS[name][1], np.float32))
    trained = {n for n, p in new(name).named_parameters(remove_duplicate=False) if p.requires_grad}
    moved = {
        n for n in state if not np.array_equal(begun[n], state[n].numpy().reshape(begun[n].shape))
    }
    fixed = {n for n, _ in network.named_parameters(remove_duplicate=False)} - trained
    assert moved & trained and not moved & fixed
    network.eval()
    images = torch.randn(3, 1, 8, 8)
    assert network(images).isfinite().all()


def test_constants_keep_their_types_and_values(run_inline: RunInline) -> None:
    state = load_file(run_inline(**named("ManyBuffers")) / "model.safetensors")
    assert state["kept"].dtype == torch.bool and state["order"].dtype == torch.int64
    assert sorted(state["order"].tolist()) == list(range(8))
    counted = load_file(run_inline(**named("Counting")) / "model.safetensors")
    assert (int(counted["seen"]), int(counted["steps"])) == (0, 0)
    masked = load_file(run_inline(**named("Masked")) / "model.safetensors")["mask"]
    assert torch.equal(masked, torch.full((8, 8), float("-inf")).triu(1))


def test_sparse_gradients_are_autograd_s() -> None:
    problem: Any = make_problem(parse_run_config(kebab(named("Embedded"))))
    batch = problem.objective(0).indices[:9]
    x = torch.tensor(problem.initial()[0])
    _, gradient = problem.objective(0).loss_gradient(x, batch)
    module = problem.model.module
    samples = problem.gather(problem.objective(0).arrays, batch)
    dense = torch.autograd.grad(problem.loss(module, samples), list(module.parameters()))
    expected = torch.cat([g.to_dense().reshape(-1) for g in dense])
    torch.testing.assert_close(gradient, expected)
    assert gradient[: 64 * 5].any()


def test_a_given_network_starts_at_its_weights_and_is_not_changed(run_inline: RunInline) -> None:
    from tests.models.outside.networks import PRETRAINED

    before = {name: tensor.clone() for name, tensor in PRETRAINED.state_dict().items()}
    problem = make_problem(parse_run_config(kebab(named("PRETRAINED"))))
    x, buffers = problem.initial()
    begun = problem.named_tensors(x, buffers)
    run_inline(**named("PRETRAINED"))
    for name, tensor in PRETRAINED.state_dict().items():
        assert torch.equal(tensor, before[name])
        np.testing.assert_array_equal(begun[name], tensor.numpy())
    assert before["1.running_mean"].any() and int(before["1.num_batches_tracked"]) == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Lazy", "parameter without a shape, out.weight: give layers their sizes"),
        ("whole_numbers", "a parameter levels of type torch.int64: use real"),
        ("complex_numbers", "a parameter weight of type torch.complex64: use real"),
        ("nothing_trained", "has nothing to train: set requires_grad"),
        ("nothing", "returned NoneType: return a torch.nn.Module"),
        ("NUMBER", "is neither a torch.nn.Module nor a function that returns one"),
        (
            "Reshaping",
            "assigns to its buffer 'mean', of the shape (1,), something that does not fit",
        ),
        ("Zeroing", "replaces the gradients of its parameters: leave parameter.grad alone"),
        ("absent", "the module tests.models.outside.networks has nothing named absent"),
    ],
)
def test_what_cannot_be_trained_is_refused(name: str, said: str, run_inline: RunInline) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        run_inline(**named(name))


@pytest.mark.parametrize("engine", ["inline", "ray"])
@pytest.mark.parametrize(
    ("name", "sentence", "cause"),
    [
        (f"{HOME}:broken", "KeyError while making the network", "KeyError: 'my factory'"),
        (f"{HOME}:BrokenForward", "RuntimeError while computing its outputs", "shapes cannot be"),
        ("tests.models.outside.broken:x", "RuntimeError while importing it", "my module"),
    ],
)
def test_an_error_in_the_network_shows_its_traceback(
    name: str,
    sentence: str,
    cause: str,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    out = ["--engine", engine, "--out", str(tmp_path)]
    assert fedapp(monkeypatch, "run", *out, "-c", f'model="{name}"') == 2
    first, second, *rest = capfd.readouterr().err.splitlines()
    assert first == f"model = {name!r} raised {sentence}: see the traceback."
    assert second == "Traceback (most recent call last):"
    assert cause in rest[-1] and any("tests/models/outside" in line for line in rest)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize(
    "name", ["dropout", "Counting", "Fading", "ManyBuffers", "Assigned", "PRETRAINED"]
)
def test_the_same_bits_on_ray(
    name: str, workers: RayWorkers, run_inline: RunInline, tmp_path: Path
) -> None:
    there = run_on(workers, tmp_path / "ray", **named(name))
    assert_same(there, run_inline(**named(name)))


def test_a_network_with_too_few_outputs_is_refused_before_the_run(
    run_inline: RunInline, tmp_path: Path
) -> None:
    said = r"outputs of the shape \(32, 3\) for 32 samples, .* return the shape \(32, 10\)"
    with pytest.raises(ConfigError, match=said):
        run_inline(model=f"{HOME}:three_classes", results_dir=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_batch_norm_never_meets_a_batch_of_one(run_inline: RunInline) -> None:
    """Batches of 35 over clients with 71 or 72 samples leave one over, or two."""
    keys: dict[str, Value] = {"batch_size": 35, "local_epochs": 2, "num_rounds": 2}
    config = parse_run_config(kebab({"model": f"{HOME}:normed", **keys}))
    sizes = {make_problem(config).objective(client).num_examples for client in range(20)}
    assert any(size % 35 == 1 for size in sizes)
    lines = read_rounds(run_inline(model=f"{HOME}:normed", clients_per_round=20, **keys))
    assert [line["failures"] for line in lines] == [0, 0]
