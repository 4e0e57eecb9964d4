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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedapp import wire
from fedapp.errors import ConfigError, RunError
from fedapp.wire import WireError

log = logging.getLogger("flwr")
QUERY_TIMEOUT = 120.0  # a node's first message may have to load torch
WAIT_FOR_ALL = 60.0
SAY_AGAIN = 60.0  # that nodes are missing
POLL = 0.2
FIRST_PAUSE = 10.0
MOST_TOLD = 5  # warnings about one node
MOST_SAMPLES = 2**53  # that a node may say it has


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
class Report:
    """What a node says when it is first asked."""

    clients: list[int]
    samples: int | None = None  # of all its clients; None: it does not say
    own_data: bool = False
    problem: str = ""  # why it cannot train


@dataclass(frozen=True)
class NodeRow:
    """A node as it is shown before the first round."""

    node: int
    clients: list[int]
    samples: int | None
    problem: str


class Hosting:
    """The clients of every node that has been asked.

    A node that gives no answer, or an error, is asked again, after ever longer pauses.
    """

    def __init__(self, num_clients: int, partition_of: Mapping[int, int] | None = None) -> None:
        self.num_clients = num_clients
        self.node_of: dict[int, int] = {}  # of the clients whose node is connected now
        self.clients: list[int] = []  # those clients, in order
        self._partition_of = dict(partition_of or {})  # empty: claims decide
        self._nodes: set[int] = set()
        self._met: dict[int, list[int]] = {}  # node -> the clients that it claims
        self._reports: dict[int, Report] = {}  # of nodes that have been met
        self._silent: dict[int, str] = {}  # node that does not say which clients it hosts -> why
        self._ask_again: dict[int, tuple[float, float]] = {}  # node -> when, and the pause after
        self._refused: dict[int, str] = {}  # node -> why it hosts nothing
        self._told = Counter[int]()  # node -> warnings about it
        self._last_node: dict[int, int] = {}  # client -> its node, be it connected or not
        self._begun = False
        self._check: dict[str, Any] | None = None  # what nodes need to know to check their data

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
        for node in new:  # it may say something else than before
            self.node_of = {c: n for c, n in self.node_of.items() if n != node}
        self.node_of = {c: node for c, node in self.node_of.items() if node in nodes}
        self._assign(grid)
        self.clients = sorted(self.node_of)

    def _may_be_fixed(self, node: int) -> bool:
        """Tell whether the run still waits for a node that cannot train."""
        return not self._begun and bool(self._reports[node].problem)

    def _assign(self, grid: Grid) -> None:
        """Give the nodes that host nothing yet what they claim, or refuse it."""
        hosts = set(self.node_of.values())
        # A node that is back comes before one that is new.
        waiting = sorted(
            (node for node, clients in self._met.items() if clients and node not in hosts),
            key=lambda n: (any(self._last_node.get(c) != n for c in self._met[n]), n),
        )
        for node in waiting:
            claim = self._met[node]
            if reason := self._why_not(node, claim):
                self._refuse(grid, node, reason)
                continue
            if self._refused.pop(node, ""):
                log.info("Node %d hosts its %d clients from now on", node, len(claim))
            self.node_of |= dict.fromkeys(claim, node)
            self._last_node |= dict.fromkeys(claim, node)

    def _why_not(self, node: int, claim: list[int]) -> str:
        """Return why a node cannot host what it claims; an empty string if it can."""
        if self._partition_of:
            place, places = self._partition_of.get(node), len(set(self._partition_of.values()))
            if place is None:
                return "node-partitions does not name this node"
            if sorted(claim) != list(range(place, self.num_clients, places)):
                return (
                    f"node-partitions gives it partition {place} of {places}, and it claims other clients: set its "
                    f"node config to partition-id={place} num-partitions={places}"
                )
        taken = [client for client in claim if client in self.node_of]
        if not taken:
            return ""
        other = self.node_of[taken[0]]
        if not self._begun and not self._partition_of:
            one, two = sorted((node, other))
            for mine, yours in ((one, two), (two, one)):
                self._refused[mine] = f"it claims clients that node {yours} claims, too"
            raise RunError(
                f"Nodes {one} and {two} both claim {_count(len(taken))}, such as client {taken[0]}: give each node its "
                "own partition-id and all the same num-partitions, or say in node-partitions which of them hosts what "
                "(a node that was just started again is listed twice for up to a minute)."
            )
        return (
            f"it claims {_count(len(taken))} that node {other} hosts, such as client {taken[0]}; it can host them when "
            "that node has left"
        )

    def _refuse(self, grid: Grid, node: int, reason: str) -> None:
        """Say at the server and at the node that it hosts nothing, and why; once."""
        if self._refused.get(node) == reason:
            return
        self._refused[node] = reason
        self._warn(node, "is refused", reason)
        content = RecordDict({"refused": ConfigRecord({"reason": reason})})
        grid.push_messages([Message(content, node, "query", ttl=QUERY_TIMEOUT)])  # no answer needed

    def _warn(self, node: int, what: str, why: str) -> None:
        self._told[node] += 1
        if self._told[node] <= MOST_TOLD:
            more = "; nothing more is said of it" if self._told[node] == MOST_TOLD else ""
            log.warning("Node %d %s: %s%s", node, what, why, more)

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        queries = [Message(self._query(), node, "query") for node in nodes]
        replies = list(grid.send_and_receive(queries, timeout=QUERY_TIMEOUT))
        answers = {reply.metadata.reply_to_message_id: reply for reply in replies}
        for query in queries:
            node = query.metadata.dst_node_id
            reply = answers.get(query.metadata.message_id)
            before = self._reports.get(node, Report([])).problem
            try:
                report = self._report_of(reply)
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

    def _query(self) -> RecordDict:
        return RecordDict({} if self._check is None else {"check": ConfigRecord(self._check)})

    def _report_of(self, reply: Message | None) -> Report:
        """Read a node's answer, of which nothing is believed to have the right type."""
        clients = self._clients_of(reply)
        assert reply is not None
        said = dict(reply.content.config_records["hosting"])
        samples, problem = said.get("samples"), said.get("problem", "")
        sound = type(samples) is int and 0 <= samples <= MOST_SAMPLES
        return Report(
            clients,
            samples if sound else None,  # type: ignore[arg-type]
            said.get("own-data") is True,
            wire.printable(problem if isinstance(problem, str) else "it does not say why"),
        )

    def _clients_of(self, reply: Message | None) -> list[int]:
        if reply is None:
            raise WireError("no answer in time")
        if reply.has_error():
            raise WireError(wire.error_text(reply))
        record = reply.content.get("hosting") if reply.has_content() else None
        clients = record.get("clients") if isinstance(record, ConfigRecord) else None
        if not isinstance(clients, list):
            said = record.get("error") if isinstance(record, ConfigRecord) else None
            raise WireError(
                wire.printable(said if isinstance(said, str) else "it does not say which")
            )
        sound = (c for c in clients if type(c) is int and 0 <= c < self.num_clients)
        return list(dict.fromkeys(sound))

    def wait_for_all(
        self,
        grid: Grid,
        limit: float,
        needed: int = 1,
        require: str = "no",
        check: dict[str, Any] | None = None,
    ) -> None:
        """Wait for the nodes before the first round.

        With `require` = "yes", or "auto" and a node that has data of its own, every client needs a node that can train
        within `limit` seconds (0: for ever). Otherwise the others have a minute, or `limit` seconds if
        that is less, and the run begins without those that are not there; but for `needed` clients it waits. `check` is
        what nodes are told to check their data with.
        """
        self._check = check
        start, limit = time.monotonic(), limit or float("inf")
        said = float("-inf")
        while True:
            self.update(grid)
            now, required = time.monotonic(), self._all_required(require)
            if len(self._ready() if required else self.clients) == self.num_clients:
                break
            patient = required or len(self.clients) < needed
            if now - start >= (limit if patient else min(limit, WAIT_FOR_ALL)):
                self._demand(require, needed, limit)
                log.warning("Going on with %d of %d clients", len(self.clients), self.num_clients)
                break
            if now - said >= SAY_AGAIN:
                self._say_waiting()
                said = now
            time.sleep(POLL)
        self._begun = True

    def _ready(self) -> list[int]:
        """Return the clients whose nodes can train."""
        return [c for c in self.clients if not self._reports[self.node_of[c]].problem]

    def _all_required(self, require: str) -> bool:
        own_data = any(report.own_data for report in self._reports.values())
        return require == "yes" or (require == "auto" and own_data)

    def _demand(self, require: str, needed: int, limit: float) -> None:
        """End the run if it lacks clients that it cannot begin without."""
        if len(self.clients) < needed:
            raise self._too_few(needed, limit)
        if not self._all_required(require):
            return
        ready = set(self._ready())
        missing = [client for client in range(self.num_clients) if client not in ready]
        auto = "Nodes have data of their own, so"
        why = auto if require == "auto" else 'With require-all-clients = "yes"'
        raise RunError(
            f"{why} every client needs a node that can train before the first "
            f"round, and within node-timeout = {limit:g} seconds {_count(len(missing))} had none, such as client "
            f'{missing[0]} ({self._why_missing(missing[0])}): start or fix those nodes, or set require-all-clients = "no" '
            "to begin without them."
        )

    def _why_missing(self, client: int) -> str:
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

    def has_own_data(self) -> bool:
        """Tell whether a node that is there has data of its own."""
        return any(report.own_data for report in self._reports.values())

    def wait(self, grid: Grid, needed: int, limit: float) -> None:
        """Wait while the nodes that are there host fewer than `needed` clients, at most `limit` seconds (0: for ever)."""
        start, said = time.monotonic(), float("-inf")
        while True:
            self.update(grid)
            now = time.monotonic()
            if len(self.clients) >= needed:
                if said > 0:
                    log.info("Going on with %d of %d clients", len(self.clients), self.num_clients)
                return
            if now - start >= (limit or float("inf")):
                raise self._too_few(needed, limit)
            if now - said >= SAY_AGAIN:
                self._say_waiting()
                said = now
            time.sleep(POLL)

    def _too_few(self, needed: int, limit: float) -> RunError:
        return RunError(
            f"The nodes that are connected host {len(self.clients)} clients, {needed} are needed, and none "
            f"came within node-timeout = {limit:g} seconds: start the missing nodes, and go on with "
            "resume = true."
        )

    def _say_waiting(self) -> None:
        log.warning(
            "Waiting for nodes: those that are there host %d of %d clients",
            len(self.clients),
            self.num_clients,
        )


def _count(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"
