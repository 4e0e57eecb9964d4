"""Which node hosts which logical clients.

Node p of P hosts the clients c with c mod P = p. The server does not assume that: it asks every
node that it has not met, and asks on that occasion whether the node can train.

A claim is taken whole or not at all. Two nodes that claim the same client before the first round end the run, for nobody can
say which of them is right; later, a client stays with its node while that is connected, and whoever else claims it is
refused, and told so. Where `node-partitions` says which node hosts which partition, that alone decides.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedapp import wire
from fedapp.data import Facts
from fedapp.errors import ConfigError, RunError
from fedapp.homes import Homes
from fedapp.wire import Report, WireError

log = logging.getLogger("flwr")
QUERY_TIMEOUT = 120.0  # seconds; a node's first message may have to load torch
FIRST_PAUSE = 10.0  # seconds before a node is asked again; each further pause is twice as long
MAX_WARNINGS = 5  # about one node


def hosted_clients(node_config: dict[str, bool | int | float | str], num_clients: int) -> range:
    """Return the clients that a node hosts, from its node config."""
    place, places = node_config.get("partition-id"), node_config.get("num-partitions")
    if not isinstance(place, int) or not isinstance(places, int) or not 0 <= place < places:
        raise ConfigError(
            "A node's config must say which clients it hosts, for example "
            '--node-config "partition-id=0 num-partitions=2".'
        )
    return range(place, num_clients, places)


@dataclass(frozen=True)
class NodeRow:
    """A node as it is shown before the first round."""

    node: int
    clients: Sequence[int]
    samples: int | None
    problem: str


class Hosting:
    """The clients of every node that has been asked.

    A node that gives no answer, or an error, is asked again, after ever longer pauses.
    """

    def __init__(self, num_clients: int, partition_of: Mapping[int, int] | None = None) -> None:
        self.num_clients = num_clients
        self.node_of = Homes()  # client -> its node, if that is connected now
        self.clients: Sequence[int] = []  # those clients, in order
        self._partition_of = dict(partition_of or {})  # empty: claims decide
        self._nodes: set[int] = set()
        self._met: dict[int, Sequence[int]] = {}  # node -> the clients that it claims
        self._reports: dict[int, Report] = {}  # node that has answered -> its report
        self._silent: dict[int, str] = {}  # node that does not say which clients it hosts -> why
        self._ask_again: dict[int, tuple[float, float]] = {}  # node -> when, and the pause after
        self._refused: dict[int, str] = {}  # node -> why it hosts nothing
        self._warnings = Counter[int]()  # node -> warnings about it
        self._last_node = Homes()  # client -> its node, connected or not
        self._begun = False
        self._check: dict[str, Any] | None = None  # what nodes need to know to check their data

    def ask_for_check(self, check: dict[str, Any] | None) -> None:
        """Ask nodes from now on to check their data, too; `check` is what they need to know for it."""
        self._check = check

    def begin(self) -> None:
        """Note that the first round begins: from now on a client stays with its node."""
        self._begun = True

    def update(self, grid: Grid) -> None:
        """Ask the nodes that are new which clients they host; forget those that have left."""
        nodes = set(grid.get_node_ids())
        self._met = {node: clients for node, clients in self._met.items() if node in nodes}
        now = time.monotonic()
        due = {n for n in nodes if self._ask_again.get(n, (0.0, 0.0))[0] <= now}
        new = sorted(node for node in due if node not in self._met or self._may_be_fixed(node))
        if new:
            self._ask(grid, new)
        elif nodes == self._nodes:
            return
        self._nodes = nodes
        for known in (self._reports, self._silent, self._refused):
            for node in known.keys() - nodes:
                del known[node]
        # One that was asked again may say something else than before.
        self.node_of.remove(self.node_of.nodes - nodes | set(new))
        self._assign(grid)
        self.clients = self.node_of.clients_of(self.node_of.nodes)

    def _may_be_fixed(self, node: int) -> bool:
        """Tell whether the run still waits for a node that cannot train."""
        return not self._begun and bool(self._reports[node].problem)

    def _assign(self, grid: Grid) -> None:
        """Give the nodes that host nothing yet what they claim, or refuse it."""
        hosts = self.node_of.nodes
        # A node that is back comes before one that is new.
        waiting = sorted(
            (node for node, clients in self._met.items() if clients and node not in hosts),
            key=lambda n: (not self._last_node.is_home(n, self._met[n]), n),
        )
        for node in waiting:
            claim = self._met[node]
            if reason := self._why_not(node, claim):
                self._refuse(grid, node, reason)
                continue
            if self._refused.pop(node, ""):
                log.info("Node %d hosts its %d clients from now on", node, len(claim))
            self.node_of.add(node, claim)
            self._last_node.replace(node, claim)

    def _why_not(self, node: int, claim: Sequence[int]) -> str:
        """Return why a node cannot host what it claims; an empty string if it can."""
        if self._partition_of:
            place, places = self._partition_of.get(node), len(set(self._partition_of.values()))
            if place is None:
                return "node-partitions does not name this node"
            own = range(place, self.num_clients, places)
            if claim != own and sorted(claim) != list(own):
                return (
                    f"node-partitions gives it partition {place} of {places}, and it claims other clients: set its "
                    f"node config to partition-id={place} num-partitions={places}"
                )
        taken, first = self.node_of.taken(claim)
        if not taken:
            return ""
        other = self.node_of[first]
        if not self._begun and not self._partition_of:
            one, two = sorted((node, other))
            for mine, yours in ((one, two), (two, one)):
                self._refused[mine] = f"it claims clients that node {yours} claims, too"
            raise RunError(
                f"Nodes {one} and {two} both claim {count_of(taken)}, such as client {first}: give each node its "
                "own partition-id and all the same num-partitions, or say in node-partitions which of them hosts what "
                "(a node that was just started again is listed twice for up to a minute)."
            )
        return (
            f"it claims {count_of(taken)} that node {other} hosts, such as client {first}; it can host them when "
            "that node has left"
        )

    def _refuse(self, grid: Grid, node: int, reason: str) -> None:
        """Say at the server and at the node that it hosts nothing, and why; once."""
        if self._refused.get(node) == reason:
            return
        self._refused[node] = reason
        self._warn(node, "is refused", reason)
        content = wire.pack_rejection(reason)
        grid.push_messages([Message(content, node, "query", ttl=QUERY_TIMEOUT)])  # no answer needed

    def _warn(self, node: int, what: str, why: str) -> None:
        self._warnings[node] += 1
        if self._warnings[node] <= MAX_WARNINGS:
            last = self._warnings[node] == MAX_WARNINGS
            more = "; nothing more is said of it" if last else ""
            log.warning("Node %d %s: %s%s", node, what, why, more)

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        queries = [Message(wire.pack_query(self._check), node, "query") for node in nodes]
        replies = list(grid.send_and_receive(queries, timeout=QUERY_TIMEOUT))
        answers = {reply.metadata.reply_to_message_id: reply for reply in replies}
        for query in queries:
            node = query.metadata.dst_node_id
            reply = answers.get(query.metadata.message_id)
            before = self._reports.get(node, Report([])).problem
            try:
                report = wire.unpack_report(reply, self.num_clients)
                self._met[node], self._reports[node] = report.clients, report
                self._silent.pop(node, None)
                if report.problem and report.problem != before:
                    self._warn(node, "cannot train", report.problem)
                if not report.problem:
                    self._ask_again.pop(node, None)
                    continue
            except WireError as error:
                self._met.pop(node, None)
                if node not in self._ask_again:
                    self._warn(node, "hosts no clients", str(error))
                self._silent[node] = str(error)
            pause = self._ask_again.get(node, (0.0, FIRST_PAUSE))[1]
            self._ask_again[node] = (time.monotonic() + pause, 2 * pause)

    def ready(self) -> Sequence[int]:
        """Return the clients whose nodes can train."""
        able = {node for node in self.node_of.nodes if not self._reports[node].problem}
        return self.node_of.clients_of(able)

    def why_missing(self, client: int) -> str:
        """Return why a client has no node that can train."""
        if client in self.node_of:
            node = self.node_of[client]
            return f"node {node}: {self._reports[node].problem.rstrip('.')}"
        for node, reason in self._refused.items():
            if client in self._met[node]:
                return f"node {node} is refused: {reason}"
        return "no node hosts it"

    def rows(self) -> list[NodeRow]:
        """Return the nodes that are there, each with its clients and samples, or with what is wrong."""
        rows = []
        for node in sorted(self._nodes):
            report = self._reports.get(node, Report([]))
            wrong = self._silent.get(node) or self._refused.get(node) or report.problem
            hosted = [] if node in self._silent or node in self._refused else report.clients
            rows.append(NodeRow(node, hosted, report.samples, wrong))
        return rows

    def facts(self) -> dict[int, Facts]:
        """Return what the nodes that host clients told of their data, if they were asked."""
        hosts = sorted(self.node_of.nodes)
        told = {node: self._reports[node] for node in hosts}
        return {node: r.facts for node, r in told.items() if r.facts and not r.problem}

    def lacks_frozen(self, node: int) -> bool:
        """Tell whether a node said that it needs the parameters that are not trained."""
        return node in self._reports and self._reports[node].lacks_frozen

    def has_own_data(self) -> bool:
        """Tell whether a node that is there has local data."""
        return any(report.own_data for report in self._reports.values())


def count_of(clients: int) -> str:
    """Return a number of clients in words."""
    return "1 client" if clients == 1 else f"{clients} clients"
