"""The messages of one attempt at a round, or of one evaluation, and which answers count."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID

from fedapp import wire
from fedapp.downlink import Parcel
from fedapp.refusals import Reason, Refusal
from fedapp.wire import EvaluationRequest, Evaluations, Invitation, Reply, Spec

Read = TypeVar("Read")


@dataclass
class Exchange:
    """What was sent to whom."""

    sent: list[tuple[Metadata, list[int]]] = field(default_factory=list)  # and for which clients
    sums: bool = False  # nodes were asked to add their clients' updates up
    downlink_bytes: int = 0
    downlink_overhead: int = 0  # bytes of what is sent beside the arrays' data

    def invite(
        self,
        node: int,
        invitation: Invitation,
        parcel: Parcel,
        timeout: float,
        frozen: ArrayRecord | None = None,
    ) -> Message:
        """Return the message that invites some of a node's clients; `frozen` is for a node that lacks it."""
        invitation = replace(invitation, model=parcel.model, base=parcel.base)
        content = wire.pack_invitation(invitation, parcel.shared)
        clients = list(invitation.accepted)
        self.downlink_bytes += sum(map(wire.nbytes, parcel.alone)) + wire.per_client_nbytes(content)
        self.downlink_overhead += wire.per_client_overhead(content, parcel.alone)
        self._add_frozen(content, frozen)
        return self._message(node, content, "train", invitation.round, clients, timeout)

    def ask_to_evaluate(
        self,
        node: int,
        request: EvaluationRequest,
        shared: ArrayRecord,
        timeout: float,
        frozen: ArrayRecord | None = None,
    ) -> Message:
        """Return the message that asks some of a node's clients to evaluate a model."""
        content = wire.pack_evaluation_request(request, shared)
        self.downlink_bytes += len(request.clients) * wire.nbytes(shared)
        self._add_frozen(content, frozen)
        return self._message(node, content, "evaluate", request.round, request.clients, timeout)

    def _add_frozen(self, content: RecordDict, frozen: ArrayRecord | None) -> None:
        if frozen is not None:
            content[wire.FROZEN] = frozen
            self.downlink_bytes += wire.nbytes(frozen)

    def _message(
        self, node: int, content: RecordDict, kind: str, round_: int, clients: list[int], ttl: float
    ) -> Message:
        message = Message(content, node, kind, group_id=str(round_), ttl=ttl or None)
        self.sent.append((message.metadata, clients))
        return message

    def read(self, messages: Iterable[Message], spec_of: Callable[[int], Spec]) -> Reply:
        """Return the nodes' answers as one; a client whose node gave none is refused.

        Each is decoded as it arrives, while other nodes still train.
        """

        def unpack(message: Message, clients: list[int]) -> Reply:
            return wire.unpack_reply(message, {c: spec_of(c) for c in clients}, self.sums)

        whole = Reply()
        for clients, reply in self._answers(messages, unpack):
            if reply is None:
                whole.refusals += _unanswered(clients)
                continue
            whole.updates += reply.updates
            whole.refusals += reply.refusals
            whole.uplink_bytes += reply.uplink_bytes
            whole.uplink_overhead += reply.uplink_overhead
            whole.added_up |= reply.added_up
            whole.sums += reply.sums
        return whole

    def read_evaluations(self, messages: Iterable[Message]) -> Evaluations:
        """Return the nodes' evaluations as one; a client whose node gave none is refused."""
        whole = Evaluations()
        for clients, answer in self._answers(messages, wire.unpack_evaluations):
            if answer is None:
                whole.refusals += _unanswered(clients)
                continue
            whole.results += answer.results
            whole.refusals += answer.refusals
            whole.uplink_bytes += answer.uplink_bytes
        return whole

    def _answers(
        self, messages: Iterable[Message], unpack: Callable[[Message, list[int]], Read]
    ) -> list[tuple[list[int], Read | None]]:
        """Return for each message sent, in that order, its clients and what the answer to it says.

        That is the first answer of its own node, or Flower's word that there is none.
        """
        asked = {sent.message_id: (sent, clients) for sent, clients in self.sent}
        answers: dict[str, Read] = {}
        for message in messages:
            told = message.metadata
            identity = told.reply_to_message_id
            if identity not in asked or identity in answers:
                continue
            sent, clients = asked[identity]
            flowers = message.has_error() and told.src_node_id == SUPERLINK_NODE_ID
            nodes = (told.src_node_id, told.message_type) == (sent.dst_node_id, sent.message_type)
            if flowers or nodes:
                answers[identity] = unpack(message, clients)
        return [(clients, answers.get(sent.message_id)) for sent, clients in self.sent]


def _unanswered(clients: Iterable[int]) -> list[Refusal]:
    return [Refusal(client, Reason.NO_ANSWER, "no answer in time") for client in clients]
