"""One round of FedBCGD with 2 clients on the large models: time and memory.

`python -m benchmarks.large_models --data-dir DIR`, DIR with cifar10. Each model has its own process, so that the peak
is its own; the test set is not evaluated.
"""

import argparse
import logging
import multiprocessing
import resource

from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.rounds import run_rounds

BATCHES = {"lenet5": 50, "vgg11": 50, "vgg19": 50, "resnet18": 50, "vit-base": 4}


def one_round(model: str, data_dir: str) -> str:
    """Run one round with one local step, and describe it as a row of a table."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    config = parse_run_config(
        {
            "algorithm": "fedbcgd",
            "dataset": "cifar10",
            "data-dir": data_dir,
            "model": model,
            "norm": "group",
            "num-clients": 100,
            "clients-per-round": 2,
            "num-rounds": 1,
            "local-steps": 1,
            "batch-size": BATCHES[model],
            "partition": "iid",
            "lr": 0.01,
        }
    )
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    problem.evaluate = lambda x, buffers: {}  # type: ignore[method-assign]
    grid = InlineGrid(client_app.app, config.flat())
    (record,) = run_rounds(grid, strategy, problem, config)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return (
        f"| {model} | {strategy.x.size:,} | {BATCHES[model]} | {record['wall_seconds']:.1f} s "
        f"| {peak:.1f} GB |"
    )


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", required=True)
    data_dir = parser.parse_args().data_dir
    print("| model | parameters | batch | round | peak memory |")
    print("|---|---|---|---|---|")
    for model in BATCHES:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.apply(one_round, (model, data_dir)), flush=True)


if __name__ == "__main__":
    main()
