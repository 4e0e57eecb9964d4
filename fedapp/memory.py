"""Whether a run fits into this machine's memory, before it starts.

What is counted is held at the same time for certain: what the server keeps, what goes down and what comes up in a round,
the vectors of a step, and those that train in processes of this machine. What a network needs for its activations, the
data and the states of clients come on top: a run that is refused would not have fitted, and one that is not refused may
still not fit.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedapp.aggregation.sums import grids_of
from fedapp.algorithm import Algorithm
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.figures import human_bytes
from fedapp.problems.protocols import Start
from fedapp.registry import find_algorithm, find_compressor, keeps_state
from fedapp.strategy import WORTH_ADDING_UP, FederatedStrategy

SUMS = 2  # sums of a round's updates, each by its slices: as they are added up, and as a message
STEP = 3  # vectors of a server's step: the sum, its multiple, the new x
TRAINING = 4  # vectors of a process that trains: parameters, gradient, x, update
MEMINFO = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")  # the limit of a container


class Part(NamedTuple):
    """Some of the memory that a run needs, and what makes it less."""

    what: str
    nbytes: int
    advice: str


def parts(
    config: RunConfig, problem: Start, processes: int, sums: bool = True, states: bool = False
) -> list[Part]:
    """Return what a run needs, with clients that train in some processes of this machine.

    `sums`: their nodes may add them up. `states`: what clients remember is in these processes' memory.
    """
    algorithm = find_algorithm(config.algorithm)
    vector = problem.layout.size * np.dtype(config.dtype).itemsize
    kept = algorithm.strategy.server_vectors(config)
    smaller = "choose a smaller model"
    found = [
        Part(f"{name} on the server", count * vector, _advice(algorithm, name) or smaller)
        for name, count in kept.items()
    ]
    others = 1 + algorithm.strategy.delivers + STEP + 1  # x, and x as it is sent
    updates = config.clients_per_round * _bytes_of_update(config, problem, algorithm, vector)
    mean = config.aggregation == "mean" and config.mixing == "none" and not config.dp.clip
    exact = problem.layout.size * grids_of(np.dtype(config.dtype)) * np.dtype(np.float64).itemsize
    many = config.clients_per_round >= WORTH_ADDING_UP
    if many and sums and algorithm.strategy.adds_up(config):
        updates = min(updates, SUMS * len(algorithm.client.sends) * exact)
    return [
        *found,
        Part("the model and a step on the server", others * vector + mean * exact, smaller),
        Part("a round's updates", updates, "set clients-per-round lower"),
        Part(
            "training",
            processes * TRAINING * vector,
            "use fewer --workers" if processes > 1 else smaller,
        ),
        *([_states(config, vector)] if states and keeps_state(config) else []),
    ]


def _states(config: RunConfig, vector: int) -> Part:
    """Return what clients remember, at least a vector each."""
    clients = min(config.num_clients, config.clients_per_round * config.num_rounds)
    advice = "set state-dir, so that they are on a disk"
    return Part(f"the states of {clients:,} clients", clients * vector, advice)


def _advice(algorithm: Algorithm, name: str) -> str:
    key = algorithm.strategy.lower.get(name)
    return f"set {key} lower" if key else ""


def _bytes_of_update(config: RunConfig, problem: Start, algorithm: Algorithm, vector: int) -> int:
    """Return the bytes of a client's vectors; 0 if clients send only blocks, which are known later."""
    if algorithm.strategy.sent_pieces is not FederatedStrategy.sent_pieces:
        return 0
    compressor = find_compressor(config, problem.layout.pieces)
    payload = compressor.nominal_bits(problem.layout.size) / 8 if compressor else 0
    return int(len(algorithm.client.sends) * (vector + payload))


def available() -> int | None:
    """Return the bytes that this process can still have; None if the system does not say."""
    found = [count for count in (_of_machine(), _of_group()) if count is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_group() -> int | None:
    """Return what the container's limit leaves; pages of files count as free."""
    try:
        limit, used = (int((GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        stat = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return max(limit - used + int(stat["file"]), 0)
    except (OSError, ValueError, KeyError):  # no limit ("max"), or no such system
        return None


def check(config: RunConfig, problem: Start, processes: int, sums: bool, states: bool) -> None:
    """Raise ConfigError if a run needs more memory than there is."""
    demand(config.algorithm, parts(config, problem, processes, sums, states), available())


def demand(algorithm: str, needed: Iterable[Part], free: int | None) -> None:
    """Raise ConfigError if the parts are together more than what is free; name the largest."""
    needed = list(needed)
    total, largest = sum(part.nbytes for part in needed), max(needed, key=lambda part: part.nbytes)
    if free is not None and total > free:
        raise ConfigError(
            f"{algorithm} would need at least {human_bytes(total)} of memory ({human_bytes(largest.nbytes)} for "
            f"{largest.what}), and {human_bytes(free)} are available: {largest.advice}."
        )


def in_words(strategy: type[FederatedStrategy[Any]], config: RunConfig) -> str:
    """Say what the server keeps."""
    kept = strategy.server_vectors(config)
    return ", ".join(["x", *(name if n == 1 else f"{n} of {name}" for name, n in kept.items())])
