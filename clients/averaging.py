"""The averaging family's local steps; see `strategies/averaging.py`."""

from typing import TYPE_CHECKING

from torch import Tensor

from fedapp.client import Client

if TYPE_CHECKING:
    from strategies.averaging import FedProxOptions


class FedAvgClient(Client):
    """tau local steps."""

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Descend on f_i from x."""
        y = x.clone()
        for batch in self.batches():
            y.sub_(self.direction(self.gradient(y, batch)), alpha=self.lr)
        return {"u": x - y}


class FedProxClient(Client):
    """tau local steps, held back towards x."""

    options: "FedProxOptions"

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Descend on f_i(y) + mu/2 |y - x|^2 from x."""
        y, mu = x.clone(), self.options.mu
        for batch in self.batches():
            y -= self.lr * self.direction(self.gradient(y, batch) + mu * (y - x))
        return {"u": x - y}
