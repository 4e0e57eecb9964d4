"""What every algorithm's server side shares: cohorts, messages, replies, means.

An algorithm implements `aggregate`, and where it needs to `setup`, `broadcast` and `per_client`.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedapp import aggregation, traffic, wire
from fedapp.admission import Admission, all_diverged
from fedapp.aggregation import Summed
from fedapp.algorithm import Algorithm
from fedapp.attendance import Attendance
from fedapp.compression import Compressor
from fedapp.config import RunConfig
from fedapp.data import Facts
from fedapp.downlink import Downlink, make_downlink
from fedapp.errors import ConfigError
from fedapp.evaluation import ClientEvaluation, demand_held_out
from fedapp.exchange import Exchange
from fedapp.explaining import Explanations
from fedapp.failures import FailureLog
from fedapp.feedback import EF21, MeanOfKnown
from fedapp.frozen import FrozenSender
from fedapp.grids import is_deployed
from fedapp.hosting import Hosting
from fedapp.ledger import Place, StateLedger, part_of
from fedapp.lengths import UpdateLengths
from fedapp.models.layout import Layout, Piece
from fedapp.privacy import server_privacy
from fedapp.problems.protocols import Vector
from fedapp.randomness import sample_cohort
from fedapp.refusals import Reason, Refusal
from fedapp.tables import AnyOptions
from fedapp.threads import one_thread
from fedapp.waiting import wait_for_all, wait_for_clients
from fedapp.wire import Arrays, Reply, Update

if TYPE_CHECKING:  # which imports torch
    from fedapp.models.frozen import FrozenPart

log = logging.getLogger("flwr")
# Clients in a round from which on nodes add up: a sum has four times the bytes of an update, and is made of several parts.
WORTH_ADDING_UP = 32


class FederatedStrategy(Strategy, Generic[AnyOptions]):
    """A Flower strategy over logical clients, whose model is one vector x."""

    default_server_lr = 1.0
    delivers = 0  # vectors that a client receives of its last round
    checks_steps = False  # whether the rule uses how many local steps each client took
    rule_is_a_mean = False  # so that another location of the updates can stand in for it
    begins_on_grid = False  # x must begin where the clients do, if x goes down on a grid
    keeps: tuple[str, ...] = ()  # attributes beside x that are vectors of the model's size
    lower: Mapping[str, str] = {}  # what takes much memory -> the key that makes it less
    only_sums = False  # the class's own `aggregate` sees vectors through `mean` and `total` alone

    def __init_subclass__(cls, **keys: Any) -> None:
        """Let no class inherit what another's `aggregate` needs."""
        super().__init_subclass__(**keys)
        if "aggregate" in vars(cls) and "only_sums" not in vars(cls):
            cls.only_sums = False

    def __init__(
        self,
        algorithm: Algorithm,
        config: RunConfig,
        x: Vector,
        buffers: Vector,
        compressor: Compressor | None = None,
        layout: Layout | None = None,
        facts: Facts | None = None,
        place: Place | None = None,
        frozen: "FrozenPart | None" = None,
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        self.options = cast(AnyOptions, config.table(algorithm.options))
        self.server_lr = config.server_lr or self.default_server_lr
        self.x = x
        self.buffers = buffers
        self.compressor = compressor  # compresses what clients send
        self.layout = layout or Layout.single(x.size)
        self.facts = facts  # about the images, for nodes with local data
        self.frozen = FrozenSender(frozen)  # to nodes that lack what is not trained
        self.downlink = make_downlink(config, self.layout.pieces)
        self.lr = config.lr  # the clients', in the round under way
        self.hosting = Hosting(config.num_clients, config.partition_of)
        self.privacy = server_privacy(config)
        self.min_clients = self.privacy.min_clients(least_updates(algorithm, config))
        self.ledger = StateLedger(
            place or Place(state_dir=config.state_dir),
            algorithm.keeps_state(config),
            config.round_retries + 1,
        )
        names = algorithm.client.sends
        statistics = (buffers.dtype, buffers.shape)
        self.upload = traffic.Upload(names, compressor, x.dtype, statistics)
        secret = self.privacy.hides_participants
        lengths = None if secret else UpdateLengths(names, config.max_update_ratio)
        self.admission = Admission(
            config, names, self.layout, self.ledger, lengths, self.checks_steps
        )
        self.attendance = None if secret else Attendance(config.num_clients)
        self.failures = FailureLog()
        self.evaluation = ClientEvaluation(config, self.hosting, self.failures, self.frozen)
        fed_back = tuple(name for name in names if name not in algorithm.client.differences)
        ef21 = compressor and config.error_feedback == EF21
        self.known = MeanOfKnown(fed_back, config.num_clients) if ef21 else None
        self._aggregator = aggregation.aggregator_of(config, self.privacy, self.zeros())
        self._buffer_rule = aggregation.buffer_rule_of(config)
        self._round = self._attempt = 0  # under way
        self.nodes_add_up = False  # simulated ones may do so; set by the round loop
        self.asks_again = False  # an update that is in a sum must not count
        self._cohort: list[int] = []
        self.delivered: Arrays = {}  # the vectors of the last round, as clients will receive them
        self._explanations = Explanations()
        self._explained: dict[str, float] = {}  # figures of the last round
        self._exchange = Exchange()
        self.setup()

    @classmethod
    def adds_up(cls, config: RunConfig) -> bool:
        """Return whether sums are all that is needed of updates: not with robust rules, noise, or a limit on each."""
        robust = config.aggregation != "mean" or config.mixing != "none"
        return cls.only_sums and not (robust or config.dp.clip or config.max_update_norm)

    # The algorithm's part.

    @classmethod
    def server_vectors(cls, config: RunConfig) -> dict[str, int]:
        """Return how many vectors of the model's size the server keeps beside x, by name."""
        return dict.fromkeys(cls.keeps, 1)

    def setup(self) -> None:
        """Allocate the server's own state, also when all states are reset."""

    def zeros(self) -> Vector:
        """Return zeros, as many as x has; they take memory once they are written."""
        return np.zeros(self.x.shape, self.x.dtype)

    def broadcast(self) -> Arrays:
        """Return what every sampled client receives."""
        return {"x": self.x}

    def per_client(self, client: int) -> Arrays:
        """Return what one sampled client alone receives: what was left for it to `deliver`."""
        return self.ledger.delivery(client)

    def cohort_size(self, round_: int) -> int:
        """Return how many clients a round invites."""
        return self.config.clients_per_round

    def on_cohort(self, clients: Sequence[int], round_: int, attempt: int) -> None:
        """Prepare for a cohort; called once it is sampled, before messages are built."""

    def sent_pieces(self, client: int) -> tuple[Piece, ...]:
        """Return the tensors of each vector that a client sends: the whole model's."""
        return self.layout.pieces

    def places(self, client: int) -> aggregation.Places:
        """Return where in the model the vectors belong that a client sends; empty: they are whole."""
        return ()

    def sums_needed(self) -> tuple[str, ...]:
        """Return what `aggregate` needs the sums of, if they are all it needs."""
        names = self.algorithm.client.sends
        return (*names, aggregation.BUFFERS) if self.buffers.size else names

    @abstractmethod
    def aggregate(self, updates: Sequence[Update]) -> None:
        """Apply a round's updates, which come in the order of client ids, to x and the state."""

    def memory(self) -> Arrays:
        """Return what the server remembers beside the vectors among its attributes, as arrays."""
        return {}

    def restore_memory(self, memory: Arrays) -> None:
        """Restore the state returned by `memory()`."""

    def on_too_few_updates(self, round_: int, refusals: Sequence[Refusal]) -> None:
        """End the run by raising after a round with fewer than `min_clients` updates; otherwise it is repeated."""

    # What the algorithms are written with.

    def mean(self, updates: Sequence[Update], name: str = "u") -> NDArray[Any]:
        """Return the mean over the cohort, or what the config's aggregation puts in its place."""
        return self._aggregator.mean(updates, name, self.ledger.tag)

    def total(self, updates: Sequence[Update], name: str) -> NDArray[Any]:
        """Return the sum over the cohort, each vector in its place."""
        return aggregation.total(self._summed(updates), name)

    def _summed(self, updates: Sequence[Update], sums: aggregation.Sums | None = None) -> Summed:
        """Return updates by their sums; `sums` hold those of which there is nothing else."""
        if isinstance(updates, Summed):
            return updates
        sums = sums or self._no_sums()
        for update in updates:
            if update.arrays:
                sums.add(update, self.places(update.client))
        return Summed(updates, sums)

    def _no_sums(self) -> aggregation.Sums:
        weighted = self.config.weighting == "examples"
        return aggregation.Sums(self.sums_needed(), self.x.size, weighted)

    def deliver(self, unit: float = 1.0, /, **vectors: NDArray[Any]) -> None:
        """Send vectors to this round's clients, each with its next invitation.

        `unit`: what the clients divide them by, such as the step size of the round that they are of.
        """
        self.delivered = self.downlink.delivered(vectors, unit)
        self.ledger.deliver(self.delivered)

    # Flower's part.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample a cohort and write one message to each node that hosts some of it.

        A round that is configured again is repeated, with another cohort.
        """
        self._attempt = self._attempt + 1 if server_round == self._round else 0
        self._round = server_round
        self.ledger.begin(server_round, self._attempt)
        self.admission.begin(self._attempt)
        needed = max(self.min_clients, 1)
        wait_for_clients(self.hosting, grid, needed, self.config.node_timeout)
        pool, seed = self.privacy.pool(self.hosting.clients)
        size = self.cohort_size(server_round)
        cohort = sample_cohort(pool, size, seed, server_round, self._attempt)
        cohort = [client for client in cohort if client in self.hosting.node_of]
        self.privacy.invited(cohort)
        self.on_cohort(cohort, server_round, self._attempt)
        self._cohort = cohort
        self._begin_downlink(arrays, getattr(grid, "remembers", True))
        many = len(cohort) >= WORTH_ADDING_UP
        return self._invite(sums=many and self.nodes_add_up and self.adds_up(self.config))

    def configure_again(self) -> Iterable[Message]:
        """Invite the same clients, each to send its own update."""
        return self._invite(sums=False)

    def _invite(self, sums: bool) -> list[Message]:
        """Write the messages of an attempt."""
        hosts: dict[int, list[int]] = {}
        for client in self._cohort:
            hosts.setdefault(self.hosting.node_of[client], []).append(client)
        self._exchange = Exchange(sums=sums)
        messages = []
        round_, needed = self._round, self.sums_needed() if sums else ()
        for node, clients in hosts.items():
            invitation = self.ledger.invitation(round_, clients, self.facts, self.per_client)
            invitation = replace(
                invitation, frozen=self.frozen.digest, sums=needed, dtype=str(self.x.dtype)
            )
            timeout = self.config.round_timeout
            lacking = self.frozen.record_for(node, self.hosting.lacks_frozen(node))
            parcel = self.downlink.parcel(node, clients)
            messages.append(self._exchange.invite(node, invitation, parcel, timeout, lacking))
        return messages

    def _begin_downlink(self, arrays: ArrayRecord, remembers: bool) -> None:
        """Prepare what all of the cohort receives."""
        first = self.downlink.begin(self._round, self.broadcast(), arrays, remembers)
        if first and self.begins_on_grid:
            self.x = self.downlink.broadcast["x"]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord]:
        """Check the replies and apply the updates, if there are at least `min_clients`."""
        reply = self._exchange.read(replies, lambda c: self.upload.spec(self.sent_pieces(c)))
        updates, refused = self.admission.admit(reply.updates, self.x)
        sums = self._sums_of(reply, refused)
        self.asks_again = sums is None
        if sums is None:
            return None, MetricRecord()
        self.downlink.arrived(update.client for update in reply.updates)
        refusals = sorted(reply.refusals + refused, key=lambda refusal: refusal.client)
        if self.attendance:
            self.attendance.failed(refusal.client for refusal in refusals)
        self.failures.log(refusals, self.hosting.node_of)
        self.frozen.note(refusals, self.hosting.node_of)
        nominal = sum(self.upload.nominal_bits(self.sent_pieces(u.client)) for u in updates)
        metrics = MetricRecord(
            {
                "clients": len(updates),
                "failures": len(refusals),
                "uplink_bytes": reply.uplink_bytes,
                "downlink_bytes": self._exchange.downlink_bytes,
                "uplink_overhead_bytes": reply.uplink_overhead,
                "downlink_overhead_bytes": self._exchange.downlink_overhead,
                **traffic.round_costs(
                    self.config,
                    server_round,
                    updates,
                    nominal,
                    reply.uplink_bytes,
                    self.x.size,
                    self._exchange.downlink_bytes,
                ),
            }
        )
        if len(updates) < self.min_clients:
            # One of several nodes is not believed when it says that numbers are not finite.
            asked, nodes = len(self._exchange.sent), self.hosting.node_of.nodes
            if not updates and all_diverged(refusals) and (asked > 1 or len(nodes) == 1):
                raise self.admission.divergence(
                    f"No client's update is finite any more in round {server_round}: lower lr."
                )
            if all(refusal.reason is not Reason.LACKS_MODEL for refusal in refusals):
                self.on_too_few_updates(server_round, [*refusals, *_absent(self.hosting)])
            return None, metrics
        self._apply(server_round, updates, sums)
        metrics.update(self.privacy.figures(updates))
        metrics.update(self._explained)
        return self.arrays(), metrics

    def _sums_of(self, reply: Reply, refused: Sequence[Refusal]) -> aggregation.Sums | None:
        """Return what nodes have added up; None if a client is in it that must not count."""
        sums = self._no_sums()
        try:
            for packed in reply.sums:
                sums.merge_packed(packed)
        except wire.WireError as error:
            log.warning("The sums of a node cannot be used (%s)", error)
            return None
        spoiled = reply.added_up & {refusal.client for refusal in [*reply.refusals, *refused]}
        return sums if sums.count == len(reply.added_up) and not spoiled else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write one message to each node whose clients evaluate x; none if no evaluation on clients is due."""
        model = {"x": self.x, "buffers": self.buffers}  # not all of what training broadcasts
        return self.evaluation.configure(server_round, model, self.facts)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the figures of the clients' evaluations; None if none was due."""
        return self.evaluation.aggregate(replies)

    def wait_for_nodes(self, grid: Grid, deployed: bool) -> None:
        """Wait until nodes host enough clients to begin; in a deployed federation they check their data first."""
        wait_for_all(
            self.hosting,
            grid,
            self.config.node_timeout,
            max(self.min_clients, 1),
            self.config.require_all_clients,
            {
                "shared-data": deployed,
                **wire.facts_head(self.facts),
                **wire.frozen_head(self.frozen.digest),
            },
        )
        demand_held_out(self.config, self.hosting.has_own_data())

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *others: Any,
        **named: Any,
    ) -> Result:
        """Run Flower's own loop from `arrays()`, in an app that does not use ours.

        A round with too few updates changes nothing, and is not repeated.
        """
        if initial_arrays != self.arrays():
            raise ConfigError(
                "The initial_arrays are not where this strategy begins: pass strategy.arrays()."
            )
        if self.config.lr_schedule == "inverse-sqrt" and num_rounds != self.config.num_rounds:
            raise ConfigError(
                f"The step size depends on the number of rounds: make the strategy with num-rounds = {num_rounds}."
            )
        one_thread()
        self.wait_for_nodes(grid, is_deployed(grid))
        return super().start(grid, initial_arrays, num_rounds, *others, **named)

    def arrays(self) -> ArrayRecord:
        """Return the record that goes to every sampled client."""
        return wire.record_of(self.broadcast() | {"buffers": self.buffers})

    def _apply(self, round_: int, updates: Sequence[Update], sums: aggregation.Sums) -> None:
        """Apply a round's updates, and note that they were used."""
        lost = [update.client for update in updates if self.ledger.has_lost(update)]
        explained = self._explanations.before(self, updates, round_, bool(lost))
        self.ledger.accept(updates)
        self.admission.accept(updates, round_)
        if self.attendance:
            self.attendance.took_part(update.client for update in updates)
        reset = self.config.on_lost_state == "reset"
        if lost:
            self.failures.log_lost_state(lost[0], round_, reset)
        if self.adds_up(self.config):
            updates = self._summed(updates, sums)
        if self.buffers.size:  # each client counts alike, or a robust rule decides
            self.buffers = self._mean_buffers(updates)
        self.privacy.aggregated()
        before, self.lr = self.x, self.config.lr_at(round_)
        self.aggregate(self.known.applied(updates) if self.known else updates)
        if not wire.is_finite(self.x):
            self.x = before
            raise self.admission.divergence(
                f"The model is no longer finite after round {round_}: lower lr or server-lr."
            )
        self._explained = explained | self._explanations.after(self, updates)
        if lost and reset:
            # The round that told of the loss is not taken back: states that do not belong together have moved x
            # once, and x may be anywhere when a method begins.
            self.ledger.reset(lost)
            self.downlink.reset()
            self._aggregator.reset()
            if self.known:
                self.known.reset()
            self._explanations.reset()
            self.setup()

    def _mean_buffers(self, updates: Sequence[Update]) -> Vector:
        if isinstance(updates, Summed):
            return updates.sums.exact[aggregation.BUFFERS].mean(len(updates))
        return self._buffer_rule([update["buffers"] for update in updates])

    def summary(self) -> None:
        """Log which strategy this is."""
        log.info("%s, server step size %g", type(self).__name__, self.server_lr)

    # Checkpoints.

    def saved(self) -> Arrays:
        """Return all that changes from round to round: the vectors, `memory`, and what clients still wait for."""
        arrays = {f"vector.{name}": value for name, value in _vectors(self).items()}
        arrays |= {f"vector.{name}": value for name, value in self._aggregator.saved().items()}
        arrays |= {f"memory.{name}": value for name, value in self.memory().items()}
        for kind, part in _since_later_versions(self).items():
            arrays |= {f"{kind}.{name}": value for name, value in part.saved().items()}
        return arrays | self.ledger.saved()

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved()` returned; raise ValueError if it is of another run."""
        own = _vectors(self) | self._aggregator.saved()
        mine = {name: value.shape for name, value in own.items()}
        vectors = part_of(saved, "vector")
        theirs = {name: value.shape for name, value in vectors.items()}
        if mine != theirs:
            raise ValueError(f"it holds {theirs}, and this run has {mine}")
        self.ledger.restore(saved)
        self.restore_memory(part_of(saved, "memory"))
        for kind, part in _since_later_versions(self).items():
            part.restore(part_of(saved, kind))
        self._aggregator.restore(vectors)
        vars(self).update({name: vectors[name] for name in _vectors(self)})


def _vectors(strategy: FederatedStrategy[Any]) -> Arrays:
    """Return the vectors among a strategy's attributes."""
    return {name: v for name, v in vars(strategy).items() if isinstance(v, np.ndarray)}


def _since_later_versions(
    strategy: FederatedStrategy[Any],
) -> dict[str, UpdateLengths | Attendance | Downlink | MeanOfKnown | Explanations]:
    """Return what an old checkpoint has nothing of."""
    parts = {
        "admission": strategy.admission.lengths,
        "attendance": strategy.attendance,
        "downlink": strategy.downlink,
        "known": strategy.known,
        "explained": strategy._explanations,
    }
    return {kind: part for kind, part in parts.items() if part}


def _absent(hosting: Hosting) -> list[Refusal]:
    """Return a refusal for each client that no node hosts."""
    if len(hosting.clients) == hosting.num_clients:
        return []
    absent = np.setdiff1d(np.arange(hosting.num_clients), hosting.clients).tolist()
    return [Refusal(client, Reason.NO_ANSWER, "no node hosts it") for client in absent]


def least_updates(algorithm: Algorithm, config: RunConfig) -> int:
    """Return how many updates a round needs; one with fewer is repeated."""
    if algorithm.needs.every_update:
        return config.num_clients
    return max(config.min_clients, aggregation.least_updates(config))
