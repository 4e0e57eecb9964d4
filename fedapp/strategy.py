"""What every algorithm's server side shares: cohorts, messages, replies, means.

An algorithm implements `aggregate`, and where it needs to `setup`, `broadcast` and `own`.
"""

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapp import costs, wire
from fedapp.client import Client
from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DivergedError
from fedapp.hosting import Hosting
from fedapp.models.layout import Layout
from fedapp.models.problem import Vector
from fedapp.privacy import Privacy
from fedapp.randomness import sample_cohort
from fedapp.wire import Arrays, Invitation, Update

log = logging.getLogger("flwr")


class FederatedStrategy(Strategy):
    """A Flower strategy over logical clients, whose model is one vector x."""

    default_server_lr = 1.0
    delivers = 0  # vectors that a client receives of its last round
    rule_is_a_mean = False  # so that another location of the updates can stand in for it

    def __init__(
        self,
        config: RunConfig,
        client_type: type[Client],
        x: Vector,
        buffers: Vector,
        compressor: Compressor | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.config = config
        self.options = config.options
        self.server_lr = config.server_lr or self.default_server_lr
        self.x = x
        self.buffers = buffers
        self.layout = layout or Layout((x.size,), (x.size,))
        self.hosting = Hosting(config.num_clients)
        self.state_dir = config.state_dir
        self.compressor = compressor  # of what clients send
        self.lr = config.lr  # of the clients, in the round under way
        self.min_clients = config.min_clients  # a round with fewer updates is repeated
        self.notes: list[str] = []  # what `setup` has to tell the user
        self._sends = client_type.sends
        self._specs: dict[tuple[int, ...], wire.Spec] = {}  # of what clients send, by its tensors
        self._tag = 0  # of the attempt under way
        self._sent: list[tuple[Metadata, list[int]]] = []  # this attempt's messages, and for whom
        self._accepted: dict[int, int] = {}  # client -> tag of its last update that was used
        self._undelivered: dict[int, Arrays] = {}  # tag -> what its clients still have to receive
        self._checkpoints: list[dict[int, int]] = []  # _accepted at those that are kept
        self._downlink_bytes = 0
        self._said: set[str] = set()
        self._demand_what_can_be_robust()
        self.privacy = Privacy(config) if config.dp.clip else None
        if self.privacy:
            self.privacy.demand(self.rule_is_a_mean, buffers.size)
        self.setup()

    # The algorithm's part.

    def setup(self) -> None:
        """Create the server's own state."""

    def broadcast(self) -> Arrays:
        """Return what every sampled client receives."""
        return {"x": self.x}

    def own(self, client: int) -> Arrays:
        """Return what one sampled client alone receives: what was left for it to `deliver`."""
        return self._undelivered.get(self._accepted.get(client, 0), {})

    def invite(self, clients: Sequence[int], round_: int, attempt: int) -> None:
        """Hear which clients are about to be invited."""

    def sent_tensors(self, client: int) -> tuple[int, ...]:
        """Return the sizes of the tensors of each vector that a client sends: the whole model's."""
        return self.layout.tensors

    @abstractmethod
    def aggregate(self, updates: Sequence[Update]) -> None:
        """Apply a round's updates, which come in the order of client ids, to x and the state."""

    def memory(self) -> Arrays:
        """Return what the server remembers beside the vectors among its attributes, as arrays."""
        return {}

    def remember(self, memory: Arrays) -> None:
        """Go on from what `memory` returned."""

    def thin_round(self, round_: int, failures: Mapping[int, str]) -> None:
        """Hear of a round with fewer than `min_clients` updates; it is repeated, unless this raises."""

    # What the algorithms are written with.

    def mean(self, updates: Sequence[Update], name: str = "u") -> NDArray[Any]:
        """Return the mean over the cohort; with `weighting = "examples"`, weighted by data.

        With another `aggregation`, the median of each number, or the mean without the extremes. With
        central differential privacy, that of the clipped vectors, with noise.
        """
        if self.privacy and self.config.dp.central:
            vectors = [update[name] for update in updates]
            return self.privacy.mean(vectors, self._tag).astype(self.x.dtype)
        if self.config.aggregation != "mean":
            return self._robust_mean(np.stack([update[name] for update in updates]))
        if self.config.weighting == "uniform":
            return self.sum(updates, name) / len(updates)
        total = np.zeros_like(updates[0][name])
        for update in updates:
            total += np.float32(update.num_examples) * update[name]
        return total / sum(update.num_examples for update in updates)

    def _robust_mean(self, vectors: NDArray[Any]) -> NDArray[Any]:
        if self.config.aggregation == "median":
            return np.asarray(np.median(vectors, axis=0), vectors.dtype)
        count = len(vectors)
        cut = min(math.ceil(self.config.trim * count), (count - 1) // 2)
        ordered = np.sort(vectors, axis=0)[cut : count - cut]
        return np.asarray(ordered.mean(axis=0), vectors.dtype)

    @staticmethod
    def sum(updates: Sequence[Update], name: str) -> NDArray[Any]:
        """Return the sum, added up in the order of the updates."""
        total = updates[0][name].copy()
        for update in updates[1:]:
            total += update[name]
        return total

    def deliver(self, **vectors: NDArray[Any]) -> None:
        """Send vectors to this round's clients, each with its next invitation."""
        self._undelivered[self._tag] = vectors
        awaited = set(self._accepted.values())
        self._undelivered = {t: v for t, v in self._undelivered.items() if t in awaited}

    def demand_uniform_weighting(self, why: str) -> None:
        """Refuse weights where every client counts the same."""
        if self.config.weighting != "uniform":
            raise ConfigError(f'{why}: set weighting = "uniform".')

    def demand_one_step(self, who: str) -> None:
        """Refuse more than one local step."""
        if self.config.local_steps != 1 or self.config.local_epochs:
            raise ConfigError(f"{who} takes one local step: set local-steps = 1, local-epochs = 0.")

    def demand_all_clients(self, who: str) -> None:
        """Refuse partial participation."""
        if self.config.clients_per_round != (count := self.config.num_clients):
            raise ConfigError(
                f"{who} needs all clients in every round: set clients-per-round = {count}."
            )

    def demand_no_server_lr(self, who: str) -> None:
        """Refuse a server step size where the rule has none."""
        if self.config.server_lr not in (0.0, 1.0):
            raise ConfigError(f"{who} has no server step size: leave server-lr = 0.")

    def _demand_what_can_be_robust(self) -> None:
        """Refuse a robust aggregate, or clipping, where the rule does not survive it."""
        config = self.config
        if config.aggregation != "mean":
            if not self.rule_is_a_mean:
                raise ConfigError(
                    f"{config.algorithm} relies on sums over its clients, which aggregation = "
                    f'"{config.aggregation}" is not: set aggregation = "mean".'
                )
            self.demand_uniform_weighting(f"The {config.aggregation} has no weights")
        if config.max_update_norm and config.too_long == "clip" and not self.rule_is_a_mean:
            raise ConfigError(
                f"{config.algorithm}'s clients go by what they sent, and would not know that it was "
                'clipped: set too-long = "reject".'
            )

    def warn_of_variance(self) -> None:
        """Tell if the compressor is too coarse for a method that feeds its error back."""
        q = self.compressor.typical_variance(self.x.size) if self.compressor else 0.0
        if q > 1:
            log.warning(
                "The relative variance q of compressor = %s is %.3g for %d parameters, and %s is "
                "stable only while it is about 1 or less: choose uniform with 8 bits, or qsgd with "
                "more levels or with buckets (q = sqrt(bucket)/levels)",
                type(self.compressor).__name__.lower(),
                q,
                self.x.size,
                self.config.algorithm,
            )

    def warn_of_feedback(self, feedback: bool) -> None:
        """Tell that tracking what was sent makes up for a biased compressor already."""
        if feedback and self.compressor and not self.compressor.unbiased:
            log.warning(
                "%s tracks what was sent and so makes up for what %s leaves out; with a memory of it "
                "as well, that counts twice and may diverge if little is sent",
                self.config.algorithm,
                type(self.compressor).__name__.lower(),
            )

    # Flower's part.

    def arrays(self) -> ArrayRecord:
        """Return the record that goes to every sampled client."""
        return wire.record_of(self.broadcast() | {"buffers": self.buffers})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample a cohort and write one message to each node that hosts some of it."""
        run, seed, size = self.config, self.config.seed, self.config.clients_per_round
        attempt = int(config["attempt"])  # type: ignore[arg-type]
        self._tag = server_round * (run.round_retries + 1) + attempt
        self.hosting.update(grid)
        hosts: dict[int, list[int]] = {}
        clients = self.hosting.clients
        if self.privacy:
            clients, seed = self.privacy.pool(clients)
        cohort = sample_cohort(clients, size, seed, server_round, attempt)
        cohort = [client for client in cohort if client in self.hosting.node_of]
        if self.privacy:
            self.privacy.invited(cohort)
        self.invite(cohort, server_round, attempt)
        for client in cohort:
            hosts.setdefault(self.hosting.node_of[client], []).append(client)
        self._downlink_bytes, self._sent = 0, []
        messages = []
        for node, clients in hosts.items():
            invitation = Invitation(
                round=server_round,
                tag=self._tag,
                run=str(config["run"]),
                state_dir=self.state_dir,
                accepted={client: self._accepted.get(client, 0) for client in clients},
                kept={
                    client: sorted({accepted.get(client, 0) for accepted in self._checkpoints})
                    for client in clients
                },
                shared={},
                own={client: own for client in clients if (own := self.own(client))},
            )
            content = wire.pack_invitation(invitation, arrays)
            alone = wire.own_nbytes(content)
            self._downlink_bytes += len(clients) * wire.nbytes(arrays) + alone
            ttl = run.round_timeout or None
            message = Message(content, node, "train", group_id=str(server_round), ttl=ttl)
            messages.append(message)
            self._sent.append((message.metadata, clients))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """Check the replies and apply the updates, if there are at least `min-clients`."""
        answers = {message.metadata.reply_to_message_id: message for message in replies}
        updates: list[Update] = []
        failures: dict[int, str] = {}
        uplink_bytes = 0
        for sent, clients in self._sent:
            if (message := answers.get(sent.message_id)) is None:
                failures |= dict.fromkeys(clients, "no answer in time")
                continue
            reply = wire.unpack_reply(message, {c: self._spec_of(c) for c in clients})
            updates += reply.updates
            failures |= reply.failures
            uplink_bytes += reply.uplink_bytes
        bounded = (self._bounded(update, failures) for update in updates)
        updates = sorted((u for u in bounded if u), key=lambda update: update.client)
        for client, reason in sorted(failures.items()):
            self._say_once(f"Client {client} failed: {reason}", kind=reason)
        metrics = MetricRecord(
            {
                "clients": len(updates),
                "failures": len(failures),
                "uplink_bytes": uplink_bytes,
                "downlink_bytes": self._downlink_bytes,
                **self._costs(server_round, updates, uplink_bytes),
            }
        )
        if len(updates) < self.min_clients:
            absent = set(range(self.config.num_clients)) - set(self.hosting.clients)
            away = dict.fromkeys(sorted(absent), "no node hosts it")
            if failures and not updates and all("not finite" in r for r in failures.values()):
                raise DivergedError(
                    f"No client's update is finite any more in round {server_round}: lower lr."
                )
            self.thin_round(server_round, dict(sorted(failures.items())) | away)
            return None, metrics
        for update in updates:
            self._accepted[update.client] = self._tag
            if update.state_lost:
                self._say_once(
                    f"CLIENT STATE IS LOST: client {update.client} (and maybe others) no longer has "
                    "what it remembered and starts afresh, so drift correction is no longer exact; set "
                    "state-dir to keep it across restarts",
                    kind="state lost",
                )
        if self.buffers.size:
            self.buffers = self.sum(updates, "buffers") / len(updates)
        if self.privacy:
            self.privacy.aggregated()
        before, self.lr = self.x, self.config.lr_at(server_round)
        self.aggregate(updates)
        if not wire.is_finite(self.x):
            self.x = before
            raise DivergedError(
                f"The model is no longer finite after round {server_round}: lower lr or server-lr."
            )
        if self.privacy:
            metrics["epsilon"] = self.privacy.spent()
        else:  # the loss has no noise
            metrics["train_loss"] = sum(u.train_loss for u in updates) / len(updates)
        return self.arrays(), metrics

    # Checkpoints.

    def saved(self) -> Arrays:
        """Return all that changes from round to round: the vectors, `memory`, and what clients still wait for."""
        arrays = {f"vector.{name}": value for name, value in self._vectors().items()}
        arrays |= {f"memory.{name}": value for name, value in self.memory().items()}
        for tag, vectors in self._undelivered.items():
            arrays |= {f"undelivered.{tag}.{name}": value for name, value in vectors.items()}
        accepted = np.array(sorted(self._accepted.items()), np.int64).reshape(-1, 2)
        return arrays | {"accepted": accepted}

    def restore(self, saved: Arrays) -> None:
        """Go on from what `saved` returned; raise ValueError if it is of another run."""
        parts: dict[str, Arrays] = {"vector": {}, "memory": {}, "undelivered": {}}
        for key, value in saved.items():
            kind, _, name = key.partition(".")
            if kind in parts:
                parts[kind][name] = value.copy()
        mine = {name: value.shape for name, value in self._vectors().items()}
        theirs = {name: value.shape for name, value in parts["vector"].items()}
        if mine != theirs:
            raise ValueError(f"it holds {theirs}, and this run has {mine}")
        undelivered: dict[int, Arrays] = {}
        for key, value in parts["undelivered"].items():
            tag, _, name = key.partition(".")
            undelivered.setdefault(int(tag), {})[name] = value
        accepted = _pairs(saved["accepted"])
        self.remember(parts["memory"])
        self._undelivered, self._accepted = undelivered, accepted
        vars(self).update(parts["vector"])

    def checkpointed(self, accepted: NDArray[Any]) -> None:
        """Hear that what `saved` returned is on disk; clients keep the states that it would ask for."""
        self._checkpoints = [*self._checkpoints[-1:], _pairs(accepted)]

    def _vectors(self) -> Arrays:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def _bounded(self, update: Update, failures: dict[int, str]) -> Update | None:
        """Return an update whose vectors are no longer than `max-update-norm`; None if it is refused."""
        if not (limit := self.config.max_update_norm):
            return update
        arrays = dict(update.arrays)
        for name in self._sends:
            length = float(np.linalg.norm(arrays[name].astype(np.float64)))
            if length <= limit:
                continue
            if self.config.too_long == "reject":
                failures[update.client] = f"'{name}' is longer than max-update-norm = {limit:g}"
                return None
            arrays[name] = (arrays[name] * (limit / length)).astype(arrays[name].dtype)
        return replace(update, arrays=arrays)

    def _costs(
        self, round_: int, updates: Sequence[Update], uplink_bytes: int
    ) -> dict[str, int | float]:
        size, work = self.x.size, self.config.local_work
        nominal = sum(self._nominal_bits(update.client) for update in updates)
        trained = {u.client: work.samples(u.num_examples) for u in updates}
        training = costs.training_seconds(self.config, round_, trained)

        def seconds(bits: float) -> float:
            return training + costs.sending_seconds(self.config, bits, size)

        return {
            "uplink_bits_nominal": nominal,
            "simulated_seconds": seconds(8 * uplink_bytes),
            "simulated_seconds_nominal": seconds(nominal),
        }

    def expected_bytes(self) -> tuple[float, float]:
        """Return about what a round's clients send and receive; for what is compressed, its nominal bits."""
        clients = range(self.config.clients_per_round)
        self.invite(clients, 1, 0)
        up = sum(self._nominal_bits(client) / 8 for client in clients)
        down = sum(v.nbytes for v in self.broadcast().values()) + self.delivers * self.x.nbytes
        buffers = len(clients) * self.buffers.nbytes
        return up + buffers, len(clients) * down + buffers

    def _codec_of(self, client: int) -> Compressor | None:
        return self.compressor.for_tensors(self.sent_tensors(client)) if self.compressor else None

    def _spec_of(self, client: int) -> wire.Spec:
        sizes = self.sent_tensors(client)
        if sizes not in self._specs:
            count, dtype, codec = sum(sizes), self.x.dtype, self._codec_of(client)
            sent = wire.Compressed(codec, count, dtype) if codec else (dtype, (count,))
            buffers = (self.buffers.dtype, self.buffers.shape)
            self._specs[sizes] = {**dict.fromkeys(self._sends, sent), "buffers": buffers}
        return self._specs[sizes]

    def _nominal_bits(self, client: int) -> int:
        count, codec = sum(self.sent_tensors(client)), self._codec_of(client)
        vector = codec.nominal_bits(count) if codec else 8 * self.x.itemsize * count
        return len(self._sends) * int(vector)

    def _say_once(self, text: str, kind: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.warning(text)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask no client: the server evaluates on the test set."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Have nothing to aggregate."""
        return None

    def summary(self) -> None:
        """Log what this is."""
        log.info("%s, server step size %g", type(self).__name__, self.server_lr)


def _pairs(rows: NDArray[Any]) -> dict[int, int]:
    return {int(key): int(value) for key, value in rows}
