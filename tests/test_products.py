"""Products and weighted sums of rows: those of float64, whatever the shape, and the same bits in any order of rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.products import TILE, add_rows, inner_products

SHAPES = {
    "seed": st.integers(0, 2**32 - 1),
    "m": st.integers(1, 14),
    "d": st.sampled_from([1, 15, 33, TILE, TILE + 1, 2 * TILE + 77]),
    "start": st.integers(0, 20),
    "data": st.data(),
}


@given(**SHAPES)
@settings(max_examples=60)
def test_products_and_sums_are_those_of_float64(
    seed: int, m: int, d: int, start: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, m - 1)))), np.int64)
    rows = rng.standard_normal((m, start + d + 3), dtype=np.float32)
    v = rng.standard_normal(start + d + 3, dtype=np.float32)
    columns = slice(start, start + d)
    exact, exact_v = rows[:, columns].astype(np.float64), v[columns].astype(np.float64)
    some = np.vstack([exact[chosen], exact_v])
    lengths = np.outer(np.linalg.norm(some, axis=1), np.linalg.norm(exact, axis=1))
    products = inner_products(rows, v, chosen, columns)
    assert (abs(products - some @ exact.T) <= 1e-6 * lengths).all()

    weights = rng.standard_normal(len(chosen)).astype(np.float32)
    total = v.copy()
    add_rows(rows, chosen, weights, columns.start, columns.stop, total)
    np.testing.assert_allclose(
        total[columns], exact_v + weights.astype(np.float64) @ exact[chosen], atol=1e-5
    )
    outside = np.r_[:start, start + d : len(v)]
    np.testing.assert_array_equal(total[outside], v[outside])


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(1, 14))
@settings(max_examples=30)
def test_a_product_depends_on_its_two_rows_alone(seed: int, m: int) -> None:
    """Not on which others are multiplied beside them, so what is kept is what would be computed anew."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((m, TILE + 41), dtype=np.float32)
    everyone, whole = np.arange(m), slice(0, TILE + 41)
    grams = inner_products(rows, rows[0], everyone, whole)
    np.testing.assert_array_equal(grams[:-1], grams[:-1].T)
    np.testing.assert_array_equal(grams[-1], grams[0])
    for i in range(m):
        alone = inner_products(rows, rows[0], np.array([i]), whole)
        np.testing.assert_array_equal(alone[0], grams[i])
