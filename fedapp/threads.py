"""One thread: torch and BLAS run on one thread in everything that decides a run's bits.

The number of threads decides in which order a long sum is added, and so its last bits. A library
chooses it by the machine's cores, by `OMP_NUM_THREADS` (Ray's workers have 1) and by the thread that
calls it, so it must be set where the computing happens:

- torch's limit is OpenMP's, and holds in the thread that sets it. A thread that is started later
  multiplies on all cores until an operation that torch itself divides has run in it.
- The limit of OpenBLAS, which NumPy and SciPy bring along, holds in the process.

So every thread calls `one_thread` before it computes: `make_problem` does, on a server and on a node,
`run_rounds` does, and so does every thread of `thread_pool`.
"""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import OpenBLASController, ThreadpoolController

Task = TypeVar("Task")
Done = TypeVar("Done")


def one_thread() -> None:
    """Let torch, in the calling thread, and BLAS, in this process, use one thread from now on."""
    import numpy as np  # noqa: F401  # brings an OpenBLAS
    import scipy.linalg  # noqa: F401  # brings another
    import torch  # here, because modules that mention threads are imported without computing

    torch.set_num_threads(1)
    libraries = _libraries(len(sys.modules))
    libraries.limit(limits=1)
    if any(library.num_threads > 1 for library in libraries.lib_controllers):
        # Another thread has set OpenBLAS's limit before, and threadpoolctl listens to that one alone.
        OpenBLASController.clear_controlling_thread(force=True)
        libraries.limit(limits=1)


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """Find the loaded libraries; again when a module was imported, which may have brought one."""
    return ThreadpoolController()


@lru_cache(maxsize=1)
def thread_pool() -> ThreadPoolExecutor:
    """Return this process's threads, each of which computes alone."""
    return ThreadPoolExecutor(os.cpu_count(), initializer=one_thread)


def in_shares(work: Callable[[Task], Done], tasks: Sequence[Task], shares: int) -> list[Done]:
    """Do tasks on this process's threads, at most `shares` at a time; return what comes of them in their order."""

    def share(first: int) -> list[Done]:
        return [work(task) for task in tasks[first::shares]]

    done: dict[int, Done] = {}
    for first, results in enumerate(thread_pool().map(share, range(min(shares, len(tasks))))):
        done |= zip(range(first, len(tasks), shares), results, strict=True)
    return [done[place] for place in range(len(tasks))]


# A forked process has none of its parent's threads.
os.register_at_fork(after_in_child=thread_pool.cache_clear)
