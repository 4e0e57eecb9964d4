"""How often each client took part in a run: one line if all is well, and which clients did not."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedapp.wire import Arrays

NAMED = 8  # clients that are named in a line
MOST_IN_FULL = 1_000  # clients whose counts a checkpoint holds all, as older versions read them
Clients = NDArray[np.int64]


class Attendance:
    """How often each client's update was used, and how often a client that was invited gave none."""

    def __init__(self, num_clients: int) -> None:
        self._used = np.zeros(num_clients, np.uint32)
        self._failed = np.zeros(num_clients, np.uint32)

    def took_part(self, clients: Iterable[int]) -> None:
        """Count clients whose updates a round used."""
        np.add.at(self._used, np.fromiter(clients, np.int64), 1)

    def failed(self, clients: Iterable[int]) -> None:
        """Count clients that failed in one attempt at a round."""
        np.add.at(self._failed, np.fromiter(clients, np.int64), 1)

    def summary(self, hosted: Sequence[int]) -> list[tuple[str, str]]:
        """Return the rows of the closing summary; `hosted` are the clients that have a node at the end."""
        used, failed, total = self._used, self._failed, len(self._used)
        present = np.zeros(total, bool)
        if isinstance(hosted, range):  # NumPy would make a list of it
            present[hosted.start : hosted.stop : hosted.step] = True
        else:
            present[np.asarray(hosted, np.int64)] = True
        took_part = np.flatnonzero(used)
        never = total - len(took_part)
        rows = []
        if len(took_part):
            least, most = int(used[took_part].min()), int(used.max())
            often = _times(most) if least == most else f"{least} to {_times(most)}"
            who = f"all {total} clients" if not never else f"{len(took_part)} of {total} clients"
            rows.append(("took part", f"{who}, {often}"))
        if never:
            broken = self._most_failures_first(np.flatnonzero((used == 0) & (failed > 0)))
            away = np.flatnonzero((used == 0) & (failed == 0) & ~present)
            reasons = []
            if len(broken):
                reasons.append(f"failed each time: {_some(broken)}")
            if len(away):
                reasons.append(f"no node: {_some(away)}")
            if rest := never - len(broken) - len(away):
                reasons.append(f"not drawn: {rest}")
            rows.append(("never took part", f"{_clients(never)} ({'; '.join(reasons)})"))
        at_times = self._most_failures_first(np.flatnonzero((failed > 0) & (used > 0)))
        if len(at_times):
            times = _some(at_times, lambda c: f"{c} ({failed[c]} of {used[c] + failed[c]} times)")
            rows.append(("failed at times", f"{_clients(len(at_times))}: {times}"))
        if len(absent := np.flatnonzero(~present)):
            rows.append(("no node at the end", f"{_clients(len(absent))}: {_some(absent)}"))
        return rows

    def _most_failures_first(self, clients: Clients) -> Clients:
        failed = self._failed[clients].astype(np.int64)
        return clients[np.argsort(-failed, kind="stable")]

    def saved(self) -> Arrays:
        """Return the counts, for a checkpoint: of all clients, or, if these are many, of those who have any."""
        if len(self._used) <= MOST_IN_FULL:
            return {"used": self._used.astype(np.int64), "failed": self._failed.astype(np.int64)}
        clients = np.flatnonzero(self._used | self._failed)
        return {
            "clients": clients.astype(np.uint32),
            "used": self._used[clients],
            "failed": self._failed[clients],
        }

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved` returned; an old checkpoint has no counts, which then start at 0."""
        if not saved:
            return
        clients = saved.get("clients", np.arange(len(self._used)))
        shapes = {clients.shape, saved["used"].shape, saved["failed"].shape}
        if len(shapes) > 1 or clients.max(initial=0) >= len(self._used):
            raise ValueError(f"it counts the rounds of {len(saved['used'])} clients")
        for counts, name in ((self._used, "used"), (self._failed, "failed")):
            counts[:] = 0
            counts[clients] = saved[name]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _some(clients: Clients, shown: Callable[[int], str] = str) -> str:
    """Join the first few, and say how many more there are."""
    more = len(clients) - NAMED
    named = ", ".join(map(shown, clients[:NAMED].tolist()))
    return named + (f" and {more} more" if more > 0 else "")
