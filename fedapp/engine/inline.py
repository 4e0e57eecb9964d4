"""InlineGrid: the Flower `Grid` interface in the calling process."""

from collections.abc import Iterable, Mapping
from logging import getLogger
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapp.engine.local import CLIENT_APP_FAILED, RUN_ID, LocalGrid
from fedapp.state import ContextStore, DirectoryStore, copy_states
from fedapp.tables import Value

log = getLogger("flwr")


class InlineGrid(LocalGrid):
    """Nodes that answer at once, in this process, each with a Context that stays in memory.

    A message is served while it is pushed, so a time limit cannot cut a client short. `contexts` are the nodes, by
    id: one may be changed, added or removed at any time.
    """

    adds_up = True

    def __init__(self, client_app: ClientApp, run_config: dict[str, Value], nodes: int = 1) -> None:
        super().__init__()
        self._app = client_app
        self.contexts = {
            node: Context(
                run_id=RUN_ID,
                node_id=node,
                node_config={"partition-id": node - 1, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for node in range(1, nodes + 1)
        }
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Serve messages, and keep the replies until they are pulled."""
        ids = []
        for message in messages:
            identity = str(uuid4())
            message.metadata.__dict__["_message_id"] = identity
            self._replies[identity] = self.serve(message)
            ids.append(identity)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to messages, each once."""
        return [
            self._replies.pop(identity) for identity in message_ids if identity in self._replies
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Serve messages and return the replies."""
        return self.pull_messages(self.push_messages(messages))

    def save_states(self, store: DirectoryStore, tags: Mapping[int, int]) -> bool:
        """Copy them from the nodes' contexts."""
        for context in self.contexts.values():
            copy_states(ContextStore(context.state), store, tags)
        return True

    def serve(self, message: Message) -> Message:
        """Return the reply of the node that a message is for."""
        try:
            return self._app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            log.exception("The ClientApp raised an exception")
            return Message(Error(CLIENT_APP_FAILED, repr(error)), reply_to=message)
