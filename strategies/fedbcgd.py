"""FedBCGD and FedBCGD+: clients train all parameters and upload one block of them, and the shared one.

Liu et al., FedBCGD: Communication-Efficient Accelerated Block Coordinate Gradient Descent for Federated Learning,
2024: algorithms 1 and 2 of its supplement, with the misprints of lines 13, 23 to 25 and 29 settled.

FedBCGD.  Down: x. Up: of u_i = x - y_i the client's block and the shared one. Server state: v. No client state.
FedBCGD+. Down: x and c. Up: the same parts of u_i and of c_i+ - c_i. Server state: v and c. Client state: c_i.
"""

from collections.abc import Sequence

import numpy as np

from fedapp.errors import ConfigError
from fedapp.models.layout import divide
from fedapp.problems.problem import Vector
from fedapp.randomness import generator
from fedapp.strategy import FederatedStrategy
from fedapp.wire import Arrays, Update


class FedBCGD(FederatedStrategy):
    """v_j <- lambda v_j + (a - x_j), x_j <- x_j + v_j, a the mean of the clients that uploaded block j."""

    def setup(self) -> None:
        """Divide the model, and start without momentum."""
        self.demand_no_server_lr("FedBCGD")
        self.demand_uniform_weighting("FedBCGD takes plain means over the clients of a block")
        if self.config.error_feedback:
            raise ConfigError(
                "FedBCGD's clients upload another block each time, so what compression lost has no "
                "place in the next upload: set error-feedback = false."
            )
        self.division = divide(self.layout, self.options.blocks)
        if self.layout.head == self.x.size:
            self.notes.append(
                "All of this model is the classifier, which every client uploads: blocks save nothing here."
            )
        self.v = np.zeros_like(self.x)
        self.group: dict[int, int] = {}  # client of this round -> its block

    def invite(self, clients: Sequence[int], round_: int, attempt: int) -> None:
        """Deal the round's clients into groups, one for each block; if some go without, it is chance which."""
        rng = generator(self.config.seed, "groups", round_, attempt=attempt)
        order, blocks = rng.permutation(clients), rng.permutation(len(self.division.blocks))
        self.group = {
            int(client): int(blocks[place % len(blocks)]) for place, client in enumerate(order)
        }

    def own(self, client: int) -> Arrays:
        """Tell a client its block."""
        return {"block": np.array([self.group[client]])}

    def sent_tensors(self, client: int) -> tuple[int, ...]:
        """Return the sizes of what a client uploads: its block, then the shared one."""
        parts = (self.division.blocks[self.group[client]], self.division.shared)
        return tuple(size for part in parts for size in self.layout.tensors_within(part))

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step along each block's mean with momentum; a block that nobody uploaded stays where it is."""
        total, reports = self.totals(updates, "u")
        self.v = self.options.momentum * self.v - total / np.maximum(reports, 1)
        self.x = np.where(reports > 0, self.x + self.v, self.x)

    def totals(self, updates: Sequence[Update], name: str) -> tuple[Vector, Vector]:
        """Return the sum of what was uploaded, in its place, and of how many reports each number is."""
        total, reports = np.zeros_like(self.x), np.zeros_like(self.x)
        shared = self.division.shared
        for update in updates:
            block = self.division.blocks[self.group[update.client]]
            length = block.stop - block.start
            total[block] += update[name][:length]
            total[shared] += update[name][length:]
            reports[block] += 1
            reports[shared] += 1
        return total, reports


class FedBCGDPlus(FedBCGD):
    """FedBCGD with control variates and variance reduction on the clients."""

    def setup(self) -> None:
        """Start with c = 0."""
        super().setup()
        self.warn_of_variance()
        self.c = np.zeros_like(self.x)

    def broadcast(self) -> Arrays:
        """Send x and c."""
        return {"x": self.x, "c": self.c}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Step as FedBCGD does, and renew c."""
        super().aggregate(updates)
        change = self.totals(updates, "dc")[0] / self.config.num_clients
        if self.options.control == "printed":
            change[self.division.shared] /= len(self.division.blocks)
        self.c = self.c + change
