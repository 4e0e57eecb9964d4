"""Homes of clients: what a dict would say, without one."""

import tracemalloc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fedapp.homes import Homes, intersection
from fedapp.hosting import Hosting
from tests.support.rounds import Claims

MILLION = 1_000_000
CLIENTS = 30
ranges = st.builds(
    lambda start, length, step: range(start, min(start + length, CLIENTS), step),
    st.integers(0, CLIENTS - 1),
    st.integers(1, CLIENTS),
    st.integers(1, 8),
)
lists = st.lists(st.integers(0, CLIENTS - 1), unique=True, max_size=6)
claims: st.SearchStrategy[Sequence[int]] = st.one_of(ranges, lists)


@given(ranges, ranges)
def test_what_two_ranges_share(one: range, other: range) -> None:
    assert list(intersection(one, other)) == sorted(set(one) & set(other))


@given(st.lists(st.tuples(st.integers(1, 5), claims, st.booleans()), max_size=12))
def test_homes_are_those_of_a_dict(steps: list[tuple[int, Sequence[int], bool]]) -> None:
    homes, expected = Homes(), dict[int, int]()
    for node, claim, leaves in steps:
        homes.remove({node})
        expected = {c: n for c, n in expected.items() if n != node}
        taken = [client for client in claim if client in expected]
        assert homes.taken(claim) == (len(taken), taken[0] if taken else -1)
        if not taken and not leaves:
            homes.add(node, claim)
            expected |= dict.fromkeys(claim, node)
            assert homes.is_home(node, claim)
        assert homes == expected
        assert list(homes) == list(homes.clients_of(homes.nodes)) == sorted(expected)
        assert len(homes) == len(expected)
        assert homes.nodes == set(expected.values())
        some = {1, 2}
        assert list(homes.clients_of(some)) == sorted(c for c in expected if expected[c] in some)
        assert {c: homes.get(c) for c in range(CLIENTS)} == {c: expected.get(c) for c in range(CLIENTS)}  # fmt: skip


@given(st.lists(st.tuples(st.integers(1, 5), claims), max_size=8))
def test_whoever_comes_last_is_the_home(steps: list[tuple[int, Sequence[int]]]) -> None:
    homes = Homes()
    for node, claim in steps:
        homes.replace(node, claim)
        assert all(homes[client] == node for client in claim)
        assert homes.is_home(node, claim)


def test_a_million_clients_take_a_few_bytes_each() -> None:
    nodes = {f"n{p}": {"range": [p, MILLION, 10]} for p in range(10)}
    tracemalloc.start()
    hosting = Hosting(MILLION)
    grid = Claims(**nodes)
    hosting.update(grid)
    whole, peak = tracemalloc.get_traced_memory()
    assert len(hosting.clients) == len(hosting.ready()) == MILLION
    assert hosting.node_of[999_997] == 8
    assert peak < 1_000_000
    del grid.contexts[3]
    tracemalloc.reset_peak()
    hosting.update(grid)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(hosting.clients) == 900_000
    assert 2 not in hosting.node_of and hosting.clients[2] == 3
    assert peak - whole < 30 * MILLION
