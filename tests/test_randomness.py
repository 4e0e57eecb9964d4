"""Cohorts: the draws that NumPy makes over all clients, without a list of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.randomness import generator, sample_cohort


@settings(max_examples=40)
@given(
    total=st.one_of(st.integers(1, 200), st.sampled_from([10_000, 10_001, 30_000])),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**130),
    round_=st.integers(1, 100),
)
def test_cohorts_are_those_of_a_choice_over_all_clients(
    total: int, share: float, seed: int, round_: int
) -> None:
    size = max(round(share * total), 1)
    clients = [3 * client + 1 for client in range(total)]
    expected = generator(seed, "cohort", round_).choice(clients, size=size, replace=False)
    everyone = range(1, 3 * total + 1, 3)
    for pool in (clients, everyone, np.array(clients)):
        assert sample_cohort(pool, size, seed, round_) == sorted(expected.tolist())  # type: ignore[arg-type]
    assert sample_cohort(everyone, total + 5, seed, round_) == clients
