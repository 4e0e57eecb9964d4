"""Calls of the driver to its workers: through Ray, or, to workers on its own machine, through a Unix socket.

A call through Ray costs milliseconds and wakes Ray's own processes, which then use the cores that train. A call through a
socket costs a fraction of one. Ray still starts the workers, places them, and says why one has died.

A worker has one call in hand at a time; the next one waits here. So the two sides never send at the same time, and neither
waits for the other to read. What they send is plain: tuples arrive as lists, and arrays as bytes.
"""

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Client, Connection, Listener, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import msgpack
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from fedapp.engine.transfer import Buffer, Page, page_of
from fedapp.files import brief

PAGE = "page"  # not a call: a page's file follows
UNCONNECTED = 0.5  # seconds after which it is looked whether a worker died before it answered
LAST_WORDS = 10.0  # seconds that Ray may take to say why a worker has died


class WorkerError(RuntimeError):
    """What went wrong in a worker."""


class WorkerDiedError(WorkerError):
    """The worker is no more."""


def last_line(error: BaseException) -> str:
    """Return the last line of what an error says, which of Ray's long texts is the reason."""
    return str(error).strip().splitlines()[-1]


class Calls(Protocol):
    """A way to call workers. What `start` returns stands for the call."""

    def start(self, actor: Any, method: str, *arguments: Any, page: Page | None = None) -> Any:
        """Begin a call, which may need a page."""

    def wait(self, calls: Sequence[Any], timeout: float | None, several: int = 1) -> list[Any]:
        """Return the calls that have ended, as soon as there are `several` of them or the time is over."""

    def result(self, call: Any) -> Any:
        """Return what a call that has ended returned, once, or raise WorkerError."""

    def close(self) -> None:
        """End."""


class RayCalls:
    """Calls through Ray."""

    def start(self, actor: Any, method: str, *arguments: Any, page: Page | None = None) -> Any:
        """Begin a call."""
        return getattr(actor, method).remote(*arguments)

    def wait(self, calls: Sequence[Any], timeout: float | None, several: int = 1) -> list[Any]:
        """Return the calls that have ended."""
        return list(ray.wait(list(calls), num_returns=several, timeout=timeout)[0])

    def result(self, call: Any) -> Any:
        """Return what a call returned."""
        try:
            return ray.get(call)
        except RayActorError as error:
            raise WorkerDiedError(last_line(error)) from error
        except RayError as error:
            raise WorkerError(last_line(error)) from error

    def close(self) -> None:
        """Do nothing: Ray ends its workers."""


@dataclass
class _Worker:
    """One worker, and what is between it and the driver."""

    listening: Any = None  # Ray's reference to its `listen`, which ends when it dies
    connection: Connection | None = None  # once it has started
    # Number, message, and the page that it needs; the first is in the worker's hands
    calls: deque[tuple[int, bytes, Page | None]] = field(default_factory=deque)
    pages: set[str] = field(default_factory=set)  # that it has
    reason: str = ""  # why it has died

    def send_first(self) -> None:
        """Send the first of the calls."""
        if self.connection is None or not self.calls:
            return
        _, message, page = self.calls[0]
        with contextlib.suppress(OSError):  # dead: the end of its stream is read soon
            if page and page.key not in self.pages:
                self.connection.send_bytes(_packed(PAGE, page.key))
                send_handle(self.connection, page.descriptor, None)
                self.pages.add(page.key)
            self.connection.send_bytes(message)


class DirectCalls:
    """Calls through a socket in a directory of this user's alone."""

    def __init__(self, directory: Path) -> None:
        self.address = str(directory / "calls")
        self._listener = Listener(self.address, "AF_UNIX", backlog=128)
        self._workers: dict[str, _Worker] = {}
        self._names: dict[Any, str] = {}  # actor -> its name
        self._numbers = count()
        self._owners: dict[int, _Worker] = {}  # call that nobody has asked for -> its worker
        self._results: dict[int, tuple[bool, Any]] = {}

    def add(self, actor: Any) -> None:
        """Have a new worker listen."""
        name = uuid4().hex
        self._workers[name] = worker = _Worker()
        worker.listening = actor.listen.remote(self.address, name)
        self._names[actor] = name

    def start(self, actor: Any, method: str, *arguments: Any, page: Page | None = None) -> int:
        """Begin a call."""
        worker, number = self._workers[self._names[actor]], next(self._numbers)
        self._owners[number] = worker
        worker.calls.append((number, _packed(method, *arguments), page))
        if len(worker.calls) == 1:
            worker.send_first()
        return number

    def wait(self, calls: Sequence[int], timeout: float | None, several: int = 1) -> list[int]:
        """Return the calls that have ended."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            done = [call for call in calls if call in self._results or self._owners[call].reason]
            left = None if end is None else max(end - time.monotonic(), 0.0)
            self._take_in(0.0 if len(done) >= several else left)
            if len(done) >= several or left == 0:
                return done

    def _take_in(self, timeout: float | None) -> None:
        """Take in what workers send, as soon as there is something."""
        alive = [worker for worker in self._workers.values() if not worker.reason]
        connections = {w.connection: w for w in alive if w.connection}
        awaited = [w for w in alive if not w.connection]
        sources: list[Any] = list(connections)
        if awaited:
            sources.append(self._listener._listener._socket)  # type: ignore[attr-defined]
            timeout = UNCONNECTED if timeout is None else min(timeout, UNCONNECTED)
        ready = wait(sources, timeout)
        for source in ready:
            if source in connections:
                self._read(connections[source])
            else:
                self._accept()
        if not ready and awaited:
            ended = ray.wait([w.listening for w in awaited], num_returns=len(awaited), timeout=0)[0]
            for worker in awaited:
                if worker.listening in ended:
                    self._note_death(worker)

    def _accept(self) -> None:
        connection = self._listener.accept()
        try:
            worker = self._workers[connection.recv_bytes().decode()]
        except (EOFError, OSError, ValueError, KeyError):
            connection.close()
            return
        worker.connection = connection
        worker.send_first()

    def _read(self, worker: _Worker) -> None:
        assert worker.connection
        try:
            answer = worker.connection.recv_bytes()
        except (EOFError, OSError):
            self._note_death(worker)
            return
        number, *_ = worker.calls.popleft()
        fine, value = _unpacked(answer)
        self._results[number] = fine, value
        worker.send_first()

    def _note_death(self, worker: _Worker) -> None:
        """Note why a worker has died."""
        if worker.connection:
            worker.connection.close()
        worker.reason = "its process has ended"
        with contextlib.suppress(GetTimeoutError):
            try:
                ray.get(worker.listening, timeout=LAST_WORDS)
            except RayError as error:
                worker.reason = last_line(error)

    def result(self, call: int) -> Any:
        """Return what a call returned."""
        worker = self._owners.pop(call)
        if call not in self._results:
            raise WorkerDiedError(worker.reason)
        fine, value = self._results.pop(call)
        if not fine:
            raise WorkerError(value)
        return value

    def close(self) -> None:
        """Close all connections."""
        for worker in self._workers.values():
            if worker.connection:
                worker.connection.close()
        self._listener.close()


def _packed(method: str, *arguments: Any) -> bytes:
    return _message((method, arguments))


def _message(content: Any) -> bytes:
    """Encode numbers, texts, bytes, and lists and dicts of them: nothing that could run anything."""
    packed: bytes = msgpack.packb(content, default=_plain)
    return packed


def _plain(thing: Any) -> Any:
    """Return an array's bytes, or the number that a scalar of NumPy's is."""
    return thing.tobytes() if thing.ndim else thing.item()


def _unpacked(message: bytes) -> Any:
    return msgpack.unpackb(message, strict_map_key=False)


def listen(address: str, name: str, target: object, pages: dict[str, Buffer]) -> None:
    """Call methods of `target` as the driver says, until it is gone; put the pages that they need into `pages`."""
    with Client(address, "AF_UNIX") as connection:
        connection.send_bytes(name.encode())
        while True:
            try:
                method, arguments = _unpacked(connection.recv_bytes())
                if method == PAGE:
                    pages[arguments[0]] = page_of(recv_handle(connection))
                    continue
            except (EOFError, OSError):
                return
            try:
                answer = _message((True, getattr(target, method)(*arguments)))
            except Exception as error:
                answer = _message((False, f"{type(error).__name__}: {brief(error)}"))
            connection.send_bytes(answer)
