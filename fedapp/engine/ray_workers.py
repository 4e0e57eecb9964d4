"""The Ray actors that train clients: starting Ray, starting the actors, replacing dead ones, ending them.

Each worker holds the ClientApp, one model, the memory-mapped data and the state of the clients that it has trained, and
serves message after message. `RayGrid` (`ray.py`) decides which worker trains which client.
"""

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedapp.doors import given_for, register
from fedapp.engine.calls import Calls, DirectCalls, RayCalls, WorkerDiedError, listen
from fedapp.engine.local import RUN_ID
from fedapp.engine.own_ray import OwnRay
from fedapp.engine.placement import place
from fedapp.engine.transfer import (
    Buffer,
    Inbox,
    Layout,
    Outbox,
    Page,
    Pages,
    joined,
    layout_of,
    put_together,
    shared_memory_dir,
)
from fedapp.errors import ConfigError
from fedapp.files import brief
from fedapp.state import ContextStore, DirectoryStore, copy_states
from fedapp.tables import Value

log = logging.getLogger("flwr")
NODE = 1
STARTS = 3  # tries
PATIENCE = 60.0  # seconds, after which it is said that workers have no place


def _probe(address: str) -> None:
    """Fail at once where Ray would try for minutes to reach a cluster that is not there."""
    if re.fullmatch(r"[\w.-]+:\d+", address):
        host, port = address.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()


def _start_own_ray(options: dict[str, Any]) -> OwnRay:
    """Start Ray on this machine; again, if the machine is too busy for Ray's own time limit of 30 seconds."""
    for _ in range(STARTS - 1):
        try:
            return OwnRay(**options)
        except Exception as error:  # Ray raises no narrower type
            log.warning("Ray did not start (%s) and is started again", brief(error))
    try:
        return OwnRay(**options)
    except Exception as error:
        raise ConfigError(
            f"Ray did not start {STARTS} times ({brief(error)}): end other programs, or use --engine inline."
        ) from None


def _paths() -> list[str]:
    """Return where this process looks for modules."""
    return [path or str(Path.cwd()) for path in sys.path]


def _sent(run_config: dict[str, Value]) -> Any:
    """Put the Python objects that a config names into the object store, and return the reference."""
    objects = given_for(run_config.values())
    try:
        return ray.put(objects)
    except Exception as error:  # an object may raise anything when it is pickled
        raise ConfigError(
            f"{', '.join(objects)} cannot be sent to Ray's workers ({brief(error)}): put it into a module that they can "
            'import, or use engine="inline".'
        ) from None


# What a round's messages have in common: a reference to it in Ray's object store, or it, whose bytes may be in a page
Reference = list[Any]
Posted = tuple[Layout, Buffer | str]
# A reply, where its bytes are, whether the worker keeps state, and the seconds it took
Served = tuple[Layout, tuple[str, int] | Buffer, bool, float]


class Worker:
    """One actor: the ClientApp, and its own Context, which stays in its memory."""

    def __init__(self, app: str, directory: str, paths: Sequence[str]) -> None:
        # Ray puts the driver's directory first, where a file may have the name of a package of ours.
        places = {path: place for place, path in enumerate(paths)}
        sys.path.sort(key=lambda path: places.get(path, -1))
        module, _, name = app.partition(":")
        self._app = getattr(import_module(module), name)
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN_ID, NODE, 1
        # The driver's directory is here if this is the driver's machine.
        self._outbox = Outbox(Path(directory)) if Path(directory).is_dir() else None
        self._shared_reference: Any = None
        self._shared: tuple[Layout, Buffer] = ([], joined([]))
        self._pages: dict[str, Buffer] = {}
        self._given: dict[int, dict[str, object]] = {}  # by run
        self._arrival = threading.Condition()

    def listen(self, address: str, name: str) -> None:
        """Take calls from a socket of the driver's instead of Ray, until the driver is gone."""
        listen(address, name, self, self._pages)

    def give(self, run: int, objects: dict[str, object]) -> None:
        """Take the objects that a run's config names and that cannot be imported."""
        with self._arrival:
            self._given[run] = objects
            self._arrival.notify()

    def begin(self, run_config: str, run: int) -> None:
        """Forget the run before, and start one (its config is JSON), as soon as its objects are here."""
        with self._arrival:
            self._arrival.wait_for(lambda: run in self._given)
            register(self._given[run])
            self._given = {r: objects for r, objects in self._given.items() if r > run}
        self._context = Context(
            run_id=RUN_ID,
            node_id=NODE,
            node_config={"partition-id": 0, "num-partitions": 1},
            state=RecordDict(),
            run_config=json.loads(run_config),
        )

    def whereabouts(self) -> tuple[str, int]:
        """Return the Ray node and the process that this worker is."""
        return ray.get_runtime_context().get_node_id(), os.getpid()

    def save_states(self, directory: str, tags: dict[int, int]) -> None:
        """Write the clients' states that this worker has in memory."""
        copy_states(ContextStore(self._context.state), DirectoryStore(Path(directory)), tags)

    def serve(self, kind: str, part: tuple[Layout, Buffer], shared: Reference | Posted) -> Served:
        """Serve a message; `shared` is what a round's messages have in common."""
        started = time.perf_counter()
        content = put_together(*part, copy=False)
        for name, record in put_together(*self._shared_of(shared), copy=False).items():
            content[name] = record
        reply = self._app(Message(content, NODE, kind), self._context)
        layout, pieces = layout_of(reply.content)
        where = self._outbox.write(pieces) if self._outbox else joined(pieces)
        stateful = any(name.startswith("state.") for name in self._context.state)
        return layout, where, stateful, time.perf_counter() - started

    def _shared_of(self, shared: Reference | Posted) -> tuple[Layout, Buffer]:
        if len(shared) == 1:
            if shared[0] != self._shared_reference:
                fetched: Any = ray.get(shared[0])
                self._shared_reference, self._shared = shared[0], fetched
            return self._shared
        layout, where = shared
        return layout, self._pages[where] if isinstance(where, str) else where


@dataclass(frozen=True)
class Shared:
    """What a round's messages have in common, as the driver keeps it for the workers."""

    argument: Reference | Posted
    page: Page | None = None


class RayWorkers:
    """W workers, on this machine or on a Ray cluster, which serve any number of runs.

    `device` is what the runs ask for: with "auto" or "cuda", the workers share the GPUs that Ray sees.
    """

    def __init__(
        self,
        count: int = 0,
        address: str = "",
        app: str = "fedapp.node:app",
        device: str = "cpu",
        workers_per_gpu: int = 0,
    ) -> None:
        self._started_ray = not ray.is_initialized()
        if address and not self._started_ray:
            raise ConfigError(
                "Ray is already running in this process: leave address out, or call ray.shutdown() first."
            )
        self._app = app
        self._directory = shared_memory_dir()
        self.inbox = Inbox()
        self._pages = Pages(self._directory)
        self._runs = 0
        self.calls: Calls = RayCalls()
        self.actors: list[Any] = []
        self._run_config: dict[str, Value] = {}
        self._objects: Any = {}  # given in Python; in the object store
        self._own_ray: OwnRay | None = None
        if self._started_ray:
            try:
                self._start_ray(address)
            except BaseException:
                shutil.rmtree(self._directory, ignore_errors=True)
                raise
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        # Whether clients' states are on a disk that the server sees.
        self.shares_disk = not address and len(nodes) == 1
        try:
            self.placement = place(count, device, workers_per_gpu, nodes)
        except ConfigError:
            self.close()
            raise
        if self.shares_disk:
            # Some systems have no such sockets, and paths may be too long for them.
            with contextlib.suppress(OSError, ValueError):
                self.calls = DirectCalls(self._directory)
        # One of two threads listens to the driver's socket.
        threads = 2 if isinstance(self.calls, DirectCalls) else 1
        self._remote = ray.remote(Worker).options(
            num_cpus=1,
            num_gpus=self.placement.gpu_share,
            scheduling_strategy="SPREAD",
            max_concurrency=threads,
        )
        self.actors = [self._start_worker() for _ in range(self.placement.workers)]

    def _start_ray(self, address: str) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns
        # Workers must find this package also where it is not installed.
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(_paths())}}
        options: dict[str, Any] = {
            "runtime_env": environment,
            "logging_level": logging.WARNING,
            "log_to_driver": False,
        }
        if not address:
            self._own_ray = _start_own_ray(options)
            return
        try:
            _probe(address)
            ray.init(address=address, **options)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"No Ray cluster answers at --address {address} ({reason}): give its HOST:PORT."
            ) from None

    def _start_worker(self) -> Any:
        actor = self._remote.remote(self._app, str(self._directory), _paths())
        if isinstance(self.calls, DirectCalls):
            self.calls.add(actor)
        return actor

    def begin(self, run_config: dict[str, Value]) -> None:
        """Start a run on every worker; one that died after the last run is replaced."""
        self._run_config, self._objects = run_config, _sent(run_config)
        self._runs += 1
        begun = [self._begin(actor) for actor in self.actors]
        waiting = len(begun) - len(self.calls.wait(begun, PATIENCE, len(begun)))
        if waiting:
            free = ray.available_resources().get("CPU", 0)
            log.warning(
                "%d of %d workers still wait for a place on the cluster, which has %g CPUs free: wait, or set --workers "
                "lower.", waiting, len(begun), free,
            )  # fmt: skip
        for index, started in enumerate(begun):
            try:
                self.calls.wait([started], None)
                self.calls.result(started)
            except WorkerDiedError:
                self.replace(index)

    def _begin(self, actor: Any) -> Any:
        """Have a worker start the run."""
        actor.give.remote(self._runs, self._objects)
        return self.calls.start(actor, "begin", json.dumps(self._run_config), self._runs)

    def share(self, content: RecordDict) -> Shared:
        """Bring what a round's messages have in common to where the workers find it."""
        layout, pieces = layout_of(content)
        if not isinstance(self.calls, DirectCalls):
            return Shared([ray.put((layout, joined(pieces)))])
        page = self._pages.write(pieces)
        return Shared((layout, page.key if page else joined(pieces)), page)

    def forget(self, shared: Shared) -> None:
        """Let go of what no worker reads any more."""
        if shared.page:
            self._pages.free(shared.page)

    def serve(self, index: int, kind: str, content: RecordDict, shared: Shared) -> Any:
        """Have a worker serve a message; return the call."""
        layout, pieces = layout_of(content)
        arguments = kind, (layout, joined(pieces)), shared.argument
        return self.calls.start(self.actors[index], "serve", *arguments, page=shared.page)

    def save_states(self, directory: Path, tags: dict[int, int]) -> None:
        """Have every worker write the clients' states that it has in memory."""
        arguments = str(directory), tags
        saving = [self.calls.start(actor, "save_states", *arguments) for actor in self.actors]
        self.calls.wait(saving, None, len(saving))
        for call in saving:
            self.calls.result(call)

    def replace(self, index: int) -> None:
        """Start a worker in place of one that has died."""
        self.actors[index] = self._start_worker()
        self._begin(self.actors[index])

    def close(self) -> None:
        """End the workers, and Ray if it was started here."""
        self.calls.close()
        for actor in self.actors:
            ray.kill(actor)
        if self._own_ray:
            self._own_ray.stop()
        elif self._started_ray:
            ray.shutdown()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "RayWorkers":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()
