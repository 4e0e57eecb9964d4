"""The binary problems: losses, gradients and the optimum, against autograd and a general solver."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedapp.config import RunConfig
from fedapp.data import load_images
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.erm import LinearERM
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds

MODELS = ["logistic", "sigmoid-erm"]


def problem_of(**keys: Value) -> tuple[LinearERM, RunConfig]:
    common: dict[str, Value] = {"dtype": "float64", "num_clients": 5}
    config = parse_run_config(kebab(common | keys))
    problem = make_problem(config)
    assert isinstance(problem, LinearERM)
    return problem, config


def literal(model: str, x: Any, rows: Any, signs: Any, decay: float) -> Any:
    """The formulas of section 8, sample by sample, in torch for its derivatives."""
    terms = [
        torch.log(1 + torch.exp(-b * (a @ x)))
        if model == "logistic"
        else 1 / (1 + torch.exp(b * (a @ x)))
        for a, b in zip(rows, signs, strict=True)
    ]
    return torch.stack(terms).mean() + decay / 2 * (x @ x)


@pytest.mark.parametrize("model", MODELS)
def test_loss_and_gradient_are_the_formulas(model: str) -> None:
    problem, _ = problem_of(model=model, erm__regularization=0.3)
    data = load_images("digits", "")
    x = torch.tensor(np.random.default_rng(0).standard_normal(64), requires_grad=True)
    held = problem.partition[3]
    images = data.train_images[held].reshape(len(held), -1).astype(np.float64)
    rows = torch.tensor(images / np.linalg.norm(images, axis=1, keepdims=True))
    signs = np.where(data.train_labels[held] == 0, 1, -1)
    smoothness = {"logistic": 0.25, "sigmoid-erm": 0.09622504486493763}[model]
    expected = literal(model, x, rows, signs, 0.3 * smoothness)
    (slope,) = torch.autograd.grad(expected, x)
    loss, gradient = problem.objective(3).loss_gradient(x.detach(), held)
    assert float(loss) == pytest.approx(float(expected.detach()))
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(problem.objective(3).full_gradient(x.detach()), slope, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_no_sample_is_steeper_than_the_smoothness_says(model: str) -> None:
    """The second derivative of a loss by a'x is at most L, and comes close to it."""
    problem, _ = problem_of(model=model)
    t = torch.linspace(-6, 6, 100_001, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    slopes = torch.stack([problem.losses(s[None], one, one[0])[1][0] for s in t[::20]])
    second = torch.diff(slopes).abs() / (t[20] - t[0])
    smoothness = problem.decay / 1e-4
    assert float(second.max()) == pytest.approx(smoothness, rel=1e-3)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_the_optimum_is_that_of_a_general_solver(weighting: str) -> None:
    problem, _ = problem_of(
        model="logistic", weighting=weighting, partition="dirichlet", erm__regularization=1e-2
    )
    objectives = [problem.objective(c) for c in range(5)]
    examples = np.array([o.num_examples for o in objectives])
    assert examples.min() < examples.max()
    weights = np.full(5, 1 / 5) if weighting == "uniform" else examples / examples.sum()

    def f(x: Any) -> tuple[float, Any]:
        at = torch.tensor(x)
        parts = [o.loss_gradient(at, o.indices) for o in objectives]
        value = sum(w * float(loss) for w, (loss, _) in zip(weights, parts, strict=True))
        slope = sum(w * g.numpy() for w, (_, g) in zip(weights, parts, strict=True))
        return value, slope

    found = minimize(f, np.zeros(64), jac=True, method="BFGS", options={"gtol": 1e-11})
    assert problem.lowest == pytest.approx(found.fun, abs=1e-12)
    figures = problem.evaluate(found.x, np.zeros(0))
    assert abs(figures["gap"]) < 1e-12
    assert figures["squared_gradient"] < 1e-15
    start, slope = f(np.zeros(64))
    figures = problem.evaluate(*problem.initial())
    assert figures["objective"] == pytest.approx(start)
    assert figures["gap"] == pytest.approx(start - found.fun)
    assert figures["squared_gradient"] == pytest.approx(slope @ slope)


def test_one_class_against_another() -> None:
    problem, _ = problem_of(model="logistic", erm__positive=3, erm__negative=8, partition="iid")
    data = load_images("digits", "")
    assert len(problem.rows) == np.isin(data.train_labels, (3, 8)).sum()
    assert int((problem.signs > 0).sum()) == (data.train_labels == 3).sum()
    assert sum(problem.objective(c).num_examples for c in range(5)) == len(problem.rows)


def test_classes_that_are_not_there_are_told(run_inline: RunInline) -> None:
    with pytest.raises(ConfigError, match="choose another class"):
        run_inline(model="logistic", erm__positive=8, erm__negative=8)
    with pytest.raises(ConfigError, match=r"erm.negative = 10 is not a class .* at most 9"):
        run_inline(model="logistic", erm__negative=10)


@pytest.mark.parametrize("model", MODELS)
def test_it_trains(model: str, run_inline: RunInline) -> None:
    first, *_, last = read_rounds(
        run_inline(model=model, lr=4.0, num_rounds=30, erm__negative=1, partition="iid")
    )
    assert last["test_accuracy"] > 0.95
    assert last["objective"] < 0.8 * first["objective"]
    assert ("gap" in last) == (model == "logistic")


def test_flat_directions_leave_the_pl_condition_only() -> None:
    config = parse_run_config(
        {"dataset": "quadratic", "quadratic.flat": 4, "quadratic.dim": 10, "dtype": "float64"}
    )
    problem: Any = make_problem(config)
    eigenvalues = np.linalg.eigvalsh(problem.A.numpy().mean(0))
    assert (eigenvalues[:4] < 1e-12).all()
    assert (eigenvalues[4:] > 0.1).all()
    slope = problem.evaluate(problem.optimum, np.zeros(0))["squared_gradient"]
    assert slope < 1e-24
    # Along a flat direction f does not change.
    away = problem.optimum + np.linalg.svd(problem.A.numpy().mean(0))[0][:, -1]
    assert problem.evaluate(away, np.zeros(0))["gap"] == pytest.approx(0, abs=1e-12)


def test_shared_hessians_are_equal_and_own_ones_are_not() -> None:
    for hessians, equal in (("own", False), ("shared", True)):
        config = parse_run_config({"dataset": "quadratic", "quadratic.hessians": hessians})
        problem: Any = make_problem(config)
        assert bool((problem.A[0] == problem.A[1]).all()) == equal
        assert not bool((problem.b[0] == problem.b[1]).all())
