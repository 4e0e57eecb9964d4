"""GradMA, GradMA-W and GradMA-S: gradients that agree with a memory of earlier ones.

Luo et al., GradMA: A Gradient-Memory-based Accelerated Federated Learning with Alleviated Catastrophic
Forgetting, CVPR 2023: algorithms 1 to 4, and in the appendix 7 (GradMA-W) and 8 (GradMA-S).

Down: x. Up: u_i = x - y_i. Server state: m~ and the memory D of some clients' updates (GradMA, GradMA-S).
Client state: its last local model (GradMA, GradMA-W). GradMA-W's server is FedAvg's.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedapp.algorithm import Algorithm, Needs
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Arrays, Update
from strategies.averaging import FedAvg

DEFAULT_MEMORY = 100


class Options(Table):
    """GradMA, GradMA-W and GradMA-S."""

    beta1: float = Field(0.5, ge=0, lt=1, description="server momentum (gradma, gradma-s)")
    beta2: float = Field(
        0.5, ge=0, lt=1, description="how much of the memory stays each round (gradma, gradma-s)"
    )
    memory_size: int = Field(
        0,
        ge=0,
        description="clients in the server's memory, from clients-per-round to num-clients; 0: 100, but at least clients-per-round and at most num-clients",
    )
    scope: Literal["layer", "model"] = Field(
        "layer",
        description='what is projected at once: each "layer" (parameter tensor), or the whole "model"',
    )


class GradMA(FederatedStrategy[Options]):
    """x <- x - server-lr m~, m~ = P(beta1 m~ + mean(u_i), D)."""

    keeps = ("m",)
    lower: Mapping[str, str] = {"D": "gradma.memory-size"}

    @classmethod
    def server_vectors(cls, config: RunConfig) -> dict[str, int]:
        """Return m~ and the size of the memory D."""
        return super().server_vectors(config) | {"D": memory_size(config)}

    def setup(self) -> None:
        """Start without momentum, and with an empty memory."""
        from fedapp.projection import Memory  # slow to import: torch

        self.memory_size = memory_size(self.config)
        self.m = self.zeros()
        scope = self.layout.tensors if self.options.scope == "layer" else (self.x.size,)
        self.D = Memory(self.memory_size, scope, self.x.dtype)
        self.slots: dict[int, int] = {}  # client -> its slot; the oldest first
        self.counter: dict[int, int] = {}  # client with a slot -> how often it took part since

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Renew the memory, and step along the momentum as far as it agrees with it."""
        new = self.mem_red([update.client for update in updates])
        mom = self.options.beta1 * self.m + self.mean(updates)
        for client in new:
            self.D.clear(self.slots[client])
        self.D.update(self.options.beta2, {self.slots[u.client]: u["u"] for u in updates})
        self.m = self.D.project(mom.astype(self.x.dtype, copy=False))
        self.x = self.x - self.server_lr * self.m

    def mem_red(self, S: Sequence[int]) -> list[int]:
        """Give every client of the round a slot; return those whose slots are new."""
        new = []
        for i in S:
            if i in self.slots:
                self.counter[i] += 1
                continue
            slot = len(self.slots)
            if slot == self.memory_size:
                others = [client for client in self.slots if client not in S]
                evicted = min(others, key=self.counter.__getitem__)  # ties: the oldest
                slot = self.slots.pop(evicted)
                del self.counter[evicted]
            self.slots[i], self.counter[i] = slot, 1
            new.append(i)
        return new

    def memory(self) -> Arrays:
        """Return D and its slots, as arrays."""
        clients = list(self.slots)
        return {
            "rows": self.D.rows,
            "scales": self.D.scales,
            "grams": self.D.grams,
            "clients": np.array(clients, dtype=np.int64),
            "slots": np.array([self.slots[c] for c in clients], dtype=np.int64),
            "counter": np.array([self.counter[c] for c in clients], dtype=np.int64),
        }

    def restore_memory(self, memory: Arrays) -> None:
        """Restore the state returned by `memory()`."""
        self.D.restore(memory["rows"], memory["scales"], memory["grams"])
        clients = memory["clients"].tolist()
        self.slots = dict(zip(clients, memory["slots"].tolist(), strict=True))
        self.counter = dict(zip(clients, memory["counter"].tolist(), strict=True))


def memory_size(config: RunConfig) -> int:
    """Return how many clients' vectors D holds."""
    N, S = config.num_clients, config.clients_per_round
    return config.table(Options).memory_size or min(N, max(S, DEFAULT_MEMORY))


def check_memory(config: RunConfig) -> None:
    """Refuse a memory that does not hold a round's clients, or holds more than there are."""
    N, S = config.num_clients, config.clients_per_round
    size = config.table(Options).memory_size
    if size and not S <= size <= N:
        raise ConfigError(
            f"gradma.memory-size = {size} is not allowed: choose from clients-per-round = {S} to "
            f"num-clients = {N}, or 0."
        )


def demand_room(config: RunConfig, d: int) -> None:
    """Refuse m > d: that many half-spaces may have nothing in common but 0, and x would stop anywhere."""
    m, S = memory_size(config), config.clients_per_round
    if m > d:
        remedy = (
            f"set gradma.memory-size to at most {d}" if d >= S else
            f"set clients-per-round and gradma.memory-size to at most {d}"
        )  # fmt: skip
        raise ConfigError(
            f"GradMA's memory of m = {m} vectors must not have more of them than the model has parameters, d = {d}: "
            f"{remedy}."
        )


PROJECTED = Needs(
    plain_sgd="GradMA's workers step along the projected gradient itself; any other direction may leave the cone"
)
ALGORITHM = Algorithm(
    "gradma",
    "GradMA-W's workers and GradMA-S's server",
    GradMA,
    "clients.gradma:GradMAClient",
    options=Options,
    needs=PROJECTED,
    stateful=True,
    check=check_memory,
    fits=demand_room,
)
WORKER = Algorithm(
    "gradma-w",
    "local steps that agree with earlier ones",
    FedAvg,
    "clients.gradma:GradMAClient",
    options=Options,
    needs=PROJECTED,
    stateful=True,
    table="gradma",
    unread=("beta1", "beta2", "memory-size"),
)
SERVER = Algorithm(
    "gradma-s",
    "a server step that agrees with a memory",
    GradMA,
    "clients.averaging:FedAvgClient",
    options=Options,
    table="gradma",
    check=check_memory,
    fits=demand_room,
)
