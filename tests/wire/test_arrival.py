"""Answers are decoded as they arrive, and count in the order in which they were asked for."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedapp import wire
from fedapp.exchange import Exchange
from tests.support.rounds import CASES, NODES, played


def test_each_answer_is_decoded_before_the_next_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    round_, happened = played("fedpaq qsgd"), list[str]()
    unpack = wire.unpack_reply

    def watched(*arguments: Any) -> wire.Reply:
        happened.append("decoded")
        return unpack(*arguments)

    def arriving() -> Iterator[Message]:
        for reply in round_.replies():
            happened.append("arrived")
            yield reply

    monkeypatch.setattr(wire, "unpack_reply", watched)
    copy.deepcopy(round_.strategy).aggregate_train(2, arriving())
    assert happened == ["arrived", "decoded"] * NODES


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_arrival_changes_nothing(case: str) -> None:
    round_ = played(case)
    first, last = round_.use(round_.replies()), round_.use(round_.replies()[::-1])
    assert list(first.updates) == list(last.updates)
    assert first.metrics == last.metrics
    assert set(first.state) == set(last.state)
    for name, value in first.state.items():
        np.testing.assert_array_equal(value, last.state[name], err_msg=name)


def test_of_two_answers_the_first_counts() -> None:
    round_ = played("fedavg")
    replies, again = round_.replies(), round_.replies()
    for content in (again[0].content[name] for name in again[0].content):
        content.clear()
    assert len(round_.use([*replies, again[0]]).updates) == len(round_.use(replies).updates)


def test_a_node_that_does_not_answer_is_said_to_have_given_none() -> None:
    exchange = Exchange(sent=list(played("fedavg").strategy._exchange.sent))
    refused = exchange.read([], lambda client: {}).refusals
    assert [refusal.client for refusal in refused] == [c for _, cs in exchange.sent for c in cs]
