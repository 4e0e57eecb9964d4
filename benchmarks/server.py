"""The server's work in a round as multiples of the mean of the same updates, in one run.

`python -m benchmarks.server` measures GradMA-S's step, other algorithms' steps and robust rules, by turns with the mean.
Ratios of medians, of the time that passes and of the processors' time; only they carry over to another machine. On a busy
machine, the processors' time is the one to compare; the time that passes is less where a step uses several cores.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedapp.models.layout import Layout
from fedapp.parsing import parse_run_config
from fedapp.registry import find_algorithm
from fedapp.tables import Value
from fedapp.wire import Update

Keys = dict[str, Value]
STEPS: dict[str, Keys] = {
    "fedavg": {"algorithm": "fedavg"},
    "fedavgm": {"algorithm": "fedavgm"},
    "fedadam": {"algorithm": "fedadam"},
    "mifa": {"algorithm": "mifa"},
    "feddyn": {"algorithm": "feddyn"},
    "scaffold": {"algorithm": "scaffold"},
    "median": {"aggregation": "median"},
    "trimmed mean": {"aggregation": "trimmed-mean"},
    "multi-Krum": {"aggregation": "multi-krum", "hostile": 0.2},
    "geometric median": {"aggregation": "geometric-median"},
    "centered clipping": {"aggregation": "centered-clipping"},
}


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return how long something takes, and how much of the processors' time."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def vectors(number: int, d: int) -> NDArray[np.float32]:
    """Return updates of ten kinds of clients that pull in different directions, as under heterogeneity."""
    rng = np.random.default_rng(0)
    kinds = rng.standard_normal((10, d), dtype=np.float32)
    kinds[5:] = -0.5 * kinds[:5] + 0.5 * kinds[5:]
    own = rng.standard_normal((number, d), dtype=np.float32)
    own *= np.float32(0.5)
    for client, vector in enumerate(own):
        vector += kinds[client % 10]
    return own


def strategy_of(keys: Keys, clients: int, cohort: int, d: int, pieces: int) -> Any:
    """Return a server whose model is d numbers in a few equal tensors."""
    config = parse_run_config({"num-clients": clients, "clients-per-round": cohort, **keys})
    algorithm = find_algorithm(config.algorithm)
    sizes = tuple(len(part) for part in np.array_split(np.empty(d, np.int8), pieces))
    layout = Layout(sizes, sizes)
    x = np.zeros(d, np.float32)
    return algorithm.strategy(algorithm, config, x, np.zeros(0, np.float32), layout=layout)


def measure(strategy: Any, own: NDArray[Any], cohort: int, rounds: int) -> str:
    """Return a row's numbers: the mean, the step, and the step over the mean, once every client has taken part."""
    before, sends = -(-len(own) // cohort), strategy.algorithm.client.sends
    means, steps = [], []
    for k in range(before + rounds):
        chosen = np.arange(cohort * k, cohort * (k + 1)) % len(own)
        updates = [Update(int(c), dict.fromkeys(sends, own[c]), 1, 1, 0.0) for c in sorted(chosen)]
        plain = [own[update.client] for update in updates]
        with threadpool_limits(1):  # as in every run
            mean, step = seconds(lambda: _mean(plain)), seconds(lambda: strategy.aggregate(updates))  # noqa: B023
        if k >= before:
            means.append(mean)
            steps.append(step)
    passed, used = (
        [statistics.median(time[kind] for time in times) for times in (means, steps)]
        for kind in (0, 1)
    )
    return (
        f"{1000 * passed[0]:.1f} ms | {1000 * passed[1]:.1f} ms | {passed[1] / passed[0]:.1f} | "
        f"{used[1] / used[0]:.1f}"
    )


def _mean(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the mean as the server computes it."""
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    return np.asarray(total / len(rows))


def main() -> None:
    """Print two Markdown tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="*", default=[200_000, 800_000])
    parser.add_argument("--memories", type=int, nargs="*", default=[20, 100])
    parser.add_argument("--cohorts", type=int, nargs="*", default=[10, 50, 100])
    parser.add_argument("--pieces", type=int, nargs="*", default=[1, 10], help="tensors of a model")
    parser.add_argument("--no-others", action="store_true", help="measure GradMA-S only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ending = "mean | step | ratio | processor ratio |"
    print(f"| numbers | memory | updates | tensors | {ending}\n|{8 * '---|'}")
    for d in arguments.sizes:
        for memory in arguments.memories:
            own = vectors(memory, d)
            for cohort in [c for c in arguments.cohorts if c <= memory]:
                for pieces in arguments.pieces:
                    keys: Keys = {"algorithm": "gradma-s", "gradma.memory-size": memory}
                    strategy = strategy_of(keys, memory, cohort, d, pieces)
                    numbers = measure(strategy, own, cohort, arguments.rounds)
                    print(f"| {d} | {memory} | {cohort} | {pieces} | {numbers} |", flush=True)
    if arguments.no_others:
        return
    print(f"\n| step | numbers | updates | {ending}\n|{7 * '---|'}")
    for name, keys in STEPS.items():
        for cohort in arguments.cohorts[:1]:
            d = arguments.sizes[-1]
            strategy = strategy_of(keys, cohort, cohort, d, 1)
            numbers = measure(strategy, vectors(cohort, d), cohort, arguments.rounds)
            print(f"| {name} | {d} | {cohort} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
