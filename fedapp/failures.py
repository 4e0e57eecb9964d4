"""The log of failed clients: each reason once, and only a few of one client or node."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from fedapp.refusals import Refusal

log = logging.getLogger("flwr")
MOST_OF_CLIENT = 3  # different reasons of one client's failures that are logged
MOST_OF_NODE = 20  # lines for all the clients of one node


class FailureLog:
    """What was logged so far."""

    def __init__(self) -> None:
        self._reasons_logged: set[str] = set()
        self._of_client = Counter[int]()
        self._of_node = Counter[int]()
        self._lost_state_logged = False

    @property
    def logged(self) -> int:
        """How many reasons were logged."""
        return len(self._reasons_logged)

    def log(self, refusals: Sequence[Refusal], node_of: Mapping[int, int]) -> None:
        """Log the reasons that are new."""
        for refusal in sorted(refusals, key=lambda refusal: refusal.client):
            client, text = refusal.client, refusal.text
            if text in self._reasons_logged or self._of_client[client] >= MOST_OF_CLIENT:
                continue
            node = node_of.get(client, 0)  # 0: its node has left
            if self._of_node[node] > MOST_OF_NODE:
                continue
            self._of_node[node] += 1
            if self._of_node[node] > MOST_OF_NODE:
                whose = f"node {node}" if node else "nodes that have left"
                log.warning(
                    "Clients of %s failed for %d different reasons; further ones are counted, and not logged",
                    whose,
                    MOST_OF_NODE,
                )
                continue
            self._reasons_logged.add(text)
            self._of_client[client] += 1
            log.warning("Client %d failed: %s", client, text)

    def log_lost_state(self, client: int, round_: int, reset: bool) -> None:
        """Log that a client has lost its state: each time all states are reset, otherwise once."""
        if reset:
            log.warning(
                "CLIENT STATE IS LOST: client %d (and maybe others) no longer has what it remembered; "
                "after round %d all states restart together, from this model",
                client,
                round_,
            )
        elif not self._lost_state_logged:
            self._lost_state_logged = True
            log.warning(
                "CLIENT STATE IS LOST: client %d (and maybe others) no longer has what it remembered and restarts "
                "without it, so drift correction is no longer exact; set state-dir to keep it across restarts, or "
                'on-lost-state = "reset" to restart all states together',
                client,
            )
