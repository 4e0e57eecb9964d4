"""What every algorithm's server side shares: cohorts, messages, replies, means.

An algorithm implements `aggregate`, and where it needs to `setup`, `broadcast` and `own`.
"""

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fedapp import costs, wire
from fedapp.admission import Admission
from fedapp.aggregation import (
    advice,
    buffer_rule_of,
    least_updates,
    rule_of,
    weighted_mean,
)
from fedapp.attendance import Attendance
from fedapp.client import Client
from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.data import ImageFacts
from fedapp.deliveries import Deliveries, files_of
from fedapp.errors import ConfigError, DivergedError, RunError
from fedapp.hosting import Hosting
from fedapp.models.layout import Layout
from fedapp.privacy import ServerNoise, node_privacy, server_privacy
from fedapp.problems.problem import Vector
from fedapp.randomness import sample_cohort
from fedapp.state import OLD
from fedapp.waiting import wait_for_clients
from fedapp.wire import Arrays, Invitation, Update

log = logging.getLogger("flwr")
MOST_TOLD = 3  # different reasons of one client's failures that are logged
MOST_TOLD_OF_NODE = 20  # of all the clients of one node
MOST_LOSSES = 3  # of one client's state for which all others start afresh, too


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
        self.hosting = Hosting(config.num_clients, config.partition_of)
        self.state_dir = config.state_dir
        self.facts: ImageFacts | None = None  # of the images, for nodes with data of their own
        self.compressor = compressor  # of what clients send
        self.lr = config.lr  # of the clients, in the round under way
        self.keeps_state = False  # whether clients remember something
        self.min_clients = config.min_clients  # a round with fewer updates is repeated
        self.notes: list[str] = []  # what `setup` has to tell the user
        self._sends = client_type.sends
        self._specs: dict[tuple[int, ...], wire.Spec] = {}  # of what clients send, by its tensors
        self._tag = 0  # of the attempt under way
        self._sent: list[tuple[Metadata, list[int]]] = []  # this attempt's messages, and for whom
        self._accepted: dict[int, int] = {}  # client -> tag of its last update that was used
        self._digests: dict[int, int] = {}  # client -> digest of the state which that update left
        self.deliveries = Deliveries()
        self.durable_states = False  # clients must sync their states, because the server cannot
        self._checkpoints: list[dict[int, int]] = []  # _accepted at those that are kept
        self._downlink_bytes = 0
        self._said: set[str] = set()  # reasons of failures that were logged
        self._told = Counter[int]()  # client -> how many of them
        self._told_of = Counter[int]()  # node -> how many of its clients'
        self._losses = Counter[int]()  # client -> how often all states were reset on its word
        self._warned: set[str] = set()  # kinds of warnings that were logged
        self.privacy = server_privacy(config)
        secret = self.privacy.hides_participants
        self.admission = None if secret else Admission(self._sends, config.max_update_ratio)
        self.attendance = None if secret else Attendance(config.num_clients)
        self._all_too_long = False  # each update of every attempt at this round
        self._demand_what_can_be_robust()
        self._rule, self._buffer_rule = rule_of(config), buffer_rule_of(config)
        for text in advice(config):
            self._warn_once(text, text)
        self.centre: Vector | None = None  # the last mean, for a rule that recalls it
        self._forget_centre()
        self.privacy.demand(self.rule_is_a_mean, buffers.size)
        self.min_clients = self.privacy.min_clients(self.min_clients)
        self.setup()

    # The algorithm's part.

    def setup(self) -> None:
        """Create the server's own state."""

    def broadcast(self) -> Arrays:
        """Return what every sampled client receives."""
        return {"x": self.x}

    def own(self, client: int) -> Arrays:
        """Return what one sampled client alone receives: what was left for it to `deliver`."""
        return self.deliveries.get(self._accepted.get(client, 0))

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

        With another `aggregation` or `mixing`, what that rule makes of the updates. With central differential
        privacy, the mean of the clipped vectors, with noise.
        """
        if isinstance(self.privacy, ServerNoise):
            vectors = [update[name] for update in updates] or [np.zeros_like(self.x)]
            return self.privacy.mean(vectors, self._tag).astype(self.x.dtype)
        vectors = [update[name] for update in updates]
        if self.config.weighting == "examples":
            return weighted_mean(vectors, [update.num_examples for update in updates])
        mean = self._rule(vectors, self.centre)
        if self._rule.recalls:
            self.centre = mean
        return mean

    @staticmethod
    def sum(updates: Sequence[Update], name: str) -> NDArray[Any]:
        """Return the sum, added up in the order of the updates."""
        total = updates[0][name].copy()
        for update in updates[1:]:
            total += update[name]
        return total

    def deliver(self, **vectors: NDArray[Any]) -> None:
        """Send vectors to this round's clients, each with its next invitation."""
        self.deliveries.put(self._tag, vectors, awaited=set(self._accepted.values()))

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
        keys = {"aggregation": (config.aggregation, "mean"), "mixing": (config.mixing, "none")}
        for key, (rule, default) in keys.items():
            if rule == default:
                continue
            if not self.rule_is_a_mean:
                raise ConfigError(
                    f"{config.algorithm} relies on sums over its clients, which {key} = "
                    f'"{rule}" is not: set {key} = "{default}".'
                )
            self.demand_uniform_weighting(f"The {rule} has no weights")
            if config.dp.clip:
                raise ConfigError(
                    f"The noise is made for a mean, and a {rule} can move further: set "
                    f'{key} = "{default}", or dp.clip = 0.'
                )
        self.min_clients = max(self.min_clients, least_updates(config))
        if config.max_update_norm and config.too_long == "clip" and not self.rule_is_a_mean:
            raise ConfigError(
                f"{config.algorithm}'s clients go by what they sent, and would not know that it was "
                'clipped: set too-long = "reject".'
            )

    def _forget_centre(self) -> None:
        """Start at 0 where the rule recalls its last result; only then is there something to save."""
        if self._rule.recalls:
            self.centre = np.zeros_like(self.x)

    def warn_of_variance(self) -> None:
        """Tell if the compressor is too coarse for a method that feeds its error back."""
        q = self.compressor.typical_variance(self.x.size) if self.compressor else 0.0
        if q > 1:
            self._warn_once(
                "variance",
                f"The relative variance q of compressor = {type(self.compressor).__name__.lower()} is {q:.3g} for "
                f"{self.x.size} parameters, and {self.config.algorithm} is stable only while it is about 1 or less: "
                "choose uniform with 8 bits, or qsgd with more levels or with buckets (q = sqrt(bucket)/levels)",
            )

    def warn_of_feedback(self, feedback: bool) -> None:
        """Tell that tracking what was sent makes up for a biased compressor already."""
        if feedback and self.compressor and not self.compressor.unbiased:
            self._warn_once(
                "feedback",
                f"{self.config.algorithm} tracks what was sent and so makes up for what "
                f"{type(self.compressor).__name__.lower()} leaves out; with a memory of it as well, that counts twice "
                "and may diverge if little is sent",
            )

    # Flower's part.

    def arrays(self) -> ArrayRecord:
        """Return the record that goes to every sampled client."""
        return wire.record_of(self.broadcast() | {"buffers": self.buffers})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample a cohort and write one message to each node that hosts some of it."""
        run, size = self.config, self.config.clients_per_round
        attempt = int(config["attempt"])  # type: ignore[arg-type]
        self._tag = server_round * (run.round_retries + 1) + attempt
        self._all_too_long = self._all_too_long or attempt == 0
        wait_for_clients(self.hosting, grid, max(self.min_clients, 1), run.node_timeout)
        hosts: dict[int, list[int]] = {}
        clients, seed = self.privacy.pool(self.hosting.clients)
        cohort = sample_cohort(clients, size, seed, server_round, attempt)
        cohort = [client for client in cohort if client in self.hosting.node_of]
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
                facts=self.facts,
                digests=self._digests,
                durable=self.durable_states,
                per_client={c: own for c in clients if (own := self.own(c))},
            )
            content = wire.pack_invitation(invitation, arrays)
            alone = wire.per_client_nbytes(content)
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
        answers = self._answers(replies)
        updates: list[Update] = []
        failures: dict[int, str] = {}
        uplink_bytes = 0
        for sent, clients in self._sent:
            if (message := answers.get(sent.message_id)) is None:
                failures |= dict.fromkeys(clients, "no answer in time")
                continue
            reply = wire.unpack_reply(message, {c: self._spec_of(c) for c in clients})
            updates += reply.updates
            failures |= {refusal.client: refusal.text for refusal in reply.refusals}
            uplink_bytes += reply.uplink_bytes
        bounded = (self._bounded(update, failures) for update in updates)
        updates = sorted((u for u in bounded if u), key=lambda update: update.client)
        refused: dict[int, str] = {}
        if self.admission:
            measured = self.admission.measure(updates, self.x)
            refused = self.admission.refused(measured)
            failures |= refused
        self._all_too_long &= len(updates) == len(refused) > 0
        updates = [update for update in updates if update.client not in refused]
        if self.attendance:
            self.attendance.failed(failures)
        self._tell_why(failures)
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
            if not updates and self._all_diverged(failures, refused):
                raise self._diverged(
                    f"No client's update is finite any more in round {server_round}: lower lr."
                )
            self.thin_round(server_round, dict(sorted(failures.items())) | away)
            return None, metrics
        lost = [u.client for u in updates if self._has_lost_state(u)]
        self._accepted |= {update.client: self._tag for update in updates}
        self._digests |= {update.client: update.state_digest for update in updates}
        if self.admission:
            self.admission.accept(measured, [update.client for update in updates], server_round)
        if self.attendance:
            self.attendance.took_part(update.client for update in updates)
        if lost and self.config.on_lost_state == "go-on":
            self._warn_once(
                "lost state",
                f"CLIENT STATE IS LOST: client {lost[0]} (and maybe others) no longer has what it "
                "remembered and starts afresh, so drift correction is no longer exact; set state-dir to "
                'keep it across restarts, or on-lost-state = "reset" to start all states afresh together',
            )
        if self.buffers.size:
            self.buffers = self._mean_buffers(updates)
        self.privacy.aggregated()
        before, self.lr = self.x, self.config.lr_at(server_round)
        self.aggregate(updates)
        if not wire.is_finite(self.x):
            self.x = before
            raise self._diverged(
                f"The model is no longer finite after round {server_round}: lower lr or server-lr."
            )
        if lost and self.config.on_lost_state == "reset":
            log.warning(
                "CLIENT STATE IS LOST: client %d (and maybe others) no longer has what it remembered; "
                "after round %d all states start afresh together, from this model",
                lost[0],
                server_round,
            )
            self._losses.update(lost)
            self._start_afresh()
        metrics.update(self.privacy.figures(updates))
        return self.arrays(), metrics

    def _has_lost_state(self, update: Update) -> bool:
        """Tell whether a client no longer has what the server accepted of it; that it says so is not enough."""
        return update.state_lost and self.keeps_state and update.client in self._accepted

    def _start_afresh(self) -> None:
        """Forget all that server and clients remember, but for the model.

        A client whose last accepted update is none begins without state, so from the next round on the server's
        means are over what the clients really hold. The round that told of the loss is not taken back:
        states that do not belong together have moved x once, and x may be anywhere when a method begins.
        """
        self._accepted, self._digests = {}, {}
        self.deliveries.clear()
        notes = list(self.notes)
        self._forget_centre()
        self.setup()
        self.notes = notes

    def _answers(self, replies: Iterable[Message]) -> dict[str, Message]:
        """Return the first answer to each message that its own node gave; or Flower's word that there is none."""
        asked = {sent.message_id: sent for sent, _ in self._sent}
        answers: dict[str, Message] = {}
        for message in replies:
            told = message.metadata
            sent = asked.get(told.reply_to_message_id)
            if sent is None:
                continue
            flowers = message.has_error() and told.src_node_id == SUPERLINK_NODE_ID
            nodes = (told.src_node_id, told.message_type) == (sent.dst_node_id, sent.message_type)
            if flowers or nodes:
                answers.setdefault(sent.message_id, message)
        return answers

    def _mean_buffers(self, updates: Sequence[Update]) -> NDArray[Any]:
        """Return the mean of the model's statistics, which counts each client alike, or a robust stand-in."""
        return self._buffer_rule([update["buffers"] for update in updates])

    def _all_diverged(self, failures: Mapping[int, str], too_long: Collection[int]) -> bool:
        """Tell whether every update is lost to numbers out of bounds; of several nodes, one's word is not enough."""
        nodes = set(self.hosting.node_of.values())
        infinite = {client for client, reason in failures.items() if "finite" in reason}
        return (
            bool(infinite)
            and infinite | set(too_long) == set(failures)
            and (len(self._sent) > 1 or len(nodes) == 1)
        )

    def _diverged(self, text: str) -> DivergedError:
        return self.admission.divergence(text) if self.admission else DivergedError(text)

    def too_few_updates(self, round_: int) -> RunError:
        """Return the error that ends a run after the last attempt at a round that had too few updates."""
        times = self.config.round_retries + 1
        if self._all_too_long:
            return self._diverged(
                f"Every update of round {round_} was more than max-update-ratio = {self.config.max_update_ratio:g} "
                f"times as long as usual, {times} times: lower lr, or raise max-update-ratio."
            )
        return RunError(
            f"Round {round_} had fewer than min-clients = {self.min_clients} updates "
            f"{times} times: see above why clients failed."
        )

    def _warn_once(self, kind: str, text: str) -> None:
        """Say something of the server's own once."""
        if kind not in self._warned:
            self._warned.add(kind)
            log.warning(text)

    def _tell_why(self, failures: Mapping[int, str]) -> None:
        """Log each reason once; a client or a node that fails in many ways is heard a few times."""
        for client, reason in sorted(failures.items()):
            if reason in self._said or self._told[client] >= MOST_TOLD:
                continue
            node = self.hosting.node_of.get(client, 0)  # 0: its node has left
            if self._told_of[node] > MOST_TOLD_OF_NODE:
                continue
            self._told_of[node] += 1
            if self._told_of[node] > MOST_TOLD_OF_NODE:
                whose = f"node {node}" if node else "nodes that have left"
                log.warning(
                    "Clients of %s failed for %d different reasons; further ones are counted, and not logged",
                    whose,
                    MOST_TOLD_OF_NODE,
                )
                continue
            self._said.add(reason)
            self._told[client] += 1
            log.warning("Client %d failed: %s", client, reason)

    # Checkpoints.

    def saved(self) -> Arrays:
        """Return all that changes from round to round: the vectors, `memory`, and what clients still wait for."""
        arrays = {f"vector.{name}": value for name, value in self._vectors().items()}
        arrays |= {f"memory.{name}": value for name, value in self.memory().items()}
        arrays |= {f"undelivered.{name}": value for name, value in self.deliveries.saved().items()}
        for kind, part in self._bookkeeping().items():
            arrays |= {f"{kind}.{name}": value for name, value in part.saved().items()}
        rows = [(c, tag, self._digests.get(c, 0)) for c, tag in sorted(self._accepted.items())]
        return arrays | {"accepted": np.array(rows, np.int64).reshape(-1, 3)}

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved` returned; raise ValueError if it is of another run."""
        mine = {name: value.shape for name, value in self._vectors().items()}
        vectors = _part(saved, "vector")
        theirs = {name: value.shape for name, value in vectors.items()}
        if mine != theirs:
            raise ValueError(f"it holds {theirs}, and this run has {mine}")
        states = accepted_states(saved)
        self.deliveries.restore(_part(saved, "undelivered"))
        self.remember(_part(saved, "memory"))
        for kind, part in self._bookkeeping().items():
            part.restore(_part(saved, kind))
        self._accepted = {client: tag for client, (tag, _) in states.items()}
        self._digests = {client: digest for client, (_, digest) in states.items()}
        vars(self).update(vectors)

    def checkpointed(self, saved: Arrays) -> None:
        """Note that what `saved` returned is on disk; clients keep the states that it would ask for."""
        tags = {client: tag for client, (tag, _) in accepted_states(saved).items()}
        self._checkpoints = [*self._checkpoints[-1:], tags]
        self.deliveries.checkpointed(files_of(_part(saved, "undelivered")))

    def _bookkeeping(self) -> dict[str, Admission | Attendance]:
        """Return what checkpoints hold since later versions only: an old one has none of it."""
        parts = {"admission": self.admission, "attendance": self.attendance}
        return {kind: part for kind, part in parts.items() if part}

    def _vectors(self) -> Arrays:
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}

    def _bounded(self, update: Update, failures: dict[int, str]) -> Update | None:
        """Return an update whose vectors are no longer than `max-update-norm`; None if it is refused."""
        if self._has_lost_state(update) and self._losses[update.client] >= MOST_LOSSES:
            failures[update.client] = f"it has lost its state more than {MOST_LOSSES} times"
            return None
        most = self.config.max_examples
        if most and update.num_examples > most:
            failures[update.client] = f"it claims more examples than max-examples = {most}"
            return None
        if any((update["buffers"][a:b] < 0).any() for a, b in self.layout.variances):
            failures[update.client] = "a variance among its buffers is negative"
            return None
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

    def what_is_sent(self) -> str:
        """Say what leaves a node."""
        clients = range(self.config.clients_per_round)
        self.invite(clients, 1, 0)
        counts = sorted({sum(self.sent_tensors(client)) for client in clients})
        numbers = " to ".join(f"{count:,}" for count in (counts[0], counts[-1])[: len(counts)])
        bits = max(self._nominal_bits(client) for client in clients) // len(self._sends)
        how = f"compressed by {type(self.compressor).__name__.lower()}, " if self.compressor else ""
        sent = [
            f"{name} ({numbers} numbers, {how}{costs.human_bytes(bits / 8)})"
            for name in self._sends
        ]
        if self.buffers.size:
            sent.append(
                f"buffers ({self.buffers.size:,} numbers, {costs.human_bytes(self.buffers.nbytes)})"
            )
        beside = node_privacy(self.config).sent_beside
        return f"A client sends {', '.join(sent)}, {beside}; raw data never leave a node."

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


def _part(saved: Arrays, kind: str) -> Arrays:
    """Return a copy of the arrays of one kind, by the rest of their names."""
    start = f"{kind}."
    return {
        key[len(start) :]: value.copy() for key, value in saved.items() if key.startswith(start)
    }


def accepted_states(saved: Arrays) -> dict[int, tuple[int, int]]:
    """Return for each client of a checkpoint the tag of its last accepted update, and its state's digest."""
    rows = saved["accepted"]
    if rows.shape[1:] == (2,):  # of a version without digests
        rows = np.column_stack([rows, np.full(len(rows), OLD)])
    return {int(client): (int(tag), int(digest)) for client, tag, digest in rows}
