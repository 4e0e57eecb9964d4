"""Clients that draw their samples from those of all, so that there may be far more clients than samples.

Client c draws `samples-per-client` different samples with a generator keyed by seed and client. `partition` says from which:
"iid": all; "dirichlet": its own mix of classes, Dirichlet(partition-alpha); "classes": `classes-per-client` classes of
its own; "writer": one writer of its own. A class or writer that has fewer gives all it has, and the client holds fewer.
A client's samples are drawn when they are asked for, and nothing is kept of it: a million clients take no more
memory than ten.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapp.config import RunConfig
from fedapp.data.cache import build_once, cache_dir, mapped
from fedapp.data.dividing import Divisible, Partition, demand_classes, writers_of
from fedapp.randomness import Generator, generator


@dataclass(frozen=True)
class Drawn(Partition):
    """The samples of each client, drawn from groups of samples: classes, writers, or one group of all."""

    config: RunConfig
    key: str  # names the data set
    order: NDArray[np.int64]  # the samples that take part, group by group
    starts: NDArray[np.int64]  # where each group starts in `order`, and where the last one ends

    def __len__(self) -> int:
        """Return the number of clients."""
        return self.config.num_clients

    def __getitem__(self, client: int) -> NDArray[np.int64]:
        """Return the indices of a client's samples, in their order."""
        if not 0 <= client < len(self):
            return self.order[:0]
        rng = generator(self.config.seed, "drawn samples", client=client)
        sizes = np.diff(self.starts)
        counts = np.minimum(self._counts(rng, len(sizes)), sizes)
        held = [
            self.starts[group] + rng.choice(sizes[group], size=counts[group], replace=False)
            for group in np.flatnonzero(counts)
        ]
        return np.sort(self.order[np.concatenate(held)])

    def _counts(self, rng: Generator, groups: int) -> NDArray[np.int64]:
        """Draw how many samples a client takes of each group."""
        shares = np.zeros(groups)
        match self.config.partition:
            case "dirichlet":
                shares = rng.dirichlet(np.full(groups, self.config.partition_alpha))
            case "classes":
                own = rng.choice(groups, size=self.config.classes_per_client, replace=False)
                shares[own] = 1 / len(own)
            case _:  # one writer, or all samples
                shares[rng.integers(groups)] = 1
        return np.asarray(rng.multinomial(self.config.samples_per_client, shares))

    def weights(self, samples: int) -> NDArray[np.float64]:
        """Return what each sample counts, by the config's weighting; it is computed once, and kept on disk."""
        config = self.config
        what = (
            self.key,
            config.partition,
            config.partition_alpha,
            config.classes_per_client,
            config.samples_per_client,
            config.train_samples,
            config.num_clients,
            config.seed,
            config.weighting,
            *([("valid", config.valid_share)] if config.valid_share else []),
        )
        digest = hashlib.sha256(repr(what).encode()).hexdigest()[:16]

        def build(directory: Path) -> None:
            weights = np.zeros(samples)
            for client in range(len(self)):
                held = self[client]
                weights[held] += 1 if config.weighting == "examples" else 1 / len(held)
            np.save(directory / "weights.npy", weights / weights.sum())

        directory = build_once(cache_dir() / "partitions" / f"drawn-{digest}", build)
        return np.array(mapped(directory / "weights.npy"))


def draw(data: Divisible, config: RunConfig, chosen: NDArray[np.int64]) -> Drawn:
    """Return the partition in which clients draw from the `chosen` samples."""
    match config.partition:
        case "iid":
            group_of = np.zeros(len(chosen), np.int64)
        case "writer":
            group_of = np.asarray(writers_of(data, config)[chosen])
        case _:
            group_of = data.train_labels[chosen]
    _, sizes = np.unique(group_of, return_counts=True)
    if config.partition == "classes":
        demand_classes(config, len(sizes))
    order = chosen[np.argsort(group_of, kind="stable")]
    return Drawn(config, data.key, order, np.cumsum([0, *sizes]))
