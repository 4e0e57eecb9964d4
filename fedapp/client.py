"""What every algorithm's client shares: mini-batches, gradients, state, and the way to the server."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from flwr.client import NumPyClient
from numpy.typing import NDArray
from torch import Tensor

from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.errors import ClientError, ConfigError
from fedapp.feedback import EF21
from fedapp.optimizers import clip_, make_optimizer
from fedapp.privacy import node_privacy
from fedapp.problems.problem import Loss
from fedapp.problems.protocols import NetworkObjective, Objective
from fedapp.randomness import generator
from fedapp.tables import Table
from fedapp.uplink import Uplink
from fedapp.wire import Arrays, Update

State = dict[str, Tensor]


class Client(NumPyClient):
    """One logical client in one round.

    An algorithm names what it sends, and implements `update`. Every vector has the model's size;
    what is sent is compressed on its way. The model's buffers travel beside the vectors.
    """

    sends: ClassVar[tuple[str, ...]] = ("u",)
    # Those of `sends` that are differences to what the server has: error feedback leaves them alone.
    differences: ClassVar[tuple[str, ...]] = ()
    # Whether `update` clips the direction of a step, by `clipped`, instead of every gradient.
    clips_direction: ClassVar[bool] = False
    options: Table  # an algorithm with its own keys gives the type
    places: tuple[slice, ...] = ()  # where the vectors lie in the model; empty: they are all of it

    def __init__(
        self,
        objective: Objective,
        config: RunConfig,
        client: int,
        state: State,
        compressor: Compressor | None = None,
        round_: int = 1,
        options: Table | None = None,
    ) -> None:
        self.objective = objective
        self.config = config
        self.options = options or _options_of(config)
        self.client = client
        self.state = state  # what `update` leaves here is there in the client's next round
        self.privacy = node_privacy(config)
        self._start(round_, compressor)

    def _start(self, round_: int, compressor: Compressor | None) -> None:
        """Start a round, of which nothing is done yet."""
        self.round, self.lr = round_, self.config.lr_at(round_)
        self.steps = 0  # tau, as it turned out
        self.losses: list[Tensor] = []
        self.optimizer = make_optimizer(self.config, self.state)
        self.uplink = Uplink(self.config, round_, self.client, self.state, compressor, self.privacy)

    @property
    def compressor(self) -> Compressor | None:
        """What compresses the vectors that are sent; None: they are sent as they are."""
        return self.uplink.compressor

    @abstractmethod
    def update(self, *args: Any, **received: Any) -> dict[str, Tensor]:
        """Train from the vectors that the server sent, by their names; return those of `sends`."""

    def batches(self, steps: int = 0) -> Iterator[Any]:
        """Yield this round's mini-batches: one for each of the tau local steps, or of `steps`."""
        rng = generator(self.config.seed, "batches", self.round, self.client)
        work = self.config.local_work
        work = replace(work, steps=steps, epochs=0) if steps else work
        for batch in self.objective.batches(work, rng):
            self.steps += 1
            yield batch

    def remembered(self, *names: str) -> list[Tensor]:
        """Return vectors of the client's state, without which it cannot train."""
        if missing := [name for name in names if name not in self.state]:
            raise ClientError(f"the client's state is lost ({', '.join(missing)})")
        return [self.state[name] for name in names]

    def gradient(self, y: Tensor, batch: Any) -> Tensor:
        """Return g(y), clipped, weight decay included; the next call overwrites it."""
        loss, g = self.objective.loss_gradient(y, batch)
        self.losses.append(loss)
        return self._bounded(g, y)

    def gradient_aside(self, y: Tensor, batch: Any) -> Tensor:
        """Return g(y) at a point that is not trained: neither its loss nor its statistics count."""
        statistics = self.objective.buffers.clone()
        g = self._bounded(self.objective.loss_gradient(y, batch)[1], y)
        self.objective.buffers.copy_(statistics)
        return g

    def full_gradient(self, y: Tensor) -> Tensor:
        """Return G_i(y), weight decay included; it is never clipped."""
        return self._decayed(self.objective.full_gradient(y), y)

    def direction(self, g: Tensor) -> Tensor:
        """Return where to step from a gradient g: g itself with SGD, what the optimizer makes of it otherwise."""
        return self.optimizer.direction(g)

    def clipped(self, g: Tensor) -> Tensor:
        """Shorten g to `clip-gradient` if it is longer, in place."""
        return clip_(g, self.config.clip_gradient)

    def _bounded(self, g: Tensor, y: Tensor) -> Tensor:
        return self._decayed(g if self.clips_direction else self.clipped(g), y)

    def _decayed(self, g: Tensor, y: Tensor) -> Tensor:
        return g.add_(y, alpha=self.config.weight_decay) if self.config.weight_decay else g

    def send(self, name: str, vector: Tensor, feedback: bool = True) -> Tensor:
        """Send a vector as `name`; return it as the server will see it: Q(vector). See `Uplink.send`."""
        feedback = feedback and name not in self.differences
        if not feedback and name not in self.differences and self.config.error_feedback == EF21:
            raise ConfigError(
                f"EF21's server must know that '{name}' is sent without feedback: add differences = ({name!r},) to "
                f"{type(self).__name__}."
            )
        return self.uplink.send(name, vector, feedback)

    def train(self, received: Arrays, buffers: NDArray[Any]) -> Update:
        """Run one round: `update` from the arrays that the server sent, by their names."""
        self._start(self.round, self.compressor)
        device = self.objective.buffers.device
        self.objective.buffers.copy_(torch.tensor(buffers, device=device))
        result = self.update(**{n: torch.tensor(a, device=device) for n, a in received.items()})
        self._demand_optimizer()
        for name in self.sends:
            if name not in self.uplink.arrays:
                self.send(name, result[name])
        arrays = {name: self.uplink.arrays[name] for name in self.sends}
        # The buffers are the model's own, which the next client overwrites.
        arrays["buffers"] = self.objective.buffers.clone().cpu().numpy()
        loss = float(torch.stack(self.losses).mean()) if self.losses else 0.0
        examples, nmse = self.objective.num_examples, self.uplink.nmse
        return Update(
            self.client,
            arrays,
            examples,
            self.steps,
            loss,
            uplink_nmse=nmse,
            decoded=self.uplink.decoded,
            places=self.places,
        )

    def _demand_optimizer(self) -> None:
        """Raise ConfigError if `update` took steps that are not those of the config's optimizer."""
        if self.config.client_optimizer != "sgd" and self.steps and not self.optimizer.used:
            raise ConfigError(
                f"{self.config.algorithm}'s clients take plain steps only (they do not call self.direction): set "
                'client-optimizer = "sgd".'
            )

    def fit(
        self, parameters: Sequence[NDArray[Any]], config: dict[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Adapt `train` to Flower's NumPyClient.

        Arrays come in the order of config["names"], and go in that of `sends`; the buffers are the last both ways.
        """
        self.round = int(config["round"])
        *received, buffers = parameters
        trained = self.train(dict(zip(config["names"].split(), received, strict=True)), buffers)
        update = self.privacy.shown(trained)
        metrics = {"steps": update.steps, "train-loss": update.train_loss}
        return [update[n] for n in (*self.sends, "buffers")], update.num_examples, metrics


def _options_of(config: RunConfig) -> Table:
    """Return the options of the config's algorithm."""
    from fedapp.registry import find_algorithm  # which imports the clients

    return config.table(find_algorithm(config.algorithm).options)


class NetworkClient(Client):
    """A client whose loss looks into the network."""

    objective: NetworkObjective

    def gradient(self, y: Tensor, batch: Any, loss: Loss | None = None) -> Tensor:
        """Return the gradient of `loss`; without one, of the cross-entropy."""
        value, g = self.objective.loss_gradient(y, batch, loss)
        self.losses.append(value)
        return self._bounded(g, y)
