"""The client's side."""

from torch import Tensor

from clients.averaging import FedAvgClient


class SignClient(FedAvgClient):
    """FedAvg's local steps; sends the signs of its update."""

    sends = ("sign",)

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Send sign(u_i), and count how often it took part."""
        self.state["rounds"] = self.state.get("rounds", x.new_zeros(1)) + 1
        return {"sign": super().update(x)["u"].sign()}
