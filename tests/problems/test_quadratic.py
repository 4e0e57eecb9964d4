"""Quadratics of very many clients: drawn as they are needed, and an optimum that is still known."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem, quadratic
from fedapp.tables import Value
from tests.conftest import kebab

KEYS: dict[str, Value] = {"dataset": "quadratic", "quadratic.dim": 6, "dtype": "float64"}


def problem_of(**keys: Value) -> Any:
    return make_problem(parse_run_config(KEYS | kebab(keys)))


def test_a_client_draws_the_same_alone_and_among_all() -> None:
    alone = problem_of(num_clients=40).of(17)
    everyone = problem_of(num_clients=40, seed=1), problem_of(num_clients=40)
    assert (alone[0] == everyone[1].A[17]).all() and (alone[1] == everyone[1].b[17]).all()
    assert not (alone[1] == everyone[0].b[17]).all()


def test_the_optimum_of_clients_that_share_quadratics_is_that_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quadratic, "DISTINCT", 7)
    problem = problem_of(num_clients=24, quadratic__heterogeneity=3.0)
    clients = [problem.objective(c) for c in range(24)]
    A, b = (np.stack([np.array(getattr(c, name)) for c in clients]) for name in "Ab")
    assert (A[2] == A[23]).all() and len(np.unique(b, axis=0)) == 7
    plain = quadratic._Mean(A, b)
    np.testing.assert_allclose(problem.optimum, plain.optimum, rtol=1e-12)
    x = np.linspace(-1, 2, 6)
    for at in (x, plain.optimum + 1e-3 * x):
        figures = problem.evaluate(at, np.zeros(0))
        assert figures["test_loss"] == pytest.approx(plain.value(at), rel=1e-12)
        assert figures["gap"] == pytest.approx(plain.gap(at), rel=1e-8)
        slope = plain.gradient(at)
        assert figures["squared_gradient"] == pytest.approx(float(slope @ slope), rel=1e-9)


def test_a_million_clients_draw_only_those_that_are_asked_for() -> None:
    tracemalloc.start()
    problem = problem_of(num_clients=1_000_000)
    for client in range(0, 1_000_000, 20_000):
        assert problem.objective(client + client // 20_000).A.shape == (6, 6)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert problem._drawn.sum() == 50
