"""The ClientApp: what Flower calls on a node, for one message.

Deployed, Flower starts a process for every message. So nothing here takes long to import: a message goes to the node's
warm worker (`warm/`), which has torch and the data already, or is served in this process (`node.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedapp.warm import front

if TYPE_CHECKING:
    from fedapp.config import RunConfig
    from fedapp.tables import Value


class _NodeApp(ClientApp):
    """The ClientApp, whatever the message asks for."""

    def __call__(self, message: Message, context: Context) -> Message:
        """Serve a message; the context's state is then the node's next one."""
        answer = front.ask(message, context)
        if answer is not None:
            return answer
        from fedapp import node  # slow to import: torch

        return node.app(message, context)


app = _NodeApp()


class _BoundClientApp(ClientApp):
    """The ClientApp with its own config instead of the run's."""

    def __init__(self, run_config: "dict[str, Value]") -> None:
        super().__init__()
        self._run_config = run_config

    def __call__(self, message: Message, context: Context) -> Message:
        """Serve a message; the state is that of the node's own Context."""
        return app(message, replace(context, run_config=self._run_config))


def make_client_app(config: "RunConfig | Mapping[str, Any]") -> ClientApp:
    """Return a ClientApp for a config, or a dict of its keys: for the strategy of `make_strategy` in another Flower app.

    It does not read the other app's run config. Each node says in its own config which clients it hosts, as Flower's
    simulation does for its nodes.
    """
    from fedapp.keywords import as_config

    return _BoundClientApp(as_config(config).flat())
