"""Which node hosts which logical clients.

Node p of P hosts the clients c with c mod P = p. The server does not assume that: it asks every
node that it has not met.
"""

import logging
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedapp.errors import ConfigError, RunError

log = logging.getLogger("flwr")
QUERY_TIMEOUT = 120.0  # a node's first message may have to load torch
WAIT_FOR_NODES = 60.0


def hosted_clients(node_config: dict[str, bool | int | float | str], num_clients: int) -> list[int]:
    """Return the clients that a node hosts, from its node config."""
    place, places = node_config.get("partition-id"), node_config.get("num-partitions")
    if not isinstance(place, int) or not isinstance(places, int) or not 0 <= place < places:
        raise ConfigError(
            "A node's config must say which clients it hosts, for example "
            '--node-config "partition-id=0 num-partitions=2".'
        )
    return list(range(place, num_clients, places))


class Hosting:
    """The clients of every node that has been asked."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients
        self._met: dict[int, list[int]] = {}
        self.node_of: dict[int, int] = {}  # of the clients whose node is connected now

    def update(self, grid: Grid) -> None:
        """Ask the nodes that are new which clients they host; forget those that have left."""
        nodes = list(grid.get_node_ids())
        if new := [node for node in nodes if node not in self._met]:
            queries = [Message(RecordDict(), node, "query") for node in new]
            for reply in grid.send_and_receive(queries, timeout=QUERY_TIMEOUT):
                self._met[reply.metadata.src_node_id] = self._clients_of(reply)
        self.node_of = {}
        for node in nodes:
            for client in self._met.get(node, []):
                if self.node_of.setdefault(client, node) != node:
                    log.warning("Client %d is hosted by two nodes; one of them is left out", client)

    def _clients_of(self, reply: Message) -> list[int]:
        node = reply.metadata.src_node_id
        if reply.has_error():
            reason = (reply.error.reason or "it gave no reason").strip().splitlines()[-1]
            log.warning("Node %d hosts no clients: %s", node, reason)
            return []
        record = reply.content.config_records.get("hosting", ConfigRecord())
        clients = record.get("clients")
        if not isinstance(clients, list):
            log.warning("Node %d hosts no clients: %s", node, record.get("error", "no answer"))
            return []
        return [c for c in clients if isinstance(c, int) and 0 <= c < self.num_clients]

    def wait(self, grid: Grid, limit: float = WAIT_FOR_NODES) -> None:
        """Wait until every client is hosted by some node; after `limit` seconds make do."""
        end, said = time.monotonic() + limit, -1
        while True:
            self.update(grid)
            found = len(self.node_of)
            if found == self.num_clients:
                return
            if time.monotonic() > end:
                break
            if found != said:
                log.info("Waiting for nodes: %d of %d clients so far", found, self.num_clients)
                said = found
            time.sleep(0.2)
        if not self.node_of:
            raise RunError(f"No node that hosts a client has connected within {limit:.0f} seconds.")
        log.warning("Going on with %d of %d clients", len(self.node_of), self.num_clients)
