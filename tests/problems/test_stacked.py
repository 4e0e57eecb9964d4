"""Gradients of several clients at once: each is its own gradient, and its bits do not depend on the others."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.models.networks import mlp
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.network import NetworkProblem
from fedapp.problems.problem import Batch, Data, Problem
from fedapp.problems.protocols import FederatedProblem
from fedapp.problems.stacked import Answer, Asked, padded_size, serve, stack
from fedapp.tables import Value
from fedapp.threads import one_thread

TOLERANCE = {"float32": 1e-4, "float64": 1e-12}  # relative to the largest number of a gradient


class Clouds(Problem):
    """Samples of some classes, which all clients share as rows of the same tensors."""

    def __init__(self, inputs: int, widths: list[int], classes: int) -> None:
        rng = np.random.default_rng(inputs)
        self.network: nn.Module = mlp((inputs, 1, 1), classes, widths)
        images = rng.standard_normal((300, inputs, 1, 1)).astype(np.float32)
        self.arrays = [torch.from_numpy(images), torch.from_numpy(rng.integers(classes, size=300))]

    def model(self) -> nn.Module:
        return self.network

    def client_data(self, client: int) -> Data:
        return self.arrays


def points(problem: FederatedProblem, sizes: Sequence[int], seed: int) -> list[Asked]:
    """Have clients ask for gradients at points of their own, on batches of the given sizes."""
    rng = np.random.default_rng(seed)
    x = torch.tensor(problem.initial()[0])
    asked = []
    for client, size in enumerate(sizes):
        objective = problem.objective(client)
        y = x + torch.from_numpy(rng.standard_normal(len(x))).to(x)
        rows = getattr(objective, "indices", np.arange(300))
        noise = torch.from_numpy(rng.standard_normal(len(x))).to(x)
        quadratic = hasattr(objective, "A")
        asked.append(Asked(objective, y, noise if quadratic else rng.choice(rows, size)))
    return asked


def equal(a: Answer, b: Answer) -> bool:
    return all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


def check(problem: FederatedProblem, batch_size: int, asked: Sequence[Asked], dtype: str) -> None:
    """Compare gradients computed together with the plain ones, and with any other company."""
    one_thread()
    if isinstance(problem, NetworkProblem):  # all clients' rows are of the same tensors
        for one in asked[1:]:
            one.objective.arrays = asked[0].objective.arrays
    stacked = stack(problem, batch_size)
    together = serve(stacked, asked)
    for one, (loss, gradient) in zip(asked, together, strict=True):
        plain_loss, plain = one.objective.loss_gradient(one.y, one.batch)
        scale = float(plain.abs().max()) or 1.0
        assert float((gradient - plain).abs().max()) <= TOLERANCE[dtype] * scale
        assert float(loss) == pytest.approx(float(plain_loss), rel=10 * TOLERANCE[dtype])
    for one, answer in zip(asked, together, strict=True):
        assert equal(serve(stacked, [one])[0], answer)
    backwards = serve(stacked, [asked[0], *asked[::-1]])
    for answer, other in zip(together, backwards[:0:-1], strict=True):
        assert equal(answer, other)


SIZES = st.lists(st.sampled_from([1, 2, 7, 10, 13, 15, 16, 20, 31, 32, 50]), min_size=1, max_size=9)


@settings(max_examples=40)
@given(
    inputs=st.integers(1, 100),
    widths=st.lists(st.integers(1, 70), max_size=2),
    classes=st.integers(2, 12),
    sizes=SIZES,
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 999),
)
def test_networks_are_computed_together_as_if_alone(
    inputs: int, widths: list[int], classes: int, sizes: list[int], dtype: str, seed: int
) -> None:
    config = RunConfig(dtype=dtype, batch_size=32)  # type: ignore[arg-type]
    problem = NetworkProblem(Clouds(inputs, widths, classes), config)
    check(problem, 32, points(problem, sizes, seed), dtype)


@settings(max_examples=10)
@given(sizes=SIZES, seed=st.integers(0, 999), model=st.sampled_from(["logistic", "sigmoid-erm"]))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_linear_risks_are_computed_together_as_if_alone(
    dtype: str, sizes: list[int], seed: int, model: str
) -> None:
    problem = make_problem(parse_run_config({"model": model, "dtype": dtype}))
    check(problem, 32, points(problem, sizes, seed), dtype)


@settings(max_examples=10)
@given(dim=st.integers(1, 40), count=st.integers(1, 20), seed=st.integers(0, 999))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_quadratics_are_computed_together_as_if_alone(
    dtype: str, dim: int, count: int, seed: int
) -> None:
    keys: dict[str, Value] = {"dataset": "quadratic", "quadratic.dim": dim, "dtype": dtype}
    problem = make_problem(parse_run_config(keys))
    check(problem, 32, points(problem, [1] * count, seed), dtype)


@given(count=st.integers(1, 10_000), batch_size=st.integers(0, 100))
def test_padding_adds_less_than_half(count: int, batch_size: int) -> None:
    size = padded_size(count, batch_size)
    assert count <= size < max(1.5 * count, 2)


class Shifted(Clouds):
    """A problem that scales a batch by its own largest number."""

    def prepare(self, batch: Batch) -> Batch:
        return batch[0] / batch[0].max(), batch[1]


class Skipping(nn.Sequential):
    """A network that is more than its layers in a row."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1)[:, :2] + super().forward(inputs)  # type: ignore[no-any-return, no-untyped-call]


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


SQUARE = nn.Linear(4, 4)


def test_what_a_user_does_to_batches_is_not_guessed() -> None:
    with pytest.raises(ConfigError, match="`prepare` of its own"):
        stack(NetworkProblem(Shifted(4, [3], 2), RunConfig()), 32)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (flat(nn.ReLU(), nn.Linear(4, 2)), "this one has others"),
        (flat(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), "this one has others"),
        (flat(nn.Linear(4, 3), nn.Linear(3, 2)), "this one has others"),
        (Skipping(nn.Flatten(), nn.Linear(4, 2)), "this one has others"),
        (flat(nn.Linear(4, 2, bias=False)), "missing"),
        (flat(SQUARE, nn.ReLU(), SQUARE, nn.ReLU(), nn.Linear(4, 2)), "shared"),
    ],
)
def test_networks_that_are_not_linear_layers_in_a_row_are_refused(
    network: nn.Module, said: str
) -> None:
    problem = Clouds(4, [], 2)
    problem.network = network
    with pytest.raises(ConfigError, match=f"{said}.*set vectorize = 0"):
        stack(NetworkProblem(problem, RunConfig()), 32)


def test_a_users_layers_in_a_row_are_computed_too() -> None:
    problem = Clouds(4, [], 3)
    problem.network = flat(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    made = NetworkProblem(problem, RunConfig(batch_size=32))
    check(made, 32, points(made, [32, 7, 32], 1), "float32")
