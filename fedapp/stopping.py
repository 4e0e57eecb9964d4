"""Stop requests: a deployed run ends between rounds, and saves what it has before Flower ends the process.

After `flwr stop`, or a signal, Flower uploads logs and a status, and ends the process five seconds later whatever is
left to do. On a busy machine, or when the SuperLink does not answer, that was before the model was saved.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.superlink.grid import HttpGrid

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # Flower sends SIGINT to itself after `flwr stop`
WAITING = ("get_nodes", "push_messages", "pull_messages", "send_and_receive")


@contextmanager
def saved_before_exit(grid: "HttpGrid") -> Iterator[None]:
    """Let a signal end the block, as SystemExit, and hand it to Flower only when the block has saved its results.

    The block ends while it waits for the SuperLink, never in the middle of an update: the model that it saves is that
    of the rounds it has recorded.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are not this thread's
        return
    received: list[int] = []
    depth = 0  # how many calls wait
    ending = False

    def end() -> None:
        nonlocal ending
        if not ending:
            ending = True
            raise SystemExit(0)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if depth:
            end()

    def interruptible(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                if received:
                    end()
                return call(*arguments, **named)
            finally:
                depth -= 1

        return wait

    def send_and_receive(*arguments: Any, **named: Any) -> "Iterator[Message]":
        """Wait for each reply; what is done with it in between is not interrupted."""
        replies = iter(send(*arguments, **named))
        wait_for_next = interruptible(lambda: next(replies, None))
        return iter(wait_for_next, None)

    for name in WAITING:
        vars(grid)[name] = interruptible(getattr(grid, name))
    send = grid.send_and_receive
    vars(grid)["send_and_receive"] = send_and_receive
    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if ending:
            signal.raise_signal(received[0])
