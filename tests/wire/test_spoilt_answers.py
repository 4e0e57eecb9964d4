"""Real answers, spoilt in every way: they cost their own clients a round, and nothing else."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.rounds import CASES, CLIENTS, NODES, played, without
from tests.support.spoiling import ATTACKS, Attack


def check(case: str, attack: Attack) -> None:
    """Check what came of a round whose answers were spoilt."""
    honest = without(case, frozenset())
    outcome = played(case).use(attack.replies)
    assert outcome.metrics["clients"] + outcome.metrics["failures"] == CLIENTS
    assert outcome.metrics["clients"] == len(outcome.updates)
    assert not attack.refused & set(outcome.updates)
    assert set(range(CLIENTS)) - attack.refused - attack.touched <= set(outcome.updates)
    for client, update in outcome.updates.items():
        for name, array in update.arrays.items():
            expected = honest.updates[client][name]
            assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
            assert np.isfinite(array).all()
            if client not in attack.touched:
                np.testing.assert_array_equal(array, expected)
    for name, value in outcome.state.items():
        assert np.isfinite(value).all(), name
    if not attack.touched & set(outcome.updates):
        expected_state = without(case, frozenset(range(CLIENTS)) - set(outcome.updates)).state
        assert set(outcome.state) == set(expected_state)
        for name, value in outcome.state.items():
            np.testing.assert_array_equal(value, expected_state[name], err_msg=name)


FUZZED = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@FUZZED
@given(st.data(), st.lists(st.sampled_from(ATTACKS), min_size=1, max_size=2))
def test_spoilt_answers_cost_their_clients_alone(
    case: str, data: st.DataObject, ways: list[Callable[[Attack], None]]
) -> None:
    replies = played(case).replies()
    attack = Attack([replies[n] for n in data.draw(st.permutations(range(NODES)))], data)
    for way in ways:
        way(attack)
    check(case, attack)


@pytest.mark.parametrize("way", ATTACKS, ids=lambda way: way.__name__)
@settings(FUZZED, max_examples=10)
@given(st.data(), st.sampled_from(["fedavg", "fedpaq qsgd"]))
def test_each_attack(way: Callable[[Attack], None], data: st.DataObject, case: str) -> None:
    # Each of them runs, whatever chance chooses above.
    attack = Attack(played(case).replies(), data)
    way(attack)
    check(case, attack)
