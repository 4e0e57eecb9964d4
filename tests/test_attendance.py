"""Who took part, counted for any number of clients."""

from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from fedapp import attendance
from fedapp.attendance import Attendance


def counted(num_clients: int) -> Attendance:
    found = Attendance(num_clients)
    found.took_part([1, 2, 5])
    found.took_part([1, 4])
    found.failed([4, 3, 3, 7])
    found.failed([4, 3])
    return found


@pytest.mark.parametrize("hosted", [range(9), list(range(9)), array("q", range(9))])
def test_the_summary(hosted: Sequence[int]) -> None:
    assert counted(9).summary(hosted) == [
        ("took part", "4 of 9 clients, 1 to 2 times"),
        ("never took part", "5 clients (failed each time: 3, 7; not drawn: 3)"),
        ("failed at times", "1 client: 4 (2 of 3 times)"),
    ]
    assert counted(9).summary(hosted[:8])[1:] == [
        ("never took part", "5 clients (failed each time: 3, 7; no node: 8; not drawn: 2)"),
        ("failed at times", "1 client: 4 (2 of 3 times)"),
        ("no node at the end", "1 client: 8"),
    ]


def test_a_checkpoint_of_very_many_clients_holds_those_that_were_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = counted(1_000_000)
    saved = many.saved()
    assert sum(array.nbytes for array in saved.values()) == 6 * 12
    again = Attendance(1_000_000)
    again.took_part([77])
    again.restore(saved)
    assert again.summary(range(1_000_000)) == many.summary(range(1_000_000))
    with pytest.raises(ValueError, match="it counts the rounds of 6 clients"):
        Attendance(7).restore(saved)
    # What is written in full is read as well, and the other way round.
    in_full = counted(9).saved()
    assert set(in_full) == {"used", "failed"}
    monkeypatch.setattr(attendance, "MOST_IN_FULL", 8)
    assert set(counted(9).saved()) == {"clients", "used", "failed"}
    few = Attendance(9)
    few.restore(in_full)
    assert few.summary(range(9)) == counted(9).summary(range(9))
    with pytest.raises(ValueError, match="it counts the rounds of 9 clients"):
        Attendance(10).restore(in_full | {"failed": np.zeros(9, np.int64)})
