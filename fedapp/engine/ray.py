"""RayGrid: the Flower `Grid` interface over persistent Ray actors.

To the ServerApp it is one node that hosts every client. A message's clients are dealt to W workers (`ray_workers.py`).
The model goes into Ray's object store once a round. A client without state may be trained by any worker; one with state
stays with its worker.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from flwr.app import Error, Message, RecordDict

from fedapp import wire
from fedapp.aggregation import BUFFERS, Sums
from fedapp.engine.calls import WorkerDiedError, WorkerError
from fedapp.engine.local import CLIENT_APP_FAILED, LocalGrid
from fedapp.engine.ray_workers import NODE, RayWorkers, Shared
from fedapp.engine.transfer import put_together
from fedapp.state import DirectoryStore
from fedapp.tables import Value

log = logging.getLogger("flwr")
MOST = 0.9  # a worker's next part, over its share of what waits


@dataclass
class _Job:
    """A message on its way: the clients still to be dealt, and what has come back."""

    message: Message
    shared: Shared  # what all its clients receive
    waiting: list[int]
    parts: list[RecordDict] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    error: str = "no worker answered"
    in_flight: int = 0
    sums: Sums | None = None  # the sums over the parts so far

    def add_up(self, packed: wire.PackedSums | None) -> None:
        """Add the sums of a part, if it has some."""
        if packed:
            slices, heads = packed
            if self.sums is None:  # the buffer is the worker's, which will write into it again
                sizes = [array.shape[-1] for key, array in slices.items() if key != BUFFERS]
                self.sums = Sums(list(slices), max(sizes), weighted=False)
                slices = {key: array.copy() for key, array in slices.items()}
            self.sums.merge_packed((slices, heads))


@dataclass(frozen=True)
class _Part:
    """Some of a job's clients, in the hands of a worker."""

    job: _Job
    clients: list[int]
    work: float
    index: int
    actor: Any


class RayGrid(LocalGrid):
    """One run on a set of workers.

    `work_of` says how much there is to do for a client; the largest are dealt first, in parts that
    get smaller towards the end, so that the workers finish together.
    """

    adds_up = True

    def __init__(
        self,
        workers: RayWorkers,
        run_config: dict[str, Value],
        work_of: Callable[[int], float] = lambda client: 1.0,
    ) -> None:
        super().__init__()
        self._workers = workers
        self.remembers = False  # what one worker received, another may not have
        self.shares_disk = workers.shares_disk
        self.processes_here = len(workers.actors) if workers.shares_disk else 0
        self._work_of = work_of
        self._home: dict[int, int] = {}  # client with state -> worker that holds it
        self._jobs: dict[str, _Job] = {}
        self._flying: dict[Any, _Part] = {}
        self._measured = [0.0] * len(workers.actors)
        workers.begin(dict(run_config))

    def get_node_ids(self) -> Iterable[int]:
        """Return the one node."""
        return [NODE]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Start on messages."""
        identities = []
        for message in messages:
            identity = str(uuid4())
            message.metadata.__dict__["_message_id"] = identity
            shared, clients = wire.take_shared(message.content)
            clients.sort(key=self._work_of, reverse=True)
            job = _Job(message, self._workers.share(shared), clients)
            self._jobs[identity] = job
            if not clients:  # not an invitation: any worker can answer for the node
                self._send(_Part(job, [], 0.0, 0, self._workers.actors[0]))
            identities.append(identity)
        self._deal()
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are complete, each once."""
        self._collect(timeout=0)
        return self._finished(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Have messages served; clients that are not done in time have failed."""
        pending = list(self.push_messages(messages))
        end = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while pending:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return replies + [self._give_up(self._taken(identity)) for identity in pending]
            self._collect(left)
            replies += self._finished(pending)
            pending = [identity for identity in pending if identity in self._jobs]
        return replies

    def save_states(self, store: DirectoryStore, tags: Mapping[int, int]) -> bool:
        """Have the workers write what they hold, if they are on this machine."""
        if not self.shares_disk:
            return False
        try:
            self._workers.save_states(store.directory, dict(tags))
        except WorkerError as error:
            log.warning("A worker could not write its clients' states: %s", error)
            return False
        return True

    def _finished(self, identities: Iterable[str]) -> list[Message]:
        done = [i for i in identities if i in self._jobs and self._is_done(self._jobs[i])]
        return [self._reply(self._taken(identity)) for identity in done]

    def _taken(self, identity: str) -> _Job:
        """Take a job off the list; what its clients receive is kept while a worker may read it."""
        job = self._jobs.pop(identity)
        if not job.in_flight:
            self._workers.forget(job.shared)
        return job

    def _give_up(self, job: _Job) -> Message:
        """Reply with what there is; what still comes is dropped."""
        in_hand = [c for part in self._flying.values() if part.job is job for c in part.clients]
        job.failures |= dict.fromkeys([*job.waiting, *in_hand], "no answer in time")
        return self._reply(job)

    @staticmethod
    def _is_done(job: _Job) -> bool:
        return not job.waiting and not job.in_flight

    @staticmethod
    def _reply(job: _Job) -> Message:
        """Make one reply of a job's parts."""
        if not job.parts and not job.failures:
            return Message(Error(CLIENT_APP_FAILED, job.error), reply_to=job.message)
        parts, failures = job.parts, job.failures
        whole = len(parts) == 1 and not failures
        content = parts[0] if whole else wire.merge(parts, failures)
        if job.sums:
            wire.add_sums(content, job.sums.packed())
        return Message(content, reply_to=job.message)

    def _deal(self) -> None:
        """Give every idle worker its next part: most of its share of the clients that wait.

        A part costs some milliseconds beside its training, so there should be few of them; what is
        kept back makes up for a worker that turns out slower than it was.
        """
        busy = {part.index for part in self._flying.values()}
        speeds = self._speeds()
        for job in self._jobs.values():
            waiting = sum(map(self._work_of, job.waiting))
            for index, actor in enumerate(self._workers.actors):
                if index in busy:
                    continue
                enough = MOST * waiting * speeds[index] / sum(speeds)
                if clients := self._next_part(job, index, enough):
                    work = sum(map(self._work_of, clients))
                    self._send(_Part(job, clients, work, index, actor))
                    busy.add(index)

    def _next_part(self, job: _Job, index: int, enough: float) -> list[int]:
        """Take clients that a worker may train off a job, until there is work enough."""
        taken, work = [], 0.0
        for client in job.waiting:
            if self._home.get(client, index) == index:
                taken.append(client)
                work += self._work_of(client)
                if work >= enough:
                    break
        chosen = set(taken)
        job.waiting = [c for c in job.waiting if c not in chosen]
        return taken

    def _send(self, part: _Part) -> None:
        whole = part.job.message
        content = wire.part_of(whole.content, part.clients) if part.clients else whole.content
        kind = whole.metadata.message_type
        part.job.in_flight += 1
        call = self._workers.serve(part.index, kind, content, part.job.shared)
        self._flying[call] = part

    def _collect(self, timeout: float | None) -> None:
        """Take in what workers have done; wait for the first of it, at most `timeout` seconds."""
        if not self._flying:
            return
        calls = self._workers.calls
        for call in calls.wait(list(self._flying), timeout):
            part = self._flying.pop(call)
            job = part.job
            job.in_flight -= 1
            known = any(job is other for other in self._jobs.values())  # and not given up
            if not known and not job.in_flight:
                self._workers.forget(job.shared)
            try:
                layout, where, stateful, seconds = calls.result(call)
            except WorkerError as error:
                job.error = f"its worker failed: {error}"
                job.failures |= dict.fromkeys(part.clients, job.error)
                if isinstance(error, WorkerDiedError):
                    self._replace_worker(part)
                continue
            self._learn_speed(part, seconds)
            local = isinstance(where, tuple | list)
            buffer = self._workers.inbox.read(*where) if local else where
            content = put_together(layout, buffer, copy=local, but=wire.SUMS)
            job.add_up(wire.take_sums(content))
            job.parts.append(content)
            # Others may have trained the clients since the job was given up.
            if stateful and known:
                self._home |= dict.fromkeys(part.clients, part.index)
        self._deal()

    def _learn_speed(self, part: _Part, seconds: float) -> None:
        """Follow a worker's speed, in work per second."""
        if part.work:
            now, before = part.work / seconds, self._measured[part.index]
            self._measured[part.index] = 0.3 * now + 0.7 * before if before else now

    def _speeds(self) -> list[float]:
        """Return the workers' speeds; one that is not known yet is thought to be usual."""
        known = [speed for speed in self._measured if speed]
        usual = sum(known) / len(known) if known else 1.0
        return [speed or usual for speed in self._measured]

    def _replace_worker(self, part: _Part) -> None:
        """Replace a worker that has died, once for all the parts that it had in hand."""
        if self._workers.actors[part.index] is not part.actor:
            return
        log.warning("Worker %d has died and is started again", part.index)
        self._workers.replace(part.index)
        self._home = {c: index for c, index in self._home.items() if index != part.index}
