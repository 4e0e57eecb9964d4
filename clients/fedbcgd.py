"""The clients of FedBCGD and FedBCGD+; see `strategies/fedbcgd.py`."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clients.averaging import FedAvgClient
from fedapp.client import Client
from fedapp.models.layout import EVERY_BLOCK, divide

if TYPE_CHECKING:
    from strategies.fedbcgd import Options


class BlockClient(Client):
    """Uploads its block of a vector, and the shared one behind it."""

    options: "Options"

    def choose(self, block: Tensor) -> None:
        """Take on the block that the server has dealt."""
        layout = self.objective.layout
        self.places = divide(layout, self.options.blocks).parts(int(block))
        pieces = tuple(piece for part in self.places for piece in layout.pieces_within(part))
        self.uplink = self.uplink.for_pieces(pieces)

    def of(self, vector: Tensor) -> Tensor:
        """Return the client's parts of a vector."""
        return torch.cat([vector[part] for part in self.places])


class FedBCGDClient(BlockClient, FedAvgClient):
    """FedAvg's local steps on all parameters."""

    def update(self, x: Tensor, block: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        """Train, and send the client's parts of u_i."""
        self.choose(block)
        return {"u": self.of(FedAvgClient.update(self, x)["u"])}


class FedBCGDPlusClient(BlockClient):
    """Variance-reduced local steps, corrected by c - c_i."""

    sends = ("u", "dc")
    differences = ("dc",)
    clips_direction = True  # clipped one by one, its gradients would be a biased estimate

    def update(self, x: Tensor, c: Tensor, block: Tensor) -> dict[str, Tensor]:
        """Step along g(y) - g(x; same batch) + G_i(x) - c_i + c, then c_i <- G_i(x); without a block, only the latter."""
        self.choose(block)
        y, G = x.clone(), self.full_gradient(x)
        c_i = self.state.get("c_i", torch.zeros_like(x))
        shift = G - c_i + c
        for batch in self.batches() if int(block) != EVERY_BLOCK else ():
            direction = self.gradient(y, batch) + shift
            y -= self.lr * self.clipped(direction - self.gradient_aside(x, batch))
        dc = self.send("dc", self.of(G - c_i))
        if self.options.control != "consistent":
            self.state["c_i"] = G
        else:  # only what the server hears of, so that c stays the mean of all c_i
            c_i = c_i.clone()
            length = self.places[0].stop - self.places[0].start
            c_i[self.places[0]] += dc[:length]
            c_i[self.places[1]] += dc[length:]
            self.state["c_i"] = c_i
        return {"u": self.of(x - y), "dc": dc}
