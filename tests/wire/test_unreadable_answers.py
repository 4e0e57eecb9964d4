"""Answers that Flower itself cannot read, or that answer another message, fail alone."""

import json
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import httpx
import pytest
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import validate_object_content
from flwr.supercore.run import Run
from flwr.superlink.grid import HttpGrid

from fedapp.engine import pulling
from fedapp.engine.pulling import poll_often, pull_one_by_one
from tests.support.rounds import CLIENTS, clients_of, played


class Link:
    """What a SuperLink holds for a run, in place of the connection to it: the rest of HttpGrid is as it is."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}  # by the message that they answer
        self.contents: dict[str, bytes] = {}
        self.down = False

    def add(
        self, reply: Message, spoil: Callable[[bytes], bytes] = lambda content: content
    ) -> None:
        stored_for = reply.metadata.reply_to_message_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.messages[stored_for] = reply
        for identity, part in get_all_nested_objects(reply).items():
            self.contents[identity] = spoil(part.deflate())

    def PullMessages(self, request: Any) -> Any:  # noqa: N802
        if self.down:
            raise httpx.ConnectError("down")
        found = [self.messages[i] for i in request.message_ids if i in self.messages]
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(m)) for m in found],
            message_object_trees=[get_object_tree(m) for m in found],
        )

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        """Take note."""


def linked(link: Link) -> HttpGrid:
    grid = HttpGrid("127.0.0.1:1", True, None, token="x")
    grid.set_run(Run.create_empty(run_id=1))
    vars(grid)["_client"] = link
    return grid


def unreadable(content: bytes) -> bytes:
    head, _, body = content.partition(b"\0")
    spoilt = head + b"\0" + (b"x" * len(body) if head.startswith(b"ArrayRecord") else body)
    validate_object_content(spoilt)  # a SuperLink takes it
    return spoilt


def test_an_answer_that_flower_cannot_read_fails_alone() -> None:
    round_ = played("fedavg")
    link, replies = Link(), round_.replies()
    asked = [m.metadata.message_id for m in round_.sent]
    bad = clients_of(replies[1])
    for reply, spoil in zip(replies, (lambda c: c, unreadable, lambda c: c), strict=True):
        link.add(reply, spoil)
    with pytest.raises(json.JSONDecodeError):
        linked(link).pull_messages(asked)
    grid = linked(link)
    pull_one_by_one(grid)
    pulled = list(grid.pull_messages([*asked, "not answered yet"]))
    assert [m.metadata.reply_to_message_id for m in pulled] == asked
    assert "cannot be read (JSONDecodeError" in str(pulled[1].error.reason)
    outcome = round_.use(pulled)
    assert set(outcome.updates) == set(range(CLIENTS)) - set(bad)
    link.down = True
    with pytest.raises(httpx.ConnectError):
        grid.pull_messages(asked)


def test_an_answer_that_says_it_answers_another_message_is_refused() -> None:
    round_ = played("fedavg")
    link, replies = Link(), round_.replies()
    asked = [m.metadata.message_id for m in round_.sent]
    replies[0].metadata.__dict__["_reply_to_message_id"] = asked[1]
    replies[0].metadata.__dict__["_src_node_id"] = replies[1].metadata.src_node_id
    mine = clients_of(replies[0])
    for reply in replies:
        link.add(reply)
    link.messages[asked[0]] = replies[0]  # where the SuperLink has it, and what it says of itself
    link.messages[asked[1]] = replies[1]
    grid = linked(link)
    pull_one_by_one(grid)
    outcome = round_.use(list(grid.pull_messages(asked)))
    assert set(outcome.updates) == set(range(CLIENTS)) - set(mine)


@pytest.mark.parametrize("nodes", [1, 2, 3, 40])
def test_few_answers_are_asked_for_often_and_many_as_seldom_as_flower_does(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers come one by one; the grid sleeps for as long as the requests of a look would otherwise be too many."""
    grid = HttpGrid("127.0.0.1:1", True, None, token="x")
    asked = [f"message {number}" for number in range(nodes)]
    waiting, slept = list(asked), list[float]()

    def pull(identities: Iterable[str]) -> list[Message]:
        assert set(identities) == set(waiting)
        return [pulling._refused(1, waiting.pop(), "")]

    vars(grid)["push_messages"] = lambda messages: list(messages)
    vars(grid)["pull_messages"] = pull
    monkeypatch.setattr(time, "sleep", slept.append)
    poll_often(grid)
    replies = list(grid.send_and_receive(asked))  # type: ignore[arg-type]
    assert {reply.metadata.reply_to_message_id for reply in replies} == set(asked)
    assert slept == [pytest.approx(min(0.1 * left, 3.0)) for left in range(nodes - 1, 0, -1)]


def test_the_longer_an_answer_is_missing_the_less_often_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer that comes just after a request delays its round by a thirtieth, or by a tenth of a second."""
    grid = HttpGrid("127.0.0.1:1", True, None, token="x")
    clock, asked_at = [0.0], list[float]()

    def pull(identities: Iterable[str]) -> list[Message]:
        asked_at.append(clock[0])
        return [pulling._refused(1, "a", "")] if clock[0] > 600 else []

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    vars(grid)["push_messages"] = lambda messages: list(messages)
    vars(grid)["pull_messages"] = pull
    poll_often(grid)
    assert len(list(grid.send_and_receive(["a"]))) == 1  # type: ignore[list-item]
    pauses = [later - at for at, later in pairwise(asked_at)]
    assert pauses == [pytest.approx(min(max(0.1, at / 30), 3.0)) for at in asked_at[:-1]]
    assert len([at for at in asked_at if at < 3]) in (30, 31)
    assert len([at for at in asked_at if at > 90]) < 175


def test_an_answer_is_handed_on_before_the_next_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has arrived when the time is over is taken; nothing is waited for then."""
    grid = HttpGrid("127.0.0.1:1", True, None, token="x")
    there: list[str] = []

    def pull(identities: Iterable[str]) -> list[Message]:
        arrived = [identity for identity in sorted(identities) if identity in there]
        return [pulling._refused(1, identity, "") for identity in arrived]

    clock, slept = [0.0], list[float]()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    vars(grid)["push_messages"] = lambda messages: list(messages)
    vars(grid)["pull_messages"] = pull
    poll_often(grid)
    there += ["a"]
    replies = iter(grid.send_and_receive(["a", "b", "c"], timeout=1.0))  # type: ignore[list-item]
    assert next(replies).metadata.reply_to_message_id == "a"
    clock[0] = 1.5  # reading it takes until the time is over
    there += ["b"]
    assert next(replies).metadata.reply_to_message_id == "b"
    assert list(replies) == []
    assert not any(slept)
