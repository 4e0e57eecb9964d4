"""How often each client took part in a run: one line if all is well, and which clients did not."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from fedapp.wire import Arrays

NAMED = 8  # clients that are named in a line


class Attendance:
    """How often each client's update was used, and how often a client that was invited gave none."""

    def __init__(self, num_clients: int) -> None:
        self._used = np.zeros(num_clients, np.int64)
        self._failed = np.zeros(num_clients, np.int64)

    def took_part(self, clients: Iterable[int]) -> None:
        """Count clients whose updates a round used."""
        np.add.at(self._used, np.fromiter(clients, np.int64), 1)

    def failed(self, clients: Iterable[int]) -> None:
        """Count clients that failed in one attempt at a round."""
        np.add.at(self._failed, np.fromiter(clients, np.int64), 1)

    def summary(self, hosted: Collection[int]) -> list[tuple[str, str]]:
        """Return the rows of the closing summary; `hosted` are the clients that have a node at the end."""
        used, failed, total = self._used, self._failed, len(self._used)
        took_part, never = np.flatnonzero(used), np.flatnonzero(used == 0)
        rows = []
        if len(took_part):
            least, most = int(used[took_part].min()), int(used.max())
            often = _times(most) if least == most else f"{least} to {_times(most)}"
            who = (
                f"all {total} clients" if not len(never) else f"{len(took_part)} of {total} clients"
            )
            rows.append(("took part", f"{who}, {often}"))
        if len(never):
            present = set(hosted)
            broken = sorted((int(c) for c in never if failed[c]), key=lambda c: (-failed[c], c))
            away = [int(c) for c in never if not failed[c] and c not in present]
            reasons = []
            if broken:
                reasons.append(f"failed each time: {_some(broken)}")
            if away:
                reasons.append(f"no node: {_some(away)}")
            if rest := len(never) - len(broken) - len(away):
                reasons.append(f"not drawn: {rest}")
            rows.append(("never took part", f"{_clients(len(never))} ({'; '.join(reasons)})"))
        at_times = [int(c) for c in np.argsort(-failed, kind="stable") if failed[c] and used[c]]
        if at_times:
            times = [f"{c} ({failed[c]} of {used[c] + failed[c]} times)" for c in at_times]
            rows.append(("failed at times", f"{_clients(len(at_times))}: {_some(times)}"))
        absent = sorted(set(range(total)) - set(hosted))
        if absent:
            rows.append(("no node at the end", f"{_clients(len(absent))}: {_some(absent)}"))
        return rows

    def saved(self) -> Arrays:
        """Return the counts, for a checkpoint."""
        return {"used": self._used.copy(), "failed": self._failed.copy()}

    def restore(self, saved: Arrays) -> None:
        """Restore what `saved` returned; an old checkpoint has no counts, which then start at 0."""
        if not saved:
            return
        if any(saved[name].shape != self._used.shape for name in ("used", "failed")):
            raise ValueError(f"it counts the rounds of {len(saved['used'])} clients")
        self._used, self._failed = saved["used"], saved["failed"]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _clients(count: int) -> str:
    return "1 client" if count == 1 else f"{count} clients"


def _some(items: Sequence[object]) -> str:
    """Join the first few, and say how many more there are."""
    more = len(items) - NAMED
    return ", ".join(map(str, items[:NAMED])) + (f" and {more} more" if more > 0 else "")
