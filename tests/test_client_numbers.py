"""Numbers of clients: what a dict would say, in 8 bytes each."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedapp.client_numbers import ClientNumbers, TalliedNumbers


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 50), unique=True, max_size=5), st.integers(0, 9)),
        max_size=10,
    )
)
def test_numbers_are_those_of_a_dict(steps: list[tuple[list[int], int]]) -> None:
    numbers, expected = TalliedNumbers(), dict[int, int]()
    for clients, number in steps:
        numbers.put(clients, number)
        expected |= dict.fromkeys(clients, number)
        expected = {client: number for client, number in expected.items() if number}
        assert numbers == expected
        assert numbers.distinct == set(expected.values())
    places = list(range(60))
    assert numbers.at(places).tolist() == [expected.get(c, 0) for c in places]
    assert -1 not in numbers and 60 not in numbers
    clients_, values = numbers.rows()
    assert dict(zip(clients_.tolist(), values.tolist(), strict=True)) == expected
    assert list(numbers) == sorted(expected)
    again = TalliedNumbers(clients_, values)
    assert again == numbers and again.distinct == numbers.distinct


def test_they_grow_by_8_bytes_a_client() -> None:
    numbers = ClientNumbers()
    for tag in range(1, 11):
        numbers.put(np.arange(tag, 1_000_000, 10), tag)
    assert len(numbers) == 999_999
    assert numbers._numbers.nbytes <= 16_000_000
    assert numbers[12_345] == 5
    none = ClientNumbers(np.arange(1_000_000), 0)
    assert not none and none._numbers.nbytes == 0
