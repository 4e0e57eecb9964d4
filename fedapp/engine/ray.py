"""RayGrid: the Flower `Grid` interface over persistent Ray actors.

To the ServerApp it is one node that hosts every client. A message's clients are dealt to W workers,
each of which holds the ClientApp, one model, the memory-mapped data and the state of the clients
that it has trained, and serves message after message. The model goes into Ray's object store once a
round. A client without state may be trained by any worker; one with state stays with its worker.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from uuid import uuid4

import numpy as np
import ray
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from ray.exceptions import RayActorError, RayError

from fedapp import wire
from fedapp.config import Value
from fedapp.errors import ConfigError

log = logging.getLogger("flwr")
NODE = 1
WORKER_FAILED = 2  # Flower's code for an exception in the ClientApp
AHEAD = 2  # parts that a worker has in hand, so that it never waits for the driver


def _share_array_bytes() -> None:
    """Let Ray pass the bytes of Flower's arrays through shared memory instead of copying them."""

    def take_apart(array: Array) -> tuple[str, tuple[int, ...], str, Any]:
        return array.dtype, array.shape, array.stype, np.frombuffer(array.data, np.uint8)

    def put_together(parts: tuple[str, tuple[int, ...], str, Any]) -> Array:
        array = Array.__new__(Array)  # the constructor takes nothing but bytes
        names = ("dtype", "shape", "stype", "data")
        array.__dict__.update(zip(names, (*parts[:3], memoryview(parts[3])), strict=True))
        return array

    ray.util.register_serializer(Array, serializer=take_apart, deserializer=put_together)


class Worker:
    """One actor: the ClientApp, and a Context of its own that stays in its memory."""

    def __init__(self, app: str) -> None:
        module, _, name = app.partition(":")
        self._app = getattr(import_module(module), name)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, NODE, 1
        _share_array_bytes()

    def begin(self, run_config: dict[str, Value]) -> None:
        """Forget the run before, and start one."""
        self._context = Context(
            run_id=1,
            node_id=NODE,
            node_config={"partition-id": 0, "num-partitions": 1},
            state=RecordDict(),
            run_config=run_config,
        )

    def serve(self, message: Message, shared: ArrayRecord | None) -> tuple[Message, bool]:
        """Serve a message; say, too, whether it left state here."""
        if shared is not None:
            message.content["shared"] = shared
        reply = self._app(message, self._context)
        return reply, bool(self._context.state)


class RayWorkers:
    """W workers, on this machine or on a Ray cluster, which serve any number of runs."""

    def __init__(
        self, count: int = 0, address: str = "", app: str = "fedapp.client_app:app"
    ) -> None:
        self._app = app
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns
            options = {"address": address} if address else {"include_dashboard": False}
            try:
                ray.init(**options, logging_level=logging.WARNING, log_to_driver=False)
            except (ConnectionError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise ConfigError(
                    f"No Ray cluster answers at --address {address}: {reason}"
                ) from None
        _share_array_bytes()
        available = int(ray.cluster_resources().get("CPU", 1))
        if count > available:
            self.close()
            raise ConfigError(
                f"--workers = {count} is more than the {available} CPUs that Ray sees."
            )
        self._remote = ray.remote(Worker).options(num_cpus=1, scheduling_strategy="SPREAD")
        self.actors: list[Any] = [self._remote.remote(app) for _ in range(count or available)]

    def begin(self, run_config: dict[str, Value]) -> None:
        """Start a run on every worker."""
        self._run_config = run_config
        ray.get([actor.begin.remote(run_config) for actor in self.actors])

    def replace(self, index: int) -> None:
        """Start a worker in place of one that has died."""
        self.actors[index] = self._remote.remote(self._app)
        self.actors[index].begin.remote(self._run_config)

    def close(self) -> None:
        """End the workers, and Ray if it was started here."""
        for actor in getattr(self, "actors", []):
            ray.kill(actor)
        if self._started_ray:
            ray.shutdown()

    def __enter__(self) -> "RayWorkers":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


@dataclass
class _Job:
    """A message on its way: the clients still to be dealt, and what has come back."""

    message: Message
    shared: Any  # reference to the record for all clients, in the object store
    waiting: list[int]
    parts: list[Message] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)
    in_flight: int = 0


@dataclass(frozen=True)
class _Part:
    """Some of a job's clients, in the hands of a worker."""

    job: _Job
    clients: list[int]
    index: int
    actor: Any


class RayGrid(Grid):
    """One run on a set of workers.

    `work_of` says how much there is to do for a client; the largest are dealt first, in parts that
    get smaller towards the end, so that the workers finish together.
    """

    def __init__(
        self,
        workers: RayWorkers,
        run_config: dict[str, Value],
        work_of: Callable[[int], float] = lambda client: 1.0,
    ) -> None:
        self._workers = workers
        self._work_of = work_of
        self._home: dict[int, int] = {}  # client with state -> worker that holds it
        self._jobs: dict[str, _Job] = {}
        self._flying: dict[Any, _Part] = {}
        self.set_run(Run.create_empty(run_id=1))
        workers.begin(dict(run_config))

    def set_run(self, run: Run) -> None:
        """Take on a run's identity, which Flower's messages carry."""
        self._run = run
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run.run_id, 0, 1

    @property
    def run(self) -> Run:
        """Return the run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message to the node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

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
            job = self._jobs[identity] = _Job(message, ray.put(shared), clients)
            if not clients:
                self._send(_Part(job, [], 0, self._workers.actors[0]))
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
                return replies + [self._give_up(self._jobs.pop(identity)) for identity in pending]
            self._collect(left)
            replies += self._finished(pending)
            pending = [identity for identity in pending if identity in self._jobs]
        return replies

    def _finished(self, identities: Iterable[str]) -> list[Message]:
        done = [i for i in identities if i in self._jobs and self._is_done(self._jobs[i])]
        return [self._reply(self._jobs.pop(identity)) for identity in done]

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
            return Message(Error(WORKER_FAILED, "no worker answered"), reply_to=job.message)
        if not job.waiting and len(job.parts) == 1 and not job.failures:
            return job.parts[0]
        return Message(wire.merge_replies(job.parts, job.failures), reply_to=job.message)

    def _deal(self) -> None:
        """Give every worker that could run out of work its next part."""
        busy = [0] * len(self._workers.actors)
        for part in self._flying.values():
            busy[part.index] += 1
        for depth in range(AHEAD):
            for index, actor in enumerate(self._workers.actors):
                if busy[index] > depth:
                    continue
                for job in self._jobs.values():
                    if clients := self._next_part(job, index):
                        self._send(_Part(job, clients, index, actor))
                        busy[index] += 1
                        break

    def _next_part(self, job: _Job, index: int) -> list[int]:
        """Take a worker's next clients off a job: a fair share of half of what is left."""
        mine = [c for c in job.waiting if self._home.get(c, index) == index]
        total = sum(map(self._work_of, job.waiting))
        share, taken, work = total / (2 * len(self._workers.actors)), [], 0.0
        for client in mine:
            taken.append(client)
            work += self._work_of(client)
            if work >= share:
                break
        chosen = set(taken)
        job.waiting = [c for c in job.waiting if c not in chosen]
        return taken

    def _send(self, part: _Part) -> None:
        whole = part.job.message
        content = wire.part_of(whole.content, part.clients) if part.clients else whole.content
        message = make_message(metadata=whole.metadata, content=content)
        part.job.in_flight += 1
        self._flying[part.actor.serve.remote(message, part.job.shared)] = part

    def _collect(self, timeout: float | None) -> None:
        """Take in what workers have done; wait for the first of it, at most `timeout` seconds."""
        if not self._flying:
            return
        done, _ = ray.wait(list(self._flying), num_returns=1, timeout=timeout)
        more, _ = ray.wait(list(self._flying), num_returns=len(self._flying), timeout=0)
        for reference in {*done, *more}:
            part = self._flying.pop(reference)
            part.job.in_flight -= 1
            try:
                reply, stateful = ray.get(reference)
                part.job.parts.append(reply)
                if stateful:
                    self._home |= dict.fromkeys(part.clients, part.index)
            except RayError as error:
                reason = f"its worker failed: {str(error).strip().splitlines()[-1]}"
                part.job.failures |= dict.fromkeys(part.clients, reason)
                if isinstance(error, RayActorError):
                    self._bury(part)
        self._deal()

    def _bury(self, part: _Part) -> None:
        """Replace a worker that has died, once for all the parts that it had in hand."""
        if self._workers.actors[part.index] is not part.actor:
            return
        log.warning("Worker %d has died and is started again", part.index)
        self._workers.replace(part.index)
        self._home = {c: index for c, index in self._home.items() if index != part.index}
