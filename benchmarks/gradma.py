"""GradMA-S's server step against the mean of the same updates, in one run.

`python -m benchmarks.gradma`: LeNet-5's 800K parameters, a memory of 100 vectors, 10, 50 and 100 updates a round.
Ratios of medians, by turns; only they carry over to another machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from fedapp.models.networks import layout_of, make_network
from fedapp.parsing import parse_run_config
from fedapp.registry import find_algorithm
from fedapp.wire import Update

MEMORY = 100


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)  # as in every run
    network = make_network("lenet5", (3, 32, 32), 10, "batch", 0)
    layout = layout_of(network, "lenet5")
    d = layout.size
    print("| updates | scope | mean | server step | ratio |")
    print("|---|---|---|---|---|")
    for cohort in (10, 50, 100):
        for scope in ("layer", "model"):
            config = parse_run_config(
                {
                    "algorithm": "gradma-s",
                    "num-clients": MEMORY,
                    "clients-per-round": cohort,
                    "gradma.memory-size": MEMORY,
                    "gradma.scope": scope,
                }
            )
            algorithm = find_algorithm(config.algorithm)
            x = np.zeros(d, np.float32)
            strategy = algorithm.strategy(
                algorithm, config, x, np.zeros(0, np.float32), layout=layout
            )
            rng = np.random.default_rng(0)
            # Ten kinds of clients that pull in different directions, as under heterogeneity.
            kinds = rng.standard_normal((10, d), dtype=np.float32)
            kinds[5:] = -0.5 * kinds[:5] + 0.5 * kinds[5:]
            own = 0.5 * rng.standard_normal((MEMORY, d), dtype=np.float32)
            own += kinds[np.arange(MEMORY) % 10]
            means: list[float] = []
            steps: list[float] = []
            for k in range(MEMORY // cohort + rounds):
                chosen = np.arange(cohort * k, cohort * (k + 1)) % MEMORY
                updates = [Update(int(c), {"u": own[c]}, 1, 1, 0.0) for c in chosen]
                with threadpool_limits(1):
                    mean = seconds(lambda: strategy.mean(updates))  # noqa: B023
                    step = seconds(lambda: strategy.aggregate(updates))  # noqa: B023
                if k >= MEMORY // cohort:  # the memory is full
                    means.append(mean)
                    steps.append(step)
            a, b = statistics.median(means), statistics.median(steps)
            print(
                f"| {cohort} | {scope} | {1000 * a:.1f} ms | {1000 * b:.1f} ms | {b / a:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
