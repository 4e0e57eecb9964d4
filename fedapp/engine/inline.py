"""InlineGrid: the Flower `Grid` interface in the calling process."""

from collections.abc import Iterable
from logging import getLogger
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedapp.config import Value

log = getLogger("flwr")
CLIENT_APP_RAISED = 2  # Flower's code for an exception in the ClientApp


class InlineGrid(Grid):
    """Nodes that answer at once, in this process, each with a Context that stays in memory.

    A message is served while it is pushed, so a time limit cannot cut a client short.
    """

    def __init__(self, client_app: ClientApp, run_config: dict[str, Value], nodes: int = 1) -> None:
        self._app = client_app
        self._contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": node - 1, "num-partitions": nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for node in range(1, nodes + 1)
        }
        self._replies: dict[str, Message] = {}
        self.set_run(Run.create_empty(run_id=1))

    def set_run(self, run: Run) -> None:
        """Take on a run's identity, which Flower's messages carry."""
        self._run = run
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run.run_id, 0, 1

    @property
    def run(self) -> Run:
        """Return the run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Serve messages, and keep the replies until they are pulled."""
        ids = []
        for message in messages:
            identity = str(uuid4())
            message.metadata.__dict__["_message_id"] = identity
            self._replies[identity] = self._serve(message)
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

    def _serve(self, message: Message) -> Message:
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            log.exception("The ClientApp raised an exception")
            return Message(Error(CLIENT_APP_RAISED, repr(error)), reply_to=message)
