"""Aggregation rules: each against its paper's definition, and what a few hostile rows can do to it."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from fedapp.aggregation import rules
from fedapp.aggregation.rules import (
    CenteredClipping,
    GeometricMedian,
    Mean,
    Median,
    MultiKrum,
    NearestNeighborMixing,
    Rule,
    TrimmedMean,
)
from tests.support.rules import centered_clip, multi_krum, nnm, some_rows, weiszfeld

F = 3


def robust(f: int = F) -> dict[str, Rule]:
    """Return the rules that should withstand f hostile rows of 2f + 3 or more."""
    plain: dict[str, Rule] = {
        "median": Median(),
        "trimmed-mean": TrimmedMean(0.3),
        "multi-krum": MultiKrum(f),
        "geometric-median": GeometricMedian(),
        "centered-clipping": CenteredClipping(),
    }
    return plain | {f"nnm {name}": NearestNeighborMixing(f, rule) for name, rule in plain.items()}


@given(st.integers(0, 10_000), st.integers(0, 3), st.integers(9, 12))
@settings(max_examples=25)
def test_rules_are_the_papers(seed: int, f: int, n: int) -> None:
    x = some_rows(seed, n)
    centre = some_rows(seed + 1, 1)[0]
    np.testing.assert_allclose(MultiKrum(f)(list(x)), multi_krum(x, f, n - f), atol=1e-12)
    for tau in (0.5, 3.0):
        np.testing.assert_allclose(
            CenteredClipping(tau)(list(x), centre), centered_clip(x, centre, tau), atol=1e-12
        )
    tau = sorted(np.linalg.norm(x - centre, axis=1))[n // 2]
    if n % 2:  # the median is one of the distances
        expected = centered_clip(x, centre, tau)
        np.testing.assert_allclose(CenteredClipping()(list(x), centre), expected, atol=1e-12)
    np.testing.assert_allclose(
        NearestNeighborMixing(f, Mean()).mixed(list(x)), nnm(x, f), atol=1e-12
    )
    # Not Multi-Krum: mixed rows coincide in groups, of which two may score the same, and rounding decides.
    for rule in (Mean(), Median(), CenteredClipping(1.0)):
        np.testing.assert_allclose(
            NearestNeighborMixing(f, rule)(list(x), centre),
            rule(list(nnm(x, f)), centre),
            atol=1e-9,
        )


@given(st.integers(0, 10_000))
@settings(max_examples=10)
def test_the_geometric_median_is_where_weiszfeld_ends(seed: int) -> None:
    x = some_rows(seed)
    far = weiszfeld(x, np.full(len(x), 1 / len(x)), 1e-6, x.mean(axis=0), 2000)
    found = GeometricMedian()(list(x))
    np.testing.assert_allclose(found, far, atol=1e-3)

    def distances(v: Any) -> float:
        return float(np.linalg.norm(x - v, axis=1).sum())

    assert distances(found) <= distances(far) * (1 + 1e-6)


def test_the_geometric_median_takes_the_papers_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    x = some_rows(5)
    for steps in (1, 2, 3):
        monkeypatch.setattr(rules, "WEISZFELD_STEPS", steps)
        expected = weiszfeld(x, np.full(len(x), 1 / len(x)), 1e-6, np.median(x, axis=0), steps)
        np.testing.assert_allclose(GeometricMedian()(list(x)), expected, atol=1e-12)


def test_krum_by_hand() -> None:
    """n = 5, f = 1: two neighbours count, and the worst row goes.

    Scores of 0, 1, 4, 5, 7: 1 + 16, 1 + 9, 1 + 9, 1 + 4, 4 + 9. With one neighbour more or less, 7 would go.
    """
    rows = [np.array([v]) for v in (0.0, 1.0, 4.0, 5.0, 7.0)]
    assert MultiKrum(1)(rows)[0] == (1 + 4 + 5 + 7) / 4


def test_clipping_by_hand() -> None:
    """Around 1: of -2, 2, 7 the differences -3, 1, 6 become -2, 1, 2; their mean is 1/3."""
    rows = [np.array([v]) for v in (-2.0, 2.0, 7.0)]
    np.testing.assert_allclose(CenteredClipping(2.0)(rows, np.array([1.0])), [4 / 3])
    np.testing.assert_allclose(CenteredClipping()(rows, np.array([1.0])), [1 + (-3 + 1 + 3) / 3])


def test_mixing_by_hand() -> None:
    """f = 1 of 3: 0 and 1 become 0.5; of 10 the nearest is 1."""
    mixed = NearestNeighborMixing(1, Mean()).mixed([np.array([v]) for v in (0.0, 1.0, 10.0)])
    np.testing.assert_allclose(np.concatenate(mixed), [0.5, 0.5, 5.5])


# Properties.


@pytest.mark.parametrize("name", [name for name in robust() if name != "nnm multi-krum"])
@given(st.integers(0, 10_000))
@settings(max_examples=8)
def test_who_sent_what_does_not_matter(name: str, seed: int) -> None:
    rule, x, centre = robust()[name], some_rows(seed), some_rows(seed + 1, 1)[0]
    shuffled = x[np.random.default_rng(seed).permutation(len(x))]
    np.testing.assert_allclose(rule(list(shuffled), centre), rule(list(x), centre), atol=1e-9)


@pytest.mark.parametrize("name", robust())
def test_equal_rows_are_their_aggregate(name: str) -> None:
    row = some_rows(3, 1)[0].astype(np.float32)
    rule = robust()[name]
    for centre in (row, np.zeros_like(row)):
        result = rule([row] * 11, centre)
        np.testing.assert_allclose(result, row, rtol=1e-6)
        assert result.dtype == np.float32


@pytest.mark.parametrize("size", [1e3, 1e9, 1e17])
@pytest.mark.parametrize("name", robust())
def test_a_few_rows_move_a_rule_by_a_bounded_distance(name: str, size: float) -> None:
    """However far, the f hostile rows move the result by no more than a few times the honest rows' spread."""
    rule, x = robust()[name], some_rows(8).astype(np.float32)
    centre = x.mean(axis=0)
    spread = max(np.linalg.norm(a - b) for a, b in itertools.combinations(x, 2))
    for seed in range(3):
        direction = some_rows(seed, F).astype(np.float32)
        for hostile in (direction * size, np.tile(direction[:1] * size, (F, 1))):
            attacked = np.concatenate([x[: 5 - F], hostile, x[5 - F : len(x) - F]])
            assert len(attacked) == len(x)
            moved = np.linalg.norm(rule(list(attacked), centre) - rule(list(x), centre))
            assert moved <= 2 * spread
    assert np.linalg.norm(Mean()(list(attacked)) - centre) > size / 100  # the mean follows


def test_a_trim_below_the_hostile_share_protects_nobody() -> None:
    x = some_rows(1, 20)
    x[:4] += 1e9
    assert np.abs(TrimmedMean(0.15)(list(x))).max() > 1e6
    assert np.abs(TrimmedMean(0.2)(list(x))).max() < 10


@pytest.mark.parametrize("name", robust())
def test_bits_do_not_depend_on_threads_or_on_the_sender_of_a_row(name: str) -> None:
    x = list(some_rows(2, 11, 100_003).astype(np.float32))
    rule, centre = robust()[name], np.zeros(100_003, np.float32)
    first = rule(x, centre)
    for threads in (1, 2):
        with threadpool_limits(threads):
            np.testing.assert_array_equal(rule([row.copy() for row in x], centre), first)
    stored = np.stack(x)  # as rows of a matrix, not as arrays of their own
    np.testing.assert_array_equal(rule(list(stored), centre), first)


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 12),
    d=st.sampled_from([0, 1, 50, rules.SORTED, rules.SORTED + 3]),
    trim=st.floats(0, 0.49),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=60)
def test_columns_sorted_a_few_at_a_time_have_the_bits_of_all_at_once(
    seed: int, n: int, d: int, trim: float, dtype: str
) -> None:
    drawn = np.random.default_rng(seed).standard_normal((n, d)).round(1).astype(dtype)  # with ties
    rows = list(drawn)
    np.testing.assert_array_equal(rules.Median()(rows), np.median(drawn, axis=0))
    rule = rules.TrimmedMean(trim)
    cut = rule.cut(n)
    expected = np.sort(drawn, axis=0)[cut : n - cut].mean(axis=0)
    np.testing.assert_array_equal(rule(rows), expected)
    assert rule(rows).dtype == rules.Median()(rows).dtype == dtype
