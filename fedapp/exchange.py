"""The messages of one attempt at a round, and which answers count."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID

from fedapp import wire
from fedapp.refusals import Reason, Refusal
from fedapp.wire import Invitation, Reply, Spec


@dataclass
class Exchange:
    """What was sent to whom."""

    sent: list[tuple[Metadata, list[int]]] = field(default_factory=list)  # and for which clients
    downlink_bytes: int = 0

    def invite(
        self,
        node: int,
        invitation: Invitation,
        shared: ArrayRecord,
        timeout: float,
        frozen: ArrayRecord | None = None,
    ) -> Message:
        """Return the message that invites some of a node's clients; `frozen` is for a node that lacks it."""
        content: RecordDict = wire.pack_invitation(invitation, shared)
        clients = list(invitation.accepted)
        alone = wire.per_client_nbytes(content)
        self.downlink_bytes += len(clients) * wire.nbytes(shared) + alone
        if frozen is not None:
            content[wire.FROZEN] = frozen
            self.downlink_bytes += wire.nbytes(frozen)
        group = str(invitation.round)
        message = Message(content, node, "train", group_id=group, ttl=timeout or None)
        self.sent.append((message.metadata, clients))
        return message

    def read(self, messages: Iterable[Message], spec_of: Callable[[int], Spec]) -> Reply:
        """Return the nodes' answers as one; a client whose node gave none is refused."""
        answers = self._answers(messages)
        whole = Reply()
        for sent, clients in self.sent:
            if (message := answers.get(sent.message_id)) is None:
                whole.refusals += [
                    Refusal(client, Reason.NO_ANSWER, "no answer in time") for client in clients
                ]
                continue
            reply = wire.unpack_reply(message, {client: spec_of(client) for client in clients})
            whole.updates += reply.updates
            whole.refusals += reply.refusals
            whole.uplink_bytes += reply.uplink_bytes
        return whole

    def _answers(self, messages: Iterable[Message]) -> dict[str, Message]:
        """Return the first answer to each message that its own node gave; or Flower's word that there is none."""
        asked = {sent.message_id: sent for sent, _ in self.sent}
        answers: dict[str, Message] = {}
        for message in messages:
            told = message.metadata
            sent = asked.get(told.reply_to_message_id)
            if sent is None:
                continue
            flowers = message.has_error() and told.src_node_id == SUPERLINK_NODE_ID
            nodes = (told.src_node_id, told.message_type) == (sent.dst_node_id, sent.message_type)
            if flowers or nodes:
                answers.setdefault(sent.message_id, message)
        return answers
