"""Answers from a SuperLink, pulled one by one.

Flower's HttpGrid puts an answer together from objects that the node made. One that cannot be put together raises, and
takes all the others with it: a node could end a run so. And whom an answer says it answers is the node's word; the
message that it was asked for with is not. They are pulled one by one, because Flower tells the SuperLink that it has the answers, which
then forgets them, before it raises.

A registered node may also send the server messages that answer nothing; Flower returns them with whatever is pulled
next. They are dropped: they are no other client's answer.

Flower asks for answers every three seconds, so that a round waits for one and a half of them on average. `poll_often`
asks sooner where few answers are missing and the round is young, and hands on each answer as it arrives: it is decoded
while others are awaited.
"""

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PullAppMessagesResponse

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

REQUEST_EVERY = 0.1  # seconds between two requests for an answer, of whichever message
SELDOM = 3.0  # seconds, Flower's own pace
SLACK = 1 / 30  # share of the round's time so far by which a request may come later


def pull_one_by_one(grid: "HttpGrid") -> None:
    """Let an answer that cannot be read fail alone, whoever pulls."""
    _drop_what_answers_nothing(grid)
    pull = grid.pull_messages

    def pull_messages(message_ids: Iterable[str]) -> list[Message]:
        return [reply for identity in message_ids for reply in _pulled(identity)]

    def _pulled(identity: str) -> list[Message]:
        try:
            replies = list(pull([identity]))
            if all(reply.metadata.reply_to_message_id == identity for reply in replies):
                return replies
            return [_refused(grid.run.run_id, identity, "it answers another message")]
        except httpx.HTTPError:  # the SuperLink's trouble, not a node's
            raise
        except Exception as error:
            return [_refused(grid.run.run_id, identity, f"{type(error).__name__}: {error}")]

    vars(grid)["pull_messages"] = pull_messages


def poll_often(grid: "HttpGrid") -> None:
    """Let a grid ask ten times a second for an answer that is missing, and less often the longer it waits.

    Where many are missing, or after a minute and a half, it asks for all every three seconds.
    """

    def send_and_receive(
        messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        missing = set(grid.push_messages(messages))
        return replies(missing, float("inf") if timeout is None else time.monotonic() + timeout)

    def replies(missing: set[str], end: float) -> Iterator[Message]:
        """Yield each answer as it arrives; those that came while the last ones were read are not late."""
        began = time.monotonic()
        while True:
            last = time.monotonic() >= end
            arrived = list(grid.pull_messages(missing))
            missing -= {reply.metadata.reply_to_message_id for reply in arrived}
            yield from arrived
            if last or not missing:
                return
            now = time.monotonic()
            pause = max(len(missing) * REQUEST_EVERY, SLACK * (now - began))
            time.sleep(max(min(pause, SELDOM, end - now), 0.0))

    vars(grid)["send_and_receive"] = send_and_receive


def _drop_what_answers_nothing(grid: "HttpGrid") -> None:
    """Keep the messages of which the SuperLink, and not their sender, says that they answer what was asked for."""
    client = grid._runtime_client
    pull = client.PullMessages

    def answers(request: PullAppMessagesRequest) -> PullAppMessagesResponse:
        asked, response = set(request.message_ids), pull(request)
        trees = zip(response.messages_list, response.message_object_trees, strict=True)
        kept = [(m, tree) for m, tree in trees if m.metadata.reply_to_message_id in asked]
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in kept],
            message_object_trees=[tree for _, tree in kept],
        )

    vars(client)["PullMessages"] = answers


def _refused(run_id: int, identity: str, reason: str) -> Message:
    metadata = Metadata(
        run_id=run_id,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=SUPERLINK_NODE_ID,
        reply_to_message_id=identity,
        group_id="",
        created_at=time.time(),
        ttl=0,
        message_type="system",
    )
    told = f"its answer cannot be read ({reason})"
    return make_message(metadata=metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, told))
