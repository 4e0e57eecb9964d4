"""A server that asks a node whatever it likes, and what the node has counted."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from fedapp import client_app, wire
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.privacy.budget import LEDGER
from fedapp.problems import make_problem
from fedapp.tables import Value
from fedapp.wire import Invitation
from tests.conftest import kebab

KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "quadratic__dim": 100,
    "num_clients": 4,
    "clients_per_round": 4,
    "lr": 1e-9,
    "dp__clip": 0.5,
    "dp__noise_multiplier": 4.0,
    "dp__where": "client",
}


class Hostile:
    """A server that asks a node whatever it likes."""

    def __init__(self, **node: Value) -> None:
        InlineGrid(client_app.app, {})  # sets the identity that Flower's messages carry
        honest = parse_run_config(kebab(KEYS))
        self.arrays = make_strategy(honest, make_problem(honest)).arrays()
        place: dict[str, Value] = {"partition-id": 0, "num-partitions": 1}
        self.node = place | {key.replace("_", "-"): value for key, value in node.items()}
        self.state = RecordDict()

    def ask(self, *clients: int, run: str = "run", **keys: Value) -> RecordDict:
        """Return what the node answers to one invitation."""
        flat = kebab(KEYS | keys)
        context = Context(1, 1, dict(self.node), self.state, flat)
        invitation = Invitation(1, 4, run, "", dict.fromkeys(clients, 0), {})
        message = Message(wire.pack_invitation(invitation, self.arrays), 1, "train")
        return client_app.app(message, context).content

    def update(self, **keys: Any) -> NDArray[Any] | str:
        """Return client 0's update, or why there is none."""
        content = self.ask(0, **keys)
        record = content.get("client.0")
        if isinstance(record, ArrayRecord):
            return wire.arrays_of(record)["u"]
        return str(content.config_records["failures"]["0"])

    def restart(self) -> None:
        """Forget the Context, as a SuperNode that restarts does, and as every new run does."""
        self.state = RecordDict()


def counted(state_dir: Path) -> Counter[str]:
    """Return how often each client released something, from the ledger's file."""
    releases = json.loads((state_dir / LEDGER).read_text())["releases"]
    total: Counter[str] = Counter()
    for clients in releases.values():
        for client, pairs in clients.items():
            total[client] += sum(count for _, count in pairs)
    return total
