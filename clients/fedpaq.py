"""FedPAQ's client: FedAvg's local steps; see `strategies/fedpaq.py`."""

from torch import Tensor

from clients.averaging import FedAvgClient


class FedPAQClient(FedAvgClient):
    """Sends how its model differs from x; compression is on the way."""

    sends = ("p",)

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Send y_i - x."""
        return {"p": -super().update(x)["u"]}
