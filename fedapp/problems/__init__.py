"""What a federation minimises: a network's loss, a linear classifier's risk, or quadratics."""

from functools import lru_cache
from typing import TYPE_CHECKING

from fedapp.doors import is_outside, times_given
from fedapp.errors import ConfigError
from fedapp.problems.kinds import KINDS, Kind, find_kind, kind_of, subject

if TYPE_CHECKING:  # torch takes seconds to import, and descriptions of problems do not need it
    from fedapp.config import RunConfig
    from fedapp.data import Shard
    from fedapp.problems.protocols import FederatedProblem

__all__ = ["KINDS", "Kind", "find_kind", "kind_of", "make_problem", "rehearse", "subject"]

# The keys that decide what a problem is; runs that differ elsewhere share one.
_KEYS = [
    "problem",
    "dataset",
    "data_dir",
    "features",
    "target",
    "group",
    "train_samples",
    "partition",
    "partition_alpha",
    "classes_per_client",
    "samples_per_client",
    "num_clients",
    "seed",
    "model",
    "norm",
    "trainable",
    "lora",
    "device",
    "dtype",
    "precision",
    "compile",
    "batch_size",
    "weighting",
    "eval_train",
    "metrics",
    "test_share",
    "valid_share",
    "augmentation",
    "options",
]


def make_problem(config: "RunConfig", shard: "Shard | None" = None) -> "FederatedProblem":
    """Return the config's problem; a process keeps the one it used last.

    With a `shard`, it is the problem of a node that has its own data.
    """
    from fedapp.devices import find_device, full_memory_as
    from fedapp.threads import one_thread

    one_thread()  # also where another thread has built it: this one is about to compute
    if shard and not kind_of(config).is_network:
        raise ConfigError(
            "A node's own data can train a network only: take data-dir out of the node's config, or "
            "choose a network as model.",
            tell=True,
        )
    if shard and shard.data_dir and is_outside(config.dataset):
        raise ConfigError(
            f"dataset = {config.dataset!r} is a function, and a node's own data are files: take data-dir out of the node's "
            "config, or set dataset to a name in it.",
            tell=True,
        )
    if not kind_of(config).is_network and (config.precision != "fp32" or config.compile):
        raise ConfigError(
            'This problem is not a network: set precision = "fp32" and compile = false.'
        )
    device = str(find_device(config.device))
    if device != config.device:
        config = config.model_copy(update={"device": device})
    tables = [name for kind in KINDS for name in kind.tables if hasattr(config, name)]
    values = {key: getattr(config, key) for key in (*_KEYS, *tables)}
    if is_outside(config.problem) or is_outside(config.dataset):  # they may read any key
        relevant = config
    else:
        relevant = type(config)(**values, clients_per_round=1)
    with full_memory_as(ConfigError):
        return _make_problem(relevant, shard, times_given())


def rehearse(
    config: "RunConfig", problem: "FederatedProblem", client: int = 0, with_test_data: bool = True
) -> None:
    """Load a client's data and, if the network or the problem is a user's or is compiled, train and evaluate on a batch.

    What is wrong with either is reported before anything has started.
    """
    problem.objective(client)
    users = is_outside(config.model) or is_outside(config.problem)
    if (users or config.compile) and hasattr(problem, "rehearse"):  # it is a network
        from fedapp.devices import full_memory_as

        with full_memory_as(ConfigError):
            problem.rehearse(client, with_test_data)


@lru_cache(maxsize=1)
def _make_problem(config: "RunConfig", shard: "Shard | None", times: int) -> "FederatedProblem":
    return kind_of(config).make(config, shard)
