"""EF21 equals its pseudocode, here in NumPy, on fedapp's quadratics."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ef21.strategy import EF21

from fedapp import make_problem, run

CLIENTS, DIM, ROUNDS, LR, KEPT = 6, 20, 30, 0.4, 3
KEYS: dict[str, Any] = {
    "algorithm": EF21,
    "dataset": "quadratic",
    "quadratic.dim": DIM,
    "num-clients": CLIENTS,
    "clients-per-round": CLIENTS,
    "num-rounds": ROUNDS,
    "local-steps": 1,
    "lr": LR,
    "topk.ratio": KEPT / DIM,
    "topk.values": "none",
    "dtype": "float64",
}


def top(v: Any) -> Any:
    """Return v with all but its largest coordinates set to 0; values are sent in single precision."""
    kept = np.zeros_like(v)
    largest = np.argsort(-np.abs(v), kind="stable")[:KEPT]
    kept[largest] = v[largest].astype(np.float32)
    return kept


def oracle(A: Any, b: Any, start: float) -> Any:
    """Return x after all rounds, from the pseudocode."""
    x, g_i = np.zeros(DIM), np.full((CLIENTS, DIM), start)
    for _ in range(ROUNDS):
        for i in range(CLIENTS):
            g_i[i] = g_i[i] + top(A[i] @ (x - b[i]) - g_i[i])
        x = x - LR * g_i.mean(0)
    return x


@pytest.mark.parametrize("start", [0.0, 0.25])
def test_ef21_is_its_pseudocode(start: float, tmp_path: Path) -> None:
    result = run(KEYS | {"ef21.start": start, "results-dir": str(tmp_path)}, engine="inline")
    problem: Any = make_problem(result.config)
    expected = oracle(problem.A.numpy(), problem.b.numpy(), start)
    np.testing.assert_allclose(result.model["x"].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_ef21_converges_although_topk_is_biased(tmp_path: Path) -> None:
    result = run(KEYS | {"num-rounds": 300, "results-dir": str(tmp_path)}, engine="inline")
    assert result.rounds[-1]["distance"] < 1e-3


def test_a_resumed_run_ends_with_the_same_model(tmp_path: Path) -> None:
    whole = run(KEYS | {"run-name": "whole", "results-dir": str(tmp_path)})
    keys = KEYS | {"run-name": "parts", "results-dir": str(tmp_path), "checkpoint-every": 5}
    run(keys | {"num-rounds": 10})
    parts = run(keys | {"resume": True})
    assert np.array_equal(whole.model["x"], parts.model["x"])
