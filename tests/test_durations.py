"""Durations, as people write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.durations import human_time

SECONDS = {"s": 1, "min": 60, "h": 3600}


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0 s"), (0.004, "0 s"), (0.3, "0.3 s"), (0.34, "0.34 s"), (0.996, "1 s"), (4.24, "4.2 s"),
        (9.96, "10 s"), (42.4, "42 s"), (59.6, "1 min"), (462, "7 min 42 s"), (3599.7, "1 h"),
        (4020, "1 h 7 min"), (360_000, "100 h"), (float("nan"), "?"), (float("inf"), "?"), (-1, "?"),
    ],
)  # fmt: skip
def test_durations_are_written(seconds: float, written: str) -> None:
    assert human_time(seconds) == written


@given(st.floats(0, 1e9))
def test_what_is_written_is_the_duration_to_one_part_in_twenty(seconds: float) -> None:
    parts = human_time(seconds).replace(",", "").split()
    read = sum(float(n) * SECONDS[unit] for n, unit in zip(parts[::2], parts[1::2], strict=True))
    assert read == pytest.approx(seconds, rel=0.05, abs=0.006)
    assert not re.search(r"\b60 (s|min)", human_time(seconds))
