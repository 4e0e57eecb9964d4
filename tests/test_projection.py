"""The projection: exact against a primal solver, and unharmed by rows that other solvers stumble over."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.projection import Memory, pieces, project_
from tests.oracles import in_pieces, quadratic_program

Rng = np.random.Generator


def projected(v: Any, C: Any, sizes: tuple[int, ...] = ()) -> Any:
    return project_(torch.tensor(np.vstack([v, C])), sizes or (len(v),)).numpy()


def residuals(v: Any, C: Any, p: Any) -> dict[str, float]:
    """The KKT conditions that need no multipliers, for rows of length 1, relative to |v|."""
    norms = np.linalg.norm(C, axis=1)
    C = C[norms > 0] / norms[norms > 0, None]
    length = np.linalg.norm(v)
    # p - v = C'z with z >= 0 and z'Cp = 0; so <p - v, p> = 0, and p - v lies in the cone of the rows.
    return {
        "feasible": float(max(0.0, -(C @ p).min(initial=0.0)) / length),
        "complementary": float(abs((p - v) @ p) / length**2),
    }


def rows_of(rng: Rng, kind: str, m: int, d: int) -> Any:
    C = rng.standard_normal((m, d))
    match kind:
        case "duplicates":
            C[m // 2 :] = C[: m - m // 2]
        case "zeros":
            C[::2] = 0
        case "near-parallel":
            C[1:] = C[0] + 1e-7 * C[1:]
        case "scales":
            C *= 10.0 ** rng.uniform(-12, 12, (m, 1))
        case "opposite":
            C[1] = -C[0]
        case "few dimensions":
            C = C[:, :3] @ rng.standard_normal((3, d))
    return C


KINDS = ["plain", "duplicates", "zeros", "near-parallel", "scales", "opposite", "few dimensions"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "d"), [(2, 5), (3, 40), (10, 60), (100, 300)])
def test_it_is_the_closest_vector_that_agrees(kind: str, m: int, d: int) -> None:
    rng = np.random.default_rng([m, d])
    for _ in range(5):
        v, C = rng.standard_normal(d), rows_of(rng, kind, m, d)
        p = projected(v, C)
        told = residuals(v, C, p)
        assert told["feasible"] < 1e-6
        assert told["complementary"] < 1e-6
        if kind in ("plain", "duplicates", "zeros", "scales"):
            tolerance = 1e-6 * float(np.linalg.norm(v))
            np.testing.assert_allclose(p, quadratic_program(v, C), atol=tolerance)


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 12), d=st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_no_feasible_vector_is_closer(seed: int, m: int, d: int) -> None:
    """P is feasible, and <v - P, f - P> <= 0 for every feasible f: that is what closest means."""
    rng = np.random.default_rng(seed)
    v, C = rng.standard_normal(d), rng.standard_normal((m, d))
    p = projected(v, C)
    assert (C @ p >= -1e-9).all()
    for _ in range(20):
        f = projected(rng.standard_normal(d), C)
        assert (v - p) @ (f - p) <= 1e-9


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_it_never_makes_a_constraint_worse(seed: int) -> None:
    """What disagreed with a row agrees now; what agreed still does."""
    rng = np.random.default_rng(seed)
    v, C = rng.standard_normal(20), rng.standard_normal((6, 20))
    p = projected(v, C)
    assert (C @ p >= np.minimum(0, C @ v) - 1e-10).all()
    assert (C @ p >= -1e-10).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_agrees_already_is_left_alone(dtype: str) -> None:
    rng = np.random.default_rng(0)
    v = rng.standard_normal(50).astype(dtype)
    C = rng.standard_normal((4, 50)).astype(dtype)
    C *= np.sign(C @ v)[:, None]
    np.testing.assert_array_equal(projected(v, C), v)
    np.testing.assert_array_equal(projected(v, np.zeros_like(C)), v)
    np.testing.assert_array_equal(projected(v, np.stack([v, v, 2 * v, v])), v)


def test_by_hand() -> None:
    """v = (1, -1): against (0, 1) only its first coordinate is left; against -v nothing is."""
    v = np.array([1.0, -1.0])
    np.testing.assert_allclose(projected(v, np.array([[0.0, 1.0]])), [1, 0])
    np.testing.assert_allclose(projected(v, np.array([[-1.0, 1.0]])), [0, 0], atol=1e-15)
    np.testing.assert_allclose(projected(v, np.array([[0.0, 2.0], [1.0, 0.0]])), [1, 0])


def test_pieces_are_projected_each_by_itself() -> None:
    rng = np.random.default_rng(1)
    v, C, sizes = rng.standard_normal(30), rng.standard_normal((3, 30)), (4, 1, 25)
    np.testing.assert_allclose(projected(v, C, sizes), in_pieces(v, C, sizes), atol=1e-10)
    assert not np.allclose(projected(v, C, sizes), projected(v, C))
    assert pieces(sizes) == [slice(0, 4), slice(4, 5), slice(5, 30)]


@pytest.mark.parametrize("sizes", [(40,), (7, 30, 3)])
def test_a_memory_projects_like_its_vectors(sizes: tuple[int, ...]) -> None:
    """Inner products that are kept and brought up to date are those of the vectors themselves."""
    rng = np.random.default_rng(2)
    memory = Memory(8, sizes, np.dtype(np.float64))
    literal = np.zeros((8, 40))
    for round_ in range(30):
        if round_ % 5 == 4:
            gone = int(rng.integers(8))
            memory.clear(gone)
            literal[gone] = 0
        chosen = rng.choice(8, size=3, replace=False)
        added = {int(slot): rng.standard_normal(40) for slot in chosen}
        memory.update(0.7, added)
        literal *= 0.7
        for slot, vector in added.items():
            literal[slot] += vector
        for slot in range(8):
            np.testing.assert_allclose(memory.vector(slot), literal[slot], atol=1e-12)
        v = rng.standard_normal(40)
        np.testing.assert_allclose(memory.project(v), in_pieces(v, literal, sizes), atol=1e-8)


def test_a_vector_that_has_faded_away_is_no_trouble() -> None:
    memory = Memory(2, (5,), np.dtype(np.float32))
    memory.update(0.1, {0: np.ones(5, np.float32)})
    for _ in range(400):  # 0.1^400 is zero
        memory.update(0.1, {1: np.ones(5, np.float32)})
        assert np.isfinite(memory.project(-np.ones(5, np.float32))).all()
