"""Flat parameters, the networks, and the quadratic problem."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedapp.config import LocalWork, RunConfig
from fedapp.errors import ConfigError
from fedapp.models.flat import FlatModel
from fedapp.models.networks import make_network
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.classification import Classification
from fedapp.problems.quadratic import Quadratic
from fedapp.randomness import generator

IMAGE = (3, 32, 32)


def weights_of(network: nn.Module) -> list[int]:
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return [layer.weight.numel() for layer in layers]


def test_lenet5_has_the_block_sizes_of_the_paper() -> None:
    network = make_network("lenet5", IMAGE, 10, "batch", 0)
    assert weights_of(network) == [4800, 102400, 614400, 73728, 1920]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet20(norm: str) -> None:
    network = make_network("resnet20", IMAGE, 10, norm, 0)
    assert sum(p.numel() for p in network.parameters()) == 269_722
    assert len(weights_of(network)) == 20
    assert sum("running" in name for name, _ in network.named_buffers()) == (
        38 if norm == "batch" else 0
    )


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("logreg", (1, 8, 8)), ("mlp-200-200", (1, 28, 28)), ("lenet5", (1, 28, 28)),
        ("lenet5", (1, 8, 8)), ("resnet20", (1, 28, 28)), ("resnet20", (3, 64, 64)),
    ],
)  # fmt: skip
def test_networks_classify_and_show_their_representation(
    name: str, shape: tuple[int, int, int]
) -> None:
    network = make_network(name, shape, 7, "group", 0)
    images = torch.randn(2, *shape)
    assert network(images).shape == (2, 7)
    torch.testing.assert_close(network.head(network.representation(images)), network(images))


def test_too_large_for_lenet5() -> None:
    with pytest.raises(ConfigError, match="up to 32x32"):
        make_network("lenet5", (3, 64, 64), 10, "batch", 0)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = FlatModel(make_network("mlp-10", IMAGE, 10, "batch", 1)).vector
    torch.manual_seed(6)
    again = FlatModel(make_network("mlp-10", IMAGE, 10, "batch", 1)).vector
    other = FlatModel(make_network("mlp-10", IMAGE, 10, "batch", 2)).vector
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def cross_entropy(module: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(module(batch[0]), batch[1])


@pytest.mark.parametrize("name", ["logreg", "mlp-20-20", "lenet5", "resnet20"])
def test_flat_gradient_is_autograd_s(name: str) -> None:
    images, labels = torch.randn(4, 1, 16, 16), torch.tensor([0, 1, 2, 3])
    reference = make_network(name, (1, 16, 16), 10, "batch", 3).train()
    model = FlatModel(make_network(name, (1, 16, 16), 10, "batch", 3))
    point = model.vector.clone()
    for _ in range(2):  # the second time, the buffer holds the first gradient
        loss, gradient = model.loss_gradient(point, (images, labels), cross_entropy)
    expected = F.cross_entropy(reference(images), labels)
    expected.backward()
    grads = [p.grad.reshape(-1) for p in reference.parameters() if p.grad is not None]
    torch.testing.assert_close(gradient, torch.cat(grads))
    torch.testing.assert_close(loss, expected.detach())


def test_binding_moves_the_network_without_copying() -> None:
    model = FlatModel(make_network("mlp-5", (1, 4, 4), 3, "batch", 0))
    images = torch.randn(2, 1, 4, 4)
    here, there = model.vector.clone(), torch.zeros(model.size)
    before = model.module(images)
    model.bind(there)
    assert torch.equal(model.module(images), torch.zeros(2, 3))
    there += here
    torch.testing.assert_close(model.module(images), before)


def test_buffers_are_one_vector_that_training_changes() -> None:
    model = FlatModel(make_network("resnet20", IMAGE, 10, "batch", 0))
    assert model.buffers.numel() == 2 * 16 * 7 + 2 * 32 * 6 + 2 * 64 * 6
    before = model.buffers.clone()
    batch = torch.randn(4, *IMAGE), torch.tensor([0, 1, 2, 3])
    model.loss_gradient(model.vector, batch, cross_entropy)
    assert not torch.equal(before, model.buffers)
    norm = next(m for m in model.module.modules() if isinstance(m, nn.BatchNorm2d))
    assert norm.running_mean is not None
    assert torch.equal(norm.running_mean, model.buffers[:16])


def test_a_saved_model_holds_no_counters_of_the_process() -> None:
    config = RunConfig(model="resnet20")
    problem = make_problem(config)
    x, buffers = problem.initial()
    problem.objective(0).loss_gradient(torch.tensor(x), np.array([0, 1, 2]))
    saved = problem.named_tensors(x, buffers)
    assert {int(v) for k, v in saved.items() if k.endswith("num_batches_tracked")} == {0}
    network = make_network("resnet20", (1, 8, 8), 10, "batch", 0)
    network.load_state_dict({k: torch.tensor(v) for k, v in saved.items()})


def test_batches_cover_the_data_once_a_pass() -> None:
    problem = make_problem(RunConfig())
    assert isinstance(problem, Classification)
    objective = problem.objective(3)
    n = objective.num_examples
    batches = list(objective.batches(LocalWork(0, 2, 16), generator(0, "batches", 1, 3)))
    per_pass = -(-n // 16)
    assert len(batches) == 2 * per_pass
    for half in (batches[:per_pass], batches[per_pass:]):
        assert sorted(np.concatenate(half)) == sorted(objective.indices)
    assert not np.array_equal(batches[0], batches[per_pass])
    steps = list(objective.batches(LocalWork(7, 0, 0), generator(0, "batches", 1, 3)))
    assert [len(b) for b in steps] == [n] * 7


def test_problems_are_shared_by_runs_that_differ_elsewhere() -> None:
    assert make_problem(RunConfig(lr=0.1)) is make_problem(RunConfig(algorithm="fedprox"))
    assert make_problem(RunConfig()) is not make_problem(RunConfig(seed=1))


def quadratic(**keys: float | int) -> Quadratic:
    values = {f"quadratic.{key}": value for key, value in keys.items()}
    problem = make_problem(parse_run_config({"dataset": "quadratic", **values}))
    assert isinstance(problem, Quadratic)
    return problem


def test_the_quadratic_s_optimum() -> None:
    problem = quadratic(dim=12, condition=50.0, heterogeneity=3.0)
    x = problem.optimum
    A, b = problem.A.double().numpy(), problem.b.double().numpy()
    slope = np.mean([A[i] @ (x - b[i]) for i in range(len(A))], axis=0)
    np.testing.assert_allclose(slope, 0, atol=1e-12)
    figures = problem.evaluate(x.astype(np.float32), np.zeros(0))
    assert figures["distance"] < 1e-5
    assert abs(figures["gap"]) < 1e-10
    assert problem.value(x + 0.1) > problem.value(x)
    eigenvalues = np.linalg.eigvalsh(A)
    np.testing.assert_allclose(eigenvalues[:, -1] / eigenvalues[:, 0], 50, rtol=1e-3)
    assert not np.allclose(A[0], A[1], atol=0.01), "equal Hessians would hide every bias"


def test_the_quadratic_s_noise() -> None:
    problem = quadratic(dim=200, noise=0.5)
    objective = problem.objective(0)
    y = torch.zeros(200)
    work = LocalWork(300, 0, 1)
    gradients = [
        objective.loss_gradient(y, b)[1] for b in objective.batches(work, generator(0, "n"))
    ]
    spread = torch.stack(gradients).std(0).mean()
    assert spread == pytest.approx(0.5, rel=0.05)


def test_gradients_are_the_slope_of_the_loss() -> None:
    objective = quadratic(dim=5).objective(2)
    y = torch.randn(5, generator=torch.Generator().manual_seed(0))
    batch = next(objective.batches(LocalWork(1, 0, 1), generator(0, "n")))
    _, gradient = objective.loss_gradient(y, batch)
    for axis in torch.eye(5):
        up, down = (objective.loss_gradient(y + s * 0.01 * axis, batch)[0] for s in (1, -1))
        assert float(up - down) / 0.02 == pytest.approx(float(gradient @ axis), abs=1e-4)


def test_the_full_gradient_is_the_mean_over_the_client_s_data() -> None:
    """Of all batches of one pass, weighted by their sizes; statistics do not change."""
    for keys in ({"model": "mlp-200"}, {"model": "resnet20", "norm": "group"}):
        problem = make_problem(parse_run_config({"dataset": "digits", "batch-size": 7, **keys}))
        x = torch.tensor(problem.initial()[0])
        objective = problem.objective(1)
        total = torch.zeros_like(x)
        for batch in objective.batches(LocalWork(0, 1, 7), generator(0, "b")):
            total += objective.loss_gradient(x, batch)[1] * len(batch) / objective.num_examples
        torch.testing.assert_close(objective.full_gradient(x), total, rtol=1e-4, atol=1e-6)
    problem = make_problem(parse_run_config({"dataset": "digits", "model": "resnet20"}))
    objective = problem.objective(1)
    before = objective.buffers.clone()
    objective.full_gradient(torch.tensor(problem.initial()[0]))
    assert torch.equal(objective.buffers, before)
