"""A signal to a deployed run: it ends between updates, saves, and only then is the signal Flower's."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest
from flwr.superlink.grid import HttpGrid

from fedapp.stopping import saved_before_exit


@pytest.fixture
def happened() -> Iterator[list[str]]:
    """What happens, in its order; Flower's handler of SIGTERM is one that says so."""
    happened: list[str] = []

    def flower(_number: int, _frame: FrameType | None) -> None:
        happened.append("Flower's handler")

    before = signal.signal(signal.SIGTERM, flower)
    yield happened
    assert signal.getsignal(signal.SIGTERM) is flower  # it has it back
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def grid() -> Iterator[HttpGrid]:
    """A grid whose SuperLink takes requests and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        grid = HttpGrid(f"127.0.0.1:{server.getsockname()[1]}", insecure=True, token="x")
        yield grid
        grid.close()


def test_a_signal_waits_until_an_update_is_done(grid: HttpGrid, happened: list[str]) -> None:
    with pytest.raises(SystemExit), saved_before_exit(grid):
        try:
            signal.raise_signal(signal.SIGTERM)
            happened.append("the round is recorded")
            grid.get_node_ids()
            happened.append("never")
        finally:
            signal.raise_signal(signal.SIGTERM)  # once more: what is being saved is saved
            happened.append("saved")
    assert happened == ["the round is recorded", "saved", "Flower's handler"]


def test_a_signal_ends_waiting_for_a_superlink_that_hangs(
    grid: HttpGrid, happened: list[str]
) -> None:
    def later() -> None:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit), saved_before_exit(grid):
        threading.Thread(target=later).start()
        try:
            grid.get_node_ids()
        finally:
            happened.append("saved")
    assert happened == ["saved", "Flower's handler"]


def test_a_signal_lets_a_reply_be_read_and_ends_waiting_for_the_next(
    grid: HttpGrid, happened: list[str]
) -> None:
    def replies() -> Iterator[str]:
        yield "a reply"
        happened.append("never: the next one is waited for")
        yield "another"

    vars(grid)["send_and_receive"] = lambda _messages: replies()
    with pytest.raises(SystemExit), saved_before_exit(grid):
        for _reply in grid.send_and_receive([]):
            signal.raise_signal(signal.SIGTERM)
            happened.append("read")
    assert happened == ["read", "Flower's handler"]


def test_a_signal_ends_a_pause_between_two_looks(grid: HttpGrid, happened: list[str]) -> None:
    def replies() -> Iterator[str]:
        signal.raise_signal(signal.SIGTERM)  # as while it sleeps
        happened.append("never: it sleeps to the end")
        yield "a reply"

    vars(grid)["send_and_receive"] = lambda _messages: replies()
    with pytest.raises(SystemExit), saved_before_exit(grid):
        list(grid.send_and_receive([]))
    assert happened == ["Flower's handler"]


def test_a_run_that_is_complete_all_the_same_is_complete(
    grid: HttpGrid, happened: list[str]
) -> None:
    with saved_before_exit(grid):
        signal.raise_signal(signal.SIGTERM)
        happened.append("the last round is recorded")
    assert happened == ["the last round is recorded"]
