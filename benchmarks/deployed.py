"""Seconds a round on a real federation, and where they go: `python -m benchmarks.deployed [--nodes 3] [--rounds 8] [--cold]`.

Starts a SuperLink and SuperNodes on loopback, runs the app on them, and notes when each line comes to a node's log. A
round is measured from one line of `rounds.jsonl` to the next; the first is left out, since it loads what later ones have. With --cold
the nodes have no warm workers. Other keys of the run: -c, as with `fedapp run`.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from deploy.processes import Federation, assignments
from fedapp.commandline import absolute_paths, read_overrides
from fedapp.tables import Value

LOOK_EVERY = 0.02  # seconds
# What a node logs of a message, in this order, and what it has done since the line before.
STEPS = {
    "Receiving: train": "the node asks for messages every 3 s; the server aggregates and evaluates meanwhile",
    "Start `flwr-clientapp`": "the node fetches the message; a Python process starts and imports Flower",
    "Start FAB installation": "the process fetches the message from its node",
    "Start `ClientApp` Loading": "the process unpacks the app and checks it",
    "Asking the warm worker": "the process imports the app's front",
    "The warm worker has answered": "the warm worker trains",
    "Sending: train": "the answer goes to the node, which looks for it every 0.5 s (--cold: with import and training)",
    "round recorded": "the answer goes to the server, which looks for it every 0.1 to 0.3 s; the slowest node's",
}


class Watched:
    """A file that grows, and when the lines that matter came."""

    def __init__(self, path: Path, marks: Sequence[str]) -> None:
        self.path, self.marks = path, marks
        self.seen: list[tuple[float, str]] = []
        self._read = 0

    def look(self) -> None:
        """Note the lines that have come since the last time."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        now = time.monotonic()
        for line in whole.decode(errors="replace").splitlines():
            self.seen += [(now, mark) for mark in self.marks if mark in line][:1]


def run(
    nodes: int, keys: dict[str, Value], cold: bool, home: Path
) -> tuple[list[Watched], Watched]:
    """Run the app; return what the nodes logged when, and when rounds were recorded."""
    results = home / "results"
    run_keys = {"results-dir": str(results), "run-name": "measured"} | keys
    federation = Federation(home)
    federation.environment["FLWR_LOG_LEVEL"] = "DEBUG"
    logs = [Watched(home / f"node-{place}.log", list(STEPS)) for place in range(nodes)]
    rounds = Watched(results / "measured" / "rounds.jsonl", ['"round"'])
    with federation:
        for place in range(nodes):
            own: dict[str, Value] = {"partition-id": place, "num-partitions": nodes}
            federation.start_node(place, own | ({"warm-worker": False} if cold else {}))
        with (home / "run.txt").open("wb") as shown:
            process = federation.start_run(assignments(run_keys), shown=shown)
            while process.poll() is None:
                for file in (*logs, rounds):
                    file.look()
                time.sleep(LOOK_EVERY)
        if federation.ended_run().get("status") != "finished:completed":
            raise SystemExit((home / "run.txt").read_text(errors="replace"))
    return logs, rounds


def steps_of(log: Watched, recorded: Sequence[float]) -> Iterator[dict[str, float]]:
    """Yield the seconds of each step of a node's messages, for each round but the first in which it took part."""
    for before, after in pairwise(recorded):
        lines = [(at, mark) for at, mark in log.seen if before < at <= after]
        if not any(mark == "Sending: train" for _, mark in lines):
            continue
        seconds: dict[str, float] = {}
        last = before
        for at, mark in [*lines, (after, "round recorded")]:
            seconds[mark] = seconds.get(mark, 0.0) + at - last
            last = at
        yield seconds


def main(words: Sequence[str] | None = None) -> int:
    """Run a federation, and print what a round took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cold", action="store_true", help="no warm workers")
    parser.add_argument("-c", dest="config", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args(words)
    keys = {"num-rounds": arguments.rounds} | read_overrides([], arguments.config)
    with tempfile.TemporaryDirectory(prefix="fedapp-deployed-") as home:
        logs, rounds = run(arguments.nodes, absolute_paths(keys), arguments.cold, Path(home))
    recorded = [at for at, _ in rounds.seen]
    lengths = [after - before for before, after in pairwise(recorded)]
    found: dict[str, list[float]] = defaultdict(list)
    for log in logs:
        for seconds in steps_of(log, recorded):
            for step, length in seconds.items():
                found[step].append(length)
    result = {
        "nodes": arguments.nodes,
        "warm": not arguments.cold,
        "rounds": len(lengths),
        "seconds_a_round": round(statistics.median(lengths), 2),
        "from": round(min(lengths), 2),
        "to": round(max(lengths), 2),
    }
    print(json.dumps(result))
    for step, meaning in STEPS.items():
        if step in found:
            print(f"{statistics.median(found[step]):6.2f} s  {meaning}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
