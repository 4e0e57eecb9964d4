"""Which node is home to which clients, as ranges: a million clients on a few nodes take no memory.

A node that claims other clients than those of a range is remembered client by client.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from math import gcd

import numpy as np


class Homes(Mapping[int, int]):
    """The node of each client that has one."""

    def __init__(self) -> None:
        self._ranges: dict[int, range] = {}  # node -> its clients
        # Step of a range -> its first client modulo the step -> the nodes with such a range
        self._by_step: dict[int, dict[int, list[int]]] = {}
        self._listed: dict[int, int] = {}  # client -> node, for clients that are not in a range

    def __getitem__(self, client: int) -> int:
        """Return a client's node."""
        if client in self._listed:
            return self._listed[client]
        for step, nodes in self._by_step.items():
            for node in nodes.get(client % step, ()):
                if client in self._ranges[node]:
                    return node
        raise KeyError(client)

    def __iter__(self) -> Iterator[int]:
        """Go through the clients in the order of their ids."""
        return iter(self.clients_of(self.nodes))

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._listed) + sum(map(len, self._ranges.values()))

    @property
    def nodes(self) -> set[int]:
        """The nodes that are home to a client."""
        return {*self._ranges, *self._listed.values()}

    def clients_of(self, nodes: Collection[int]) -> Sequence[int]:
        """Return the clients of some nodes, in order: 8 bytes each, or nothing if they are all from 0 on."""
        ranges = [clients for node, clients in self._ranges.items() if node in nodes]
        listed = [client for client, node in self._listed.items() if node in nodes]
        count = len(listed) + sum(map(len, ranges))
        last = max([*listed, *(clients[-1] for clients in ranges)], default=-1)
        if count == last + 1:
            return range(count)
        parts = [np.array(listed, np.int64), *(_array(clients) for clients in ranges)]
        return array("q", np.sort(np.concatenate(parts)).tobytes())

    def add(self, node: int, claim: Sequence[int]) -> None:
        """Make a node the home of clients that have none."""
        if not isinstance(claim, range):
            self._listed |= dict.fromkeys(claim, node)
        elif claim:
            self._ranges[node] = claim
            nodes = self._by_step.setdefault(claim.step, {})
            nodes.setdefault(claim.start % claim.step, []).append(node)

    def remove(self, nodes: Collection[int]) -> None:
        """Forget the clients of some nodes."""
        for node in self._ranges.keys() & set(nodes):
            claim = self._ranges.pop(node)
            alike = self._by_step[claim.step]
            alike[claim.start % claim.step].remove(node)
            if not alike[claim.start % claim.step]:
                del alike[claim.start % claim.step]
            if not alike:
                del self._by_step[claim.step]
        if any(node in nodes for node in self._listed.values()):
            self._listed = {c: node for c, node in self._listed.items() if node not in nodes}

    def replace(self, node: int, claim: Sequence[int]) -> None:
        """Make a node the home of clients, whoever was before: a node with an overlapping range loses all of it."""
        if isinstance(claim, range):
            self.remove({other for other, _ in self._overlaps(claim)} | {node})
            self._listed = {c: other for c, other in self._listed.items() if c not in claim}
        self.add(node, claim)

    def is_home(self, node: int, claim: Sequence[int]) -> bool:
        """Tell whether a node is the home of all these clients."""
        if isinstance(claim, range) and self._ranges.get(node) == claim:
            return not any(client in claim for client in self._listed)
        return all(self.get(client) == node for client in claim)

    def taken(self, claim: Sequence[int]) -> tuple[int, int]:
        """Return how many of these clients have a home, and the first of them; -1 if none has."""
        if not isinstance(claim, range):
            found = [client for client in claim if client in self]
            return len(found), found[0] if found else -1
        listed = [client for client in self._listed if client in claim]
        shared = [clients for _, clients in self._overlaps(claim)]
        first = min([*listed, *(clients[0] for clients in shared)], default=-1)
        return len(listed) + sum(map(len, shared)), first

    def _overlaps(self, claim: range) -> Iterator[tuple[int, range]]:
        """Yield the nodes whose ranges share clients with a claim, and which these are."""
        for step, nodes in self._by_step.items():
            same = step == claim.step  # then two ranges share all or nothing of what both reach
            found = nodes.get(claim.start % step, ()) if same else chain(*nodes.values())
            for node in found:
                if shared := intersection(self._ranges[node], claim):
                    yield node, shared


def intersection(one: range, other: range) -> range:
    """Return what two ascending ranges have in common."""
    common = gcd(one.step, other.step)
    apart = other.start - one.start
    if apart % common:
        return range(0)
    # one.start + one.step * k = other.start modulo other.step
    period = other.step // common
    k = apart // common * pow(one.step // common, -1, period) % period
    step = one.step * period
    first = one.start + one.step * k
    lowest = max(one.start, other.start)
    first += -(-max(lowest - first, 0) // step) * step
    return range(first, max(first, min(one.stop, other.stop)), step)


def _array(clients: range) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.arange(clients.start, clients.stop, clients.step)
