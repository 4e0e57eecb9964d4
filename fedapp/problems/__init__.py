"""What a federation minimises: a network's loss, a linear classifier's risk, or quadratics."""

from functools import lru_cache

import torch

from fedapp.config import RunConfig
from fedapp.data import Shard
from fedapp.errors import ConfigError
from fedapp.problems.problem import Problem
from fedapp.threads import one_thread

# The keys that decide what a problem is; runs that differ elsewhere share one.
_KEYS = [
    "dataset",
    "data_dir",
    "train_samples",
    "partition",
    "partition_alpha",
    "classes_per_client",
    "num_clients",
    "seed",
    "model",
    "norm",
    "device",
    "dtype",
    "batch_size",
    "quadratic",
    "erm",
    "vit",
    "weighting",
    "eval_train",
]


def is_network(config: RunConfig) -> bool:
    """Tell whether the config's problem is to train a network."""
    return config.dataset != "quadratic" and config.model not in ("logistic", "sigmoid-erm")


def make_problem(config: RunConfig, shard: Shard | None = None) -> Problem:
    """Return the config's problem; a process holds the one it used last and builds none twice.

    With a `shard`, it is the problem of a node that has data of its own.
    """
    one_thread()  # also where another thread has built it: this one is about to compute
    if shard and not is_network(config):
        raise ConfigError(
            "A node's own data can train a network only: take data-dir out of the node's config, or "
            "choose a network as model."
        )
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError):
        raise ConfigError(f'device = {config.device!r} is not there: use "cpu".') from None
    relevant = RunConfig(**{key: getattr(config, key) for key in _KEYS}, clients_per_round=1)
    return _make_problem(relevant, shard)


@lru_cache(maxsize=1)
def _make_problem(config: RunConfig, shard: Shard | None) -> Problem:
    if config.dataset == "quadratic":
        from fedapp.problems.quadratic import Quadratic

        return Quadratic(config)
    if not is_network(config):
        from fedapp.problems.erm import LinearERM

        return LinearERM(config)
    from fedapp.problems.classification import Classification

    return Classification(config, shard)
