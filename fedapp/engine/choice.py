"""Which engine is faster for some runs, if nobody names one: in this process, or on Ray workers.

Ray takes `RAY_START` seconds to start and end, and W workers divide the time of training by W at best. So runs are inline if
their training, estimated from a timed local step, takes less than `RAY_START` W / (W - 1) seconds. Both engines give
the same bits.
"""

import os
import time
from collections.abc import Sequence

from fedapp.config import LocalWork, RunConfig
from fedapp.problems.protocols import FederatedProblem
from fedapp.randomness import generator

RAY_START = 11.0  # seconds; see docs/engines.md
STEPS = 5  # that are timed at most
LONG = 1.0  # seconds after which no other step is timed


def inline_is_faster(seconds: float, workers: int) -> bool:
    """Tell whether N seconds of training end sooner in one process than on workers that must be started first."""
    return seconds * (workers - 1) <= RAY_START * workers


def seconds_of_training(configs: Sequence[RunConfig], problem: FederatedProblem) -> float:
    """Estimate the time that runs train for in one process, from a local step of the first one's problem."""
    objective = problem.objective(0)
    steps = (
        config.num_rounds
        * config.clients_per_round
        * config.local_work.num_steps(objective.num_examples)
        for config in configs
    )
    return sum(steps) * seconds_of_step(configs[0], problem)


def seconds_of_step(config: RunConfig, problem: FederatedProblem) -> float:
    """Time a few of a client's mini-batch gradients; return the shortest, for the first ones prepare things, too."""
    import torch

    objective = problem.objective(0)
    before = objective.buffers.clone()
    x = torch.tensor(problem.initial()[0], device=objective.buffers.device)
    work = LocalWork(STEPS, 0, config.batch_size)
    seconds: list[float] = []
    for batch in objective.batches(work, generator(config.seed, "timing")):
        started = time.perf_counter()
        objective.loss_gradient(x, batch)
        if x.device.type == "cuda":  # it returns before it has computed
            torch.cuda.synchronize(x.device)
        seconds.append(time.perf_counter() - started)
        if sum(seconds) > LONG:
            break
    objective.buffers.copy_(before)
    return min(seconds, default=0.0)


def workers_here(device: str) -> int:
    """Return how many workers Ray would start on this machine."""
    from fedapp.devices import find_device

    if find_device(device).type == "cuda":
        import torch

        return torch.cuda.device_count()
    return os.cpu_count() or 1
