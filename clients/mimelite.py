"""MimeLite's client; see `strategies/mimelite.py`."""

from typing import TYPE_CHECKING

from torch import Tensor

from fedapp.client import Client

if TYPE_CHECKING:
    from strategies.mimelite import Options


class MimeLiteClient(Client):
    """SGD with the server's momentum, which does not change during the round."""

    options: "Options"
    sends = ("u", "G")

    def update(self, x: Tensor, m: Tensor) -> dict[str, Tensor]:
        """Descend along (1 - beta) g(y) + beta m from x; send also the full gradient at x."""
        y, beta = x.clone(), self.options.beta
        G = self.full_gradient(x)
        for batch in self.batches():
            y -= self.lr * ((1 - beta) * self.gradient(y, batch) + beta * m)
        return {"u": x - y, "G": G}
