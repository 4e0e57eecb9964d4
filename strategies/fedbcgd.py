"""FedBCGD and FedBCGD+: clients train all parameters and upload one block of them, and the shared one.

Liu et al., FedBCGD: Communication-Efficient Accelerated Block Coordinate Gradient Descent for Federated Learning,
2024: FedBCGD+ is algorithm 1 of its supplement, with the misprints of lines 13, 23 to 25 and 29 settled; FedBCGD, which the
supplement does not print, is the same without control variates (equations 8, 42 and 43).

FedBCGD. Down: x. Up: of u_i = x - y_i the client's block and the shared one. Server state: v. No client state.

FedBCGD+. Down: x and c. Up: the same parts of u_i and of c_i+ - c_i. Server state: v and c. Client state: c_i.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from fedapp.aggregation import Places
from fedapp.algorithm import Algorithm, Needs
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.models.layout import EVERY_BLOCK, Layout, Piece, divide
from fedapp.problems.protocols import Vector
from fedapp.randomness import generator
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Table
from fedapp.wire import Arrays, Update


class Options(Table):
    """FedBCGD and FedBCGD+."""

    blocks: int = Field(
        5,
        ge=1,
        description="blocks into which the model is divided, beside the shared one (its head)",
    )
    momentum: float = Field(0.5, ge=0, lt=1, description="lambda: momentum of the server's step")
    control: Literal["consistent", "printed", "equation-71", "scaled"] = Field(
        "consistent",
        description='fedbcgd-plus: how c is renewed, by equation 72 ("consistent"), by line 26 ("printed"), by '
        '"equation-71", or "scaled" to all clients; docs/readings.md compares them',
    )
    start: Literal["zero", "gradient"] = Field(
        "zero",
        description='fedbcgd-plus: the first c_i, "zero" or each client\'s "gradient" at x_0, for which round 1 asks all '
        "clients and trains nothing",
    )


class FedBCGD(FederatedStrategy[Options]):
    """v_j <- lambda v_j + (a - x_j), x_j <- x_j + v_j, a the mean of the clients that uploaded block j."""

    only_sums = True
    keeps: tuple[str, ...] = ("v",)

    def setup(self) -> None:
        """Divide the model, and start without momentum."""
        self.division = divide(self.layout, self.options.blocks)
        self.v = self.zeros()
        self.group: dict[int, int] = {}  # client of this round -> its block

    def on_cohort(self, clients: Sequence[int], round_: int, attempt: int) -> None:
        """Deal the round's clients into groups, one for each block; if some go without, it is chance which."""
        rng = generator(self.config.seed, "groups", round_, attempt=attempt)
        order, blocks = rng.permutation(clients), rng.permutation(len(self.division.blocks))
        self.group = {
            int(client): int(blocks[place % len(blocks)]) for place, client in enumerate(order)
        }

    def per_client(self, client: int) -> Arrays:
        """Tell a client its block."""
        return {"block": np.array([self.group[client]])}

    def places(self, client: int) -> Places:
        """Return what a client uploads: its block, then the shared one."""
        return self.division.parts(self.group[client])

    def sent_pieces(self, client: int) -> tuple[Piece, ...]:
        """Return the tensors of its block and of the shared one."""
        parts = self.places(client)
        return tuple(piece for part in parts for piece in self.layout.pieces_within(part))

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along each block's mean with momentum; a block that nobody uploaded stays where it is."""
        reports = self.reports(updates)
        self.v = self.options.momentum * self.v - self.total(updates, "u") / np.maximum(reports, 1)
        self.x = np.where(reports > 0, self.x + self.v, self.x)

    def reports(self, updates: Sequence[Update]) -> Vector:
        """Return how many clients uploaded each number."""
        reports = self.zeros()
        for update in updates:
            for place in self.places(update.client):
                reports[place] += 1
        return reports


class FedBCGDPlus(FedBCGD):
    """FedBCGD with control variates and variance reduction on the clients.

    Readings of how c is renewed: equation 72 ("consistent"), in which c stays the mean of all c_i because a client renews
    only what it uploads; line 26 ("printed"); equation 71; and c moved as far as the mean of all clients probably has
    ("scaled"). In the last three a client renews all of its c_i.
    """

    only_sums = True
    keeps = ("v", "c")

    def setup(self) -> None:
        """Start with c = 0."""
        super().setup()
        self.c = self.zeros()

    def cohort_size(self, round_: int) -> int:
        """Invite everyone to a round that asks for gradients."""
        return (
            self.config.num_clients if self.asks_gradients(round_) else super().cohort_size(round_)
        )

    def on_cohort(self, clients: Sequence[int], round_: int, attempt: int) -> None:
        """Deal the clients into groups; gradients are uploaded whole."""
        super().on_cohort(clients, round_, attempt)
        if self.asks_gradients(round_):
            self.group = dict.fromkeys(self.group, EVERY_BLOCK)

    def asks_gradients(self, round_: int) -> bool:
        """Return whether a round only asks for the first c_i."""
        return round_ == 1 and self.options.start == "gradient"

    def broadcast(self) -> Arrays:
        """Send x and c."""
        return {"x": self.x, "c": self.c}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step as FedBCGD does, and renew c."""
        super().aggregate(updates)
        self.c = self.c + self.change_of_c(updates)

    def change_of_c(self, updates: Sequence[Update]) -> Vector:
        """Return what is added to c; after a round that asked for gradients, c is their mean."""
        total, N, s = (
            self.total(updates, "dc"),
            self.config.num_clients,
            self.config.clients_per_round,
        )
        blocks, control = len(self.division.blocks), self.options.control
        if control == "consistent" or EVERY_BLOCK in self.group.values():
            return total / N
        if control == "scaled":
            return (s / N) * total / np.maximum(self.reports(updates), 1)
        change = (s / blocks if control == "equation-71" else 1) * total / N
        change[self.division.shared] /= blocks
        return change


def check_start(config: RunConfig) -> None:
    """Refuse a first round with everyone where privacy is accounted for sampled rounds."""
    if config.table(Options).start == "gradient" and config.dp.clip:
        raise ConfigError(
            'With fedbcgd.start = "gradient" every client answers in round 1, which differential privacy is not accounted '
            'for: set fedbcgd.start = "zero".'
        )


def notes(config: RunConfig, layout: Layout) -> list[str]:
    """Say so if the model has nothing but the shared block."""
    if layout.head < sum(layout.tensors):
        return []
    return [
        "All of this model is the classifier, which every client uploads: blocks save nothing here."
    ]


NO_FEEDBACK = "FedBCGD's clients upload another block each time, so what compression lost has no place in the next upload"
UNIFORM = "FedBCGD takes plain means over the clients of a block"
ALGORITHM = Algorithm(
    "fedbcgd",
    "each group uploads one block",
    FedBCGD,
    "clients.fedbcgd:FedBCGDClient",
    options=Options,
    needs=Needs(no_server_lr=True, uniform_weighting=UNIFORM, no_error_feedback=NO_FEEDBACK),
    unread=("control", "start"),
    notes=notes,
)
PLUS = Algorithm(
    "fedbcgd-plus",
    "FedBCGD with control variates and variance reduction",
    FedBCGDPlus,
    "clients.fedbcgd:FedBCGDPlusClient",
    options=Options,
    needs=Needs(
        no_server_lr=True,
        uniform_weighting=UNIFORM,
        no_error_feedback=NO_FEEDBACK,
        low_variance=True,
        plain_sgd="FedBCGD+'s corrections c - c_i cancel over the clients for plain steps only",
    ),
    stateful=True,
    table="fedbcgd",
    check=check_start,
    notes=notes,
)
