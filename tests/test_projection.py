"""The projection: exact against a primal solver, and unharmed by rows that other solvers stumble over."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from fedapp.projection import SHORT, Memory, pieces, project_
from tests.oracles import in_pieces, quadratic_program

Rng = np.random.Generator


def projected(v: Any, C: Any, sizes: tuple[int, ...] = ()) -> Any:
    return project_(torch.tensor(np.vstack([v, C])), sizes or (len(v),)).numpy()


def remembered(v: Any, C: Any) -> Any:
    """The same by a memory that holds the rows."""
    memory = Memory(len(C), (len(v),), v.dtype)
    memory.update(1.0, dict(enumerate(C)))
    return memory.project(v)


def residuals(v: Any, C: Any, p: Any) -> dict[str, float]:
    """The KKT conditions, for rows of length 1, relative to |v|; they hold for P(v, C) alone."""
    v, C, p = (np.asarray(a, np.float64) for a in (v, C, p))
    norms = np.linalg.norm(C, axis=1)
    C = C[norms > 0] / norms[norms > 0, None]
    length = np.linalg.norm(v)
    # p - v = C'z with z >= 0, and z'Cp = 0, so that <p - v, p> = 0.
    return {
        "feasible": max(0.0, -float((C @ p).min(initial=0.0))) / float(length),
        "complementary": float(abs((p - v) @ p) / length**2),
        "in the cone": float(nnls(C.T, p - v, maxiter=10_000)[1] / length),
        "longer": max(0.0, float(np.linalg.norm(p) / length) - 1),
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
        case "nearly opposite":  # a client's second local step: g(x), g(x) and about -lr g(x)
            C[1] = C[0]
            C[-1] = -1e-3 * C[0] * (1 + 1e-3 * C[-1])
        case "few dimensions":
            C = C[:, :3] @ rng.standard_normal((3, d))
    return C


KINDS = ["plain", "duplicates", "zeros", "near-parallel", "scales", "opposite", "nearly opposite", "few dimensions"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("m", "d"), [(2, 5), (3, 10), (3, 40), (10, 60), (100, 10), (100, 300)])
@pytest.mark.parametrize("by", [projected, remembered])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 1e-5)])
def test_it_is_the_closest_vector_that_agrees(
    kind: str, m: int, d: int, by: Any, dtype: str, tolerance: float
) -> None:
    rng = np.random.default_rng([m, d])
    for _ in range(3):
        v, C = rng.standard_normal(d).astype(dtype), rows_of(rng, kind, m, d).astype(dtype)
        p = by(v, C)
        told = residuals(v, C, p)
        assert max(told.values()) < tolerance, told
        if kind in ("plain", "duplicates", "zeros", "scales") and d > 10:
            expected = quadratic_program(v.astype(np.float64), C.astype(np.float64))
            limit = tolerance * float(np.linalg.norm(v))
            np.testing.assert_allclose(p, expected, atol=limit)


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 12), d=st.integers(1, 30))
@settings(max_examples=150)
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
@settings(max_examples=100)
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


def test_kept_products_of_a_long_piece_have_the_bits_of_new_ones() -> None:
    """A memory that was restored without its products, or computed them all at once, goes on alike."""
    rng = np.random.default_rng(3)
    sizes = (SHORT + 1, 7)
    kept, new = (Memory(6, sizes, np.dtype(np.float32)) for _ in range(2))
    for _ in range(5):
        vectors = rng.standard_normal((2, sum(sizes)), dtype=np.float32)
        kept.update(0.5, dict(zip(rng.choice(6, 2, replace=False).tolist(), vectors, strict=True)))
        v = rng.standard_normal(sum(sizes), dtype=np.float32)
        projected_ = kept.project(v)
        new.update(1.0, dict(enumerate(kept.rows - new.rows)))
        new.rows[:], new.scales[:] = kept.rows, kept.scales
        np.testing.assert_array_equal(new.project(v)[: SHORT + 1], projected_[: SHORT + 1])
        np.testing.assert_array_equal(new.grams[0], kept.grams[0])
        told = residuals(v[: SHORT + 1], kept.rows[:, : SHORT + 1], projected_[: SHORT + 1])
        assert max(told.values()) < 1e-5, told


@pytest.mark.parametrize("fade", [0.1, 0.5])
def test_a_vector_that_fades_counts_until_it_is_zero(fade: float) -> None:
    """It is the direction that counts; at last the scale is zero, and so is the vector."""
    memory = Memory(2, (2,), np.dtype(np.float64))
    memory.update(fade, {0: np.array([0.0, 1.0])})
    memory.project(np.ones(2))
    for k in range(1200):
        memory.update(fade, {1: np.array([1.0, 0.0])})
        projected_ = memory.project(np.array([-1.0, -1.0]))
        gone = fade ** (k + 1) == 0.0
        np.testing.assert_allclose(projected_, [0, -1 if gone else 0], atol=1e-12)
    assert gone


def test_two_updates_before_a_projection_both_count() -> None:
    memory = Memory(2, (2,), np.dtype(np.float64))
    memory.update(1.0, {0: np.array([0.0, 1.0])})
    memory.update(1.0, {1: np.array([1.0, 0.0])})
    np.testing.assert_allclose(memory.project(np.array([-1.0, -1.0])), [0, 0], atol=1e-15)
