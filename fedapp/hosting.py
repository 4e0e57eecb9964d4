"""Which node hosts which logical clients.

Node p of P hosts the clients c with c mod P = p. The server does not assume that: it asks every
node that it has not met.
"""

import logging
import time

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


def hosted_clients(node_config: dict[str, bool | int | float | str], num_clients: int) -> range:
    """Return the clients that a node hosts, from its node config."""
    place, places = node_config.get("partition-id"), node_config.get("num-partitions")
    if not isinstance(place, int) or not isinstance(places, int) or not 0 <= place < places:
        raise ConfigError(
            "A node's config must say which clients it hosts, for example "
            '--node-config "partition-id=0 num-partitions=2".'
        )
    return range(place, num_clients, places)


class Hosting:
    """The clients of every node that has been asked.

    A node that gives no answer, or an error, is asked again, after ever longer pauses.
    """

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self.node_of: dict[int, int] = {}  # of the clients whose node is connected now
        self.clients: list[int] = []  # those clients, in order
        self._nodes: set[int] = set()
        self._met: dict[int, list[int]] = {}
        self._ask_again: dict[int, tuple[float, float]] = {}  # node -> when, and the pause after
        self._twice: set[int] = set()

    def update(self, grid: Grid) -> None:
        """Ask the nodes that are new which clients they host; forget those that have left."""
        nodes = set(grid.get_node_ids())
        self._met = {node: clients for node, clients in self._met.items() if node in nodes}
        now = time.monotonic()
        new = [n for n in nodes - set(self._met) if self._ask_again.get(n, (0.0, 0.0))[0] <= now]
        if new:
            self._ask(grid, new)
        elif nodes == self._nodes:
            return
        self._nodes = nodes
        before, self.node_of = self.node_of, {}
        for client, node in before.items():  # a client stays with its node while that is there
            if node in nodes:
                self.node_of[client] = node
        # The node with the shorter list comes first: one that claims every client takes none from others.
        for node in sorted(nodes & set(self._met), key=lambda node: (len(self._met[node]), node)):
            taken = [c for c in self._met[node] if self.node_of.setdefault(c, node) != node]
            if taken and node not in self._twice:
                self._twice.add(node)
                log.warning(
                    "Node %d claims %d clients that other nodes host, such as client %d: they stay with those",
                    node,
                    len(taken),
                    taken[0],
                )
        self.clients = sorted(self.node_of)

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        queries = [Message(RecordDict(), node, "query") for node in nodes]
        replies = list(grid.send_and_receive(queries, timeout=QUERY_TIMEOUT))
        answers = {reply.metadata.reply_to_message_id: reply for reply in replies}
        for query in queries:
            node = query.metadata.dst_node_id
            reply = answers.get(query.metadata.message_id)
            try:
                self._met[node] = self._clients_of(reply)
            except WireError as error:
                pause = self._ask_again.get(node, (0.0, FIRST_PAUSE))[1]
                if pause == FIRST_PAUSE:
                    log.warning("Node %d hosts no clients: %s", node, error)
                self._ask_again[node] = (time.monotonic() + pause, 2 * pause)

    def _clients_of(self, reply: Message | None) -> list[int]:
        if reply is None:
            raise WireError("no answer in time")
        if reply.has_error():
            raise WireError(wire.reason_of(reply))
        record = reply.content.get("hosting") if reply.has_content() else None
        clients = record.get("clients") if isinstance(record, ConfigRecord) else None
        if not isinstance(clients, list):
            said = record.get("error") if isinstance(record, ConfigRecord) else None
            raise WireError(
                wire.printable(said if isinstance(said, str) else "it does not say which")
            )
        sound = (c for c in clients if type(c) is int and 0 <= c < self.num_clients)
        return list(dict.fromkeys(sound))

    def wait_for_all(self, grid: Grid, limit: float) -> None:
        """Give every node a minute to connect, or `limit` seconds if that is less; go on without the others."""
        limit = min(limit or WAIT_FOR_ALL, WAIT_FOR_ALL)
        if not self._wait(grid, self.num_clients, limit) and self.clients:
            log.warning("Going on with %d of %d clients", len(self.clients), self.num_clients)

    def wait(self, grid: Grid, needed: int, limit: float) -> None:
        """Wait while the nodes that are there host fewer than `needed` clients, at most `limit` seconds (0: for ever)."""
        if not self._wait(grid, needed, limit or float("inf")):
            raise RunError(
                f"The nodes that are connected host {len(self.clients)} clients, {needed} are needed, and none "
                f"came within node-timeout = {limit:g} seconds: start the missing nodes, and go on with "
                "resume = true."
            )

    def _wait(self, grid: Grid, needed: int, limit: float) -> bool:
        """Ask until there are nodes enough; tell whether there are."""
        start, said, missed = time.monotonic(), float("-inf"), False
        while True:
            self.update(grid)
            now = time.monotonic()
            if len(self.clients) >= needed:
                if missed:
                    log.info("Going on with %d of %d clients", len(self.clients), self.num_clients)
                return True
            if now - start >= limit:
                return False
            if now - said >= SAY_AGAIN:
                log.warning(
                    "Waiting for nodes: those that are there host %d of %d clients",
                    len(self.clients),
                    self.num_clients,
                )
                said, missed = now, True
            time.sleep(POLL)
