"""Nodes whose configs a test sets, and that come and go."""

import copy
from collections.abc import Callable
from typing import Any

from flwr.app import Message

from fedapp import client_app
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from tests.conftest import kebab

SMALL: dict[str, Value] = {
    "model": "mlp-4", "num-clients": 6, "clients-per-round": 6, "num-rounds": 3, "local-steps": 1,
    "partition": "iid", "node-timeout": 0.5, "round-retries": 0,
}  # fmt: skip
REFUSED = "The server lets this node host no clients: "


class Nodes(InlineGrid):
    """Nodes whose configs a test sets, and that come and go before the round that it names."""

    def __init__(self, config: Any, *node_configs: dict[str, Any]) -> None:
        super().__init__(client_app.app, config.flat(), len(node_configs))
        for context, own in zip(self.contexts.values(), node_configs, strict=True):
            context.node_config |= own
        self.before: dict[int, Callable[[], object]] = {}  # round -> what happens before it
        self.round = 0
        self.served: list[tuple[str, int]] = []

    def get_node_ids(self) -> list[int]:
        self.before.pop(self.round + 1, lambda: None)()
        return list(self.contexts)

    def serve(self, message: Message) -> Message:
        self.served.append((message.metadata.message_type, message.metadata.dst_node_id))
        if message.metadata.message_type == "train":
            self.round = message.content.config_records["round"]["round"]  # type: ignore[assignment]
        return super().serve(message)

    def add(self, node: int, **node_config: Any) -> None:
        """Let a node come."""
        (first, *_) = self.contexts.values()
        own: dict[str, Any] = {"partition-id": 0, "num-partitions": 3}
        own |= {key.replace("_", "-"): value for key, value in node_config.items()}
        context = copy.deepcopy(first)
        context.node_config = own
        self.contexts[node] = context


def place(place: int, places: int = 3, **more: Any) -> dict[str, Any]:
    return {"partition-id": place, "num-partitions": places} | more


def grid_of(*node_configs: dict[str, Any], **keys: Value) -> tuple[Any, Nodes]:
    config = parse_run_config(SMALL | kebab(keys))
    return config, Nodes(config, *node_configs)
