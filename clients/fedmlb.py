"""FedMLB's and FedMLBM's client; see `strategies/fedmlb.py`."""

from typing import TYPE_CHECKING, cast

from torch import Tensor
from torch.nn import functional as F

from fedapp.client import NetworkClient
from fedapp.models.flat import at_least_float32
from fedapp.models.networks import Network
from fedapp.problems.problem import Batch

if TYPE_CHECKING:
    from strategies.fedmlb import Options


class FedMLBClient(NetworkClient):
    """Local steps on the local network's loss and on those of paths that end in the received network's blocks."""

    options: "Options"

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Descend on CE(main) + lambda1 mean CE(path_l) + lambda2 mean KL(path_l || main)."""
        y, received = x.clone(), cast(Network, self.objective.frozen(x)).levels
        lambda1, lambda2 = self.options.lambda1, self.options.lambda2

        def loss(network: Network, samples: Batch) -> Tensor:
            paths, (outputs, _) = [], samples
            for level, block in enumerate(network.levels, 1):
                path = outputs = block(outputs)
                for frozen in received[level:]:  # path_l: own blocks 1..l, then the received l+1..L
                    path = frozen(path)
                paths.append(path)
            *paths, main = paths
            total = self.objective.criterion(main, samples)
            for path in paths:
                total = total + lambda1 / len(paths) * self.objective.criterion(path, samples)
                total = total + lambda2 / len(paths) * self._divergence(path, main)
            return total

        for batch in self.batches():
            y.sub_(self.direction(self.gradient(y, batch, loss)), alpha=self.lr)
        return {"u": x - y}

    def _divergence(self, path: Tensor, main: Tensor) -> Tensor:
        """Return KL(softmax(path/T) || softmax(main/T))."""
        T = self.options.temperature
        logits = (at_least_float32(z).flatten(0, -2) for z in (path, main))
        p, q = (F.log_softmax(z / T, dim=1) for z in logits)
        return F.kl_div(q, p, reduction="batchmean", log_target=True)
