"""Who holds which samples: flwr-datasets' partitioners, seeded, computed once; or every client draws its own.

Every client holds at least one sample, or the partition says why that cannot be. With `samples-per-client`, clients
share samples (`drawn.py`), and nothing is kept of a client.
"""

import hashlib
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data.cache import build_once, cache_dir, mapped
from fedapp.data.dividing import Divisible, Partition, demand_classes, writers_of
from fedapp.data.drawn import draw
from fedapp.errors import ConfigError
from fedapp.randomness import generator

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class Divided(Partition):
    """Every sample has at most one holder: `indices[starts[p]:starts[p + 1]]` are those of the p-th of the `clients`."""

    indices: NDArray[np.int64]
    starts: NDArray[np.int64]
    clients: range

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.clients)

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        """Return the indices of a client's samples; others than the `clients` have none."""
        if client not in self.clients:
            return self.indices[:0]
        place = self.clients.index(client)
        return self.indices[self.starts[place] : self.starts[place + 1]]

    def weights(self, samples: int) -> NDArray[np.float64]:
        """Return what each sample counts; one that nobody holds counts nothing."""
        weights = np.zeros(samples)
        for client in self.clients:
            held = self[client]
            weights[held] = 1 / (len(self) * len(held))
        return weights


def load_partition(data: Divisible, config: RunConfig) -> Partition:
    """Load the config's partition, computing it if no process has done so before."""
    if config.samples_per_client:
        return draw(data, config, _chosen(data, config))
    own = {"dirichlet": config.partition_alpha, "classes": config.classes_per_client}
    what = (
        data.key,
        config.partition,
        own.get(config.partition),
        config.num_clients,
        config.seed,
        *([config.train_samples] if config.train_samples else []),
        *([("valid", config.valid_share)] if config.valid_share else []),
    )
    digest = hashlib.sha256(repr(what).encode()).hexdigest()[:16]

    def build(directory: Path) -> None:
        groups = _partition(data, config)
        np.save(directory / "indices.npy", np.concatenate(groups))
        np.save(directory / "starts.npy", np.cumsum([0, *(len(g) for g in groups)]))

    directory = build_once(cache_dir() / "partitions" / f"{config.partition}-{digest}", build)
    partition = Divided(
        mapped(directory / "indices.npy"),
        mapped(directory / "starts.npy"),
        range(config.num_clients),
    )
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


def validation_rows(data: Divisible, config: RunConfig) -> NDArray[np.int64]:
    """Return the training samples that `valid-share` holds out: no client has them; none if it is 0."""
    return _divided(data, config)[1]


def _chosen(data: Divisible, config: RunConfig) -> NDArray[np.int64]:
    """Return the training samples that clients hold."""
    return _divided(data, config)[0]


def _divided(data: Divisible, config: RunConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples to train on, and those of `valid-share`, both in their order."""
    rows = _taking_part(data, config)
    if not config.valid_share:
        return rows, rows[:0]
    held = round(config.valid_share * len(rows))
    if not 0 < held < len(rows):
        raise ConfigError(
            f"valid-share = {config.valid_share:g} of the {len(rows)} training samples that the server has of "
            f"{config.dataset} leaves none to validate or to train on: choose another, or 0."
        )
    order = generator(config.seed, "validation").permutation(rows)
    return np.sort(order[held:]), np.sort(order[:held])


def _taking_part(data: Divisible, config: RunConfig) -> NDArray[np.int64]:
    """Return the training samples that take part: all, or `train-samples` of them."""
    there = len(data.train_labels)
    if config.train_samples > there:
        raise ConfigError(
            f"train-samples = {config.train_samples} is more than the {there} of {config.dataset}: "
            "choose fewer, or 0 for all."
        )
    chosen = np.arange(there)
    if not config.train_samples:
        return chosen
    order = generator(config.seed, "samples").permutation(chosen)
    return np.sort(order[: config.train_samples])


def _partition(data: Divisible, config: RunConfig) -> list[NDArray[np.int64]]:
    chosen = _chosen(data, config)
    if (clients := config.num_clients) > (samples := len(chosen)):
        raise ConfigError(
            f"num-clients = {clients} is more than the {samples} training samples of "
            f"{config.dataset}: choose at most {samples}, so that everyone holds one, or set samples-per-client, so "
            "that clients share samples."
        )
    groups = _split(data, config, chosen)
    return fill_empty(groups) if config.partition == "dirichlet" else groups


def _split(
    data: Divisible, config: RunConfig, chosen: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
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
            demand_classes(config, data.num_classes)
            partitioner = PathologicalPartitioner(
                clients,
                "label",
                config.classes_per_client,
                class_assignment_mode="first-deterministic",
                seed=seed,
            )
        case "writer":
            columns["writer"] = writers_of(data, config)[chosen]
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
    sizes = [len(part) for part in np.array_split(order, len(clients))]
    return Divided(order, np.cumsum([0, *sizes]), clients)


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
