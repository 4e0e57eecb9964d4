"""Who holds which samples: flwr-datasets' partitioners, seeded, computed once.

Every client holds at least one sample, or the partition says why that cannot be.
"""

import hashlib
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data.cache import build_once, cache_dir, mapped
from fedapp.errors import ConfigError
from fedapp.randomness import generator

log = logging.getLogger("flwr")


class Divisible(Protocol):
    """What partitions need to know about a data set."""

    @property
    def key(self) -> str:
        """What names its content."""

    @property
    def train_labels(self) -> NDArray[np.int64]:
        """The class of each training sample, or what stands for it."""

    @property
    def num_classes(self) -> int:
        """The number of classes."""

    @property
    def writers(self) -> NDArray[Any] | None:
        """Who wrote each training sample."""


@dataclass(frozen=True)
class Partition:
    """The samples of client c are `indices[starts[c]:starts[c + 1]]`."""

    indices: NDArray[np.int64]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.starts) - 1

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        """Return the indices of a client's samples."""
        return self.indices[self.starts[client] : self.starts[client + 1]]

    def class_counts(self, labels: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
        """Return how many samples of each class each client holds (clients x classes)."""
        return np.stack(
            [np.bincount(labels[self[c]], minlength=num_classes) for c in range(len(self))]
        )


def load_partition(data: Divisible, config: RunConfig) -> Partition:
    """Load the config's partition, computing it if no process has done so before."""
    own = {"dirichlet": config.partition_alpha, "classes": config.classes_per_client}
    what = (
        data.key,
        config.partition,
        own.get(config.partition),
        config.num_clients,
        config.seed,
        *([config.train_samples] if config.train_samples else []),
    )
    digest = hashlib.sha256(repr(what).encode()).hexdigest()[:16]

    def build(directory: Path) -> None:
        groups = _partition(data, config)
        np.save(directory / "indices.npy", np.concatenate(groups))
        np.save(directory / "starts.npy", np.cumsum([0, *(len(g) for g in groups)]))

    directory = build_once(cache_dir() / "partitions" / f"{config.partition}-{digest}", build)
    partition = Partition(mapped(directory / "indices.npy"), mapped(directory / "starts.npy"))
    there, held = (
        len(np.unique(labels))
        for labels in (data.train_labels, data.train_labels[partition.indices])
    )
    unheld = there - held
    if unheld and not (
        data.writers is not None and np.array_equal(data.writers, data.train_labels)
    ):
        log.warning("%d of %d classes are held by nobody", unheld, there)
    return partition


def _partition(data: Divisible, config: RunConfig) -> list[NDArray[np.int64]]:
    clients, there = config.num_clients, len(data.train_labels)
    if config.train_samples > there:
        raise ConfigError(
            f"train-samples = {config.train_samples} is more than the {there} of {config.dataset}: "
            "choose fewer, or 0 for all."
        )
    samples = config.train_samples or there
    if clients > samples:
        raise ConfigError(
            f"num-clients = {clients} is more than the {samples} training samples of "
            f"{config.dataset}: choose at most {samples}, so that everyone holds one."
        )
    groups = _split(data, config)
    return fill_empty(groups) if config.partition == "dirichlet" else groups


def _split(data: Divisible, config: RunConfig) -> list[NDArray[np.int64]]:
    from datasets import Dataset
    from flwr_datasets.partitioner import (
        DirichletPartitioner,
        IidPartitioner,
        NaturalIdPartitioner,
        Partitioner,
        PathologicalPartitioner,
    )

    clients = config.num_clients
    rng = generator(config.seed, "partition")
    seed = int(rng.integers(2**31))
    chosen = np.arange(len(data.train_labels))
    if config.train_samples:
        order = generator(config.seed, "samples").permutation(chosen)
        chosen = np.sort(order[: config.train_samples])
    columns = {"sample": chosen, "label": data.train_labels[chosen]}
    parts = list(range(clients))  # the partitioner's parts that clients get
    partitioner: Partitioner
    match config.partition:
        case "iid":
            columns["sample"] = rng.permutation(columns["sample"])
            partitioner = IidPartitioner(clients)
        case "dirichlet":
            partitioner = DirichletPartitioner(
                clients,
                "label",
                config.partition_alpha,
                min_partition_size=0,
                self_balancing=False,
                seed=seed,
            )
        case "classes":
            if config.classes_per_client > data.num_classes:
                raise ConfigError(
                    f"classes-per-client = {config.classes_per_client} is more than the "
                    f"{data.num_classes} classes of {config.dataset}: choose at most that many."
                )
            partitioner = PathologicalPartitioner(
                clients,
                "label",
                config.classes_per_client,
                class_assignment_mode="first-deterministic",
                seed=seed,
            )
        case "writer":
            if data.writers is None:
                raise ConfigError(
                    f'partition = "writer" needs to know who wrote each sample, and '
                    f"{config.dataset} does not say: use femnist, or set group to the column that says."
                )
            columns["writer"] = data.writers[chosen]
            if clients > (writers := len(np.unique(columns["writer"]))):
                raise ConfigError(
                    f"num-clients = {clients} is more than the {writers} writers of "
                    f"{config.dataset}: choose at most {writers}."
                )
            partitioner = NaturalIdPartitioner("writer")
            parts = rng.permutation(writers)[:clients].tolist()
    partitioner.dataset = Dataset.from_dict(columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes that nobody holds: said on loading
        try:
            held = (partitioner.load_partition(part)[:]["sample"] for part in parts)
            groups = [np.array(samples, dtype=np.int64) for samples in held]
        except ValueError as error:
            raise ConfigError(
                f"The {config.partition} partition of {config.dataset} over {clients} clients "
                f"cannot be made: {str(error).splitlines()[0]}"
            ) from None
    return groups


def deal(samples: int, clients: range, config: RunConfig, purpose: str) -> Partition:
    """Deal samples to some clients at random, each about as many; the others hold none."""
    order = np.arange(samples)
    if len(clients) > 1:
        order = generator(config.seed, purpose, 0, clients[0]).permutation(order)
    sizes = np.zeros(config.num_clients, np.int64)
    sizes[list(clients)] = [len(part) for part in np.array_split(order, len(clients))]
    return Partition(order, np.cumsum([0, *sizes]))


def fill_empty(groups: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Give every client without a sample one of the client that then holds most.

    A Dirichlet draw with a small alpha leaves clients with nothing to train on.
    """
    groups = list(groups)
    for client, group in enumerate(groups):
        if len(group) == 0:
            richest = max(range(len(groups)), key=lambda c: len(groups[c]))
            groups[client], groups[richest] = groups[richest][-1:], groups[richest][:-1]
    return groups
