"""Whole numbers of very many clients, 8 bytes for each: a dict takes a hundred."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class ClientNumbers(Mapping[int, int]):
    """A number, not 0, for some of the clients; the others have 0, and memory that is not written to takes none."""

    def __init__(self, clients: Any = (), numbers: Any = ()) -> None:
        self._numbers: Numbers = np.zeros(0, np.int64)
        self.put(clients, numbers)

    def put(self, clients: Any, numbers: Any) -> None:
        """Set the numbers of some clients, or one number for all of these."""
        places, values = np.asarray(clients, np.int64), np.asarray(numbers, np.int64)
        if not values.any():  # which takes no memory
            self._numbers[places[places < len(self._numbers)]] = 0
            return
        if (needed := int(places.max(initial=-1)) + 1) > len(self._numbers):
            grown = np.zeros(max(needed, 2 * len(self._numbers)), np.int64)
            grown[: len(self._numbers)] = self._numbers
            self._numbers = grown
        self._numbers[places] = values

    def at(self, clients: Sequence[int] | Numbers) -> Numbers:
        """Return the numbers of some clients."""
        places = np.asarray(clients, np.int64)
        found = np.zeros(len(places), np.int64)
        known = places < len(self._numbers)
        found[known] = self._numbers[places[known]]
        return found

    def rows(self) -> tuple[Numbers, Numbers]:
        """Return the clients that have a number, in the order of their ids, and their numbers."""
        clients = np.flatnonzero(self._numbers)
        return clients, self._numbers[clients]

    def __getitem__(self, client: int) -> int:
        """Return a client's number."""
        number = int(self._numbers[client]) if 0 <= client < len(self._numbers) else 0
        if not number:
            raise KeyError(client)
        return number

    def __iter__(self) -> Iterator[int]:
        """Go through the clients that have a number, in the order of their ids."""
        return iter(self.rows()[0].tolist())

    def __len__(self) -> int:
        """Return how many clients have a number."""
        return int(np.count_nonzero(self._numbers))


class TalliedNumbers(ClientNumbers):
    """The same, and which numbers there are without going through all clients: for few different ones."""

    def __init__(self, clients: Any = (), numbers: Any = ()) -> None:
        self._tally = Counter[int]()  # number -> how many clients have it
        super().__init__(clients, numbers)

    def put(self, clients: Any, numbers: Any) -> None:
        """Set the numbers of some different clients, or one number for all of these."""
        places = np.asarray(clients, np.int64)
        self._tally.subtract(self.at(places).tolist())
        super().put(places, numbers)
        self._tally.update(self.at(places).tolist())
        self._tally = +self._tally  # without those that nobody has any more

    @property
    def distinct(self) -> Set[int]:
        """The different numbers."""
        return self._tally.keys() - {0}
