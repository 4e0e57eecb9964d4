"""What nodes say, and which clients they claim: printable, short, and never trusted."""

import copy
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message

from fedapp import wire
from fedapp.failures import MOST_OF_CLIENT
from fedapp.hosting import Hosting
from fedapp.refusals import Reason, Refusal
from tests.support.rounds import NASTY, Claims, clients_of, played

# What nodes say.


def test_what_nodes_say_is_one_short_printable_line(caplog: pytest.LogCaptureFixture) -> None:
    round_ = played("fedavg")
    replies = round_.replies()
    error = Message(Error(2, f"Traceback\n{NASTY}"), reply_to=round_.sent[0])
    clients = clients_of(replies[1])
    replies[1].content["failures"] = ConfigRecord({str(c): NASTY for c in clients})
    for client in clients:
        del replies[1].content[f"client.{client}"]
    record = replies[2].content.array_records[f"client.{clients_of(replies[2])[0]}"]
    record[NASTY] = record["u"]
    with caplog.at_level("WARNING", logger="flwr"):
        round_.use([error, *replies[1:]])
    told = [m for m in caplog.messages if "failed: " in m]
    assert len(told) == 3
    for message in told:
        assert message.isprintable()
        assert len(message) <= len("Client 0 failed: ") + wire.LONGEST_TEXT
    assert any("line" in m and "owned" in m for m in told)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("a\nb\tc", "a b c"), ("\x1b[31mred", " [31mred"), ("é “ü”", "é “ü”"), ("", "")],
)  # fmt: skip
def test_printable(text: str, shown: str) -> None:
    assert wire.printable(text) == shown
    assert wire.printable("x" * 300) == "x" * 300
    assert wire.printable("x" * 301) == "x" * 299 + "…"


def failed(client: int, text: str) -> Refusal:
    return Refusal(client, Reason.FAILED, text)


def test_a_client_that_says_ever_new_things_is_heard_a_few_times(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = copy.deepcopy(played("fedavg").strategy)
    with caplog.at_level("WARNING", logger="flwr"):
        for number in range(1000):
            strategy.failures.log([failed(0, f"excuse {number}")], {})
        strategy.failures.log([failed(0, "excuse 1000"), failed(1, "a cable is broken")], {})
    assert sum("excuse" in m for m in caplog.messages) == MOST_OF_CLIENT
    assert "Client 1 failed: a cable is broken" in caplog.messages
    assert strategy.failures.logged == MOST_OF_CLIENT + 1


def test_flower_s_own_word_that_a_node_is_gone_counts(caplog: pytest.LogCaptureFixture) -> None:
    from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_ins_message

    round_ = played("fedavg")
    told = create_message_error_unavailable_ins_message(round_.sent[0].metadata.message_id, 1)
    with caplog.at_level("WARNING", logger="flwr"):
        round_.use([told, *round_.replies()[1:]])
    (message,) = [m for m in caplog.messages if "failed: " in m]
    assert "no answer in time" not in message


# Which clients nodes claim.


@pytest.mark.parametrize(
    ("claim", "clients"),
    [
        ([2, 2, 0, 2], [2, 0]), ([True, False], []), ([-1, 6, 5, 2**63 - 1], [5]), ([1.0], []), ([], []),
        (["1"], []), ([b"1"], []), ([5] * 10**6, [5]),
    ],
)  # fmt: skip
def test_claims_are_whole_numbers_in_range_each_once(claim: list[Any], clients: list[int]) -> None:
    hosting = Hosting(6)
    hosting.update(Claims(node={"clients": claim}))
    assert list(hosting.clients) == sorted(clients)
    assert [row.clients for row in hosting.rows()] == [clients]


@pytest.mark.parametrize(
    ("bounds", "clients"),
    [([1, 6, 2], [1, 3, 5]), ([4, 2**62, 1], [4, 5]), ([6, 2**62, 1], []), ([3, 0, 1], [])],
)
def test_ranges_are_cut_to_the_clients_there_are(bounds: list[int], clients: list[int]) -> None:
    hosting = Hosting(6)
    hosting.update(Claims(node={"range": bounds}))
    assert list(hosting.clients) == clients


@pytest.mark.parametrize(
    "claim",
    [
        {},
        {"clients": 3},
        {"clients": "0"},
        {"error": NASTY},
        {"error": [NASTY]},
        {"range": 3},
        {"range": [0, 6]},
        {"range": [0, 6, 0]},
        {"range": [-1, 6, 1]},
        {"range": [0.0, 6.0, 1.0]},
    ],
)
def test_a_node_that_does_not_say_hosts_nothing(
    claim: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    hosting = Hosting(6)
    with caplog.at_level("WARNING", logger="flwr"):
        hosting.update(Claims(node=claim))
    assert not hosting.clients
    (told,) = caplog.messages
    assert told.isprintable()
    assert len(told) < 400
