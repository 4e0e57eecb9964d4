"""The query which clients a node hosts: what is packed comes back, and odd answers are refused or left out."""

from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedapp import wire
from fedapp.wire import Report, WireError


def answer(content: RecordDict | Error) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    return Message(content, reply_to=Message(RecordDict(), 7, "query"))


def told(**said: Any) -> Message:
    keys = {key.replace("_", "-"): value for key, value in said.items()}
    return answer(RecordDict({"hosting": ConfigRecord(keys)}))


@pytest.mark.parametrize(
    "report", [Report([0, 3]), Report([], 0), Report([2], 17, True, "the disk is empty")], ids=str
)
def test_a_report_survives(report: Report) -> None:
    assert wire.unpack_report(answer(wire.pack_report(report)), 6) == report


def test_a_question_survives() -> None:
    for check in (None, {}, {"shared-data": True}):
        assert wire.check_of(wire.pack_query(check)) == check
    assert wire.rejection_of(wire.pack_query({})) is None
    assert wire.rejection_of(wire.pack_rejection("taken\n")) == "taken "


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (lambda: None, "no answer in time"),
        (lambda: answer(Error(2, "first\nlast")), "last"),
        (lambda: answer(wire.pack_report_error("no partition-id")), "no partition-id"),
        (lambda: answer(RecordDict()), "it does not say which"),
        (lambda: told(clients="all"), "it does not say which"),
    ],
)
def test_a_node_that_does_not_say_which_clients_it_hosts_is_an_error(reply: Any, said: str) -> None:
    with pytest.raises(WireError, match=f"^{said}$"):
        wire.unpack_report(reply(), 6)


def test_values_that_make_no_sense_are_left_out() -> None:
    report = wire.unpack_report(told(clients=[5, 6, -1, 5, 0], samples=-3, own_data=1), 6)
    assert report == Report([5, 0])
    for samples in (2**53 + 1, 0.5, True, "7"):
        assert wire.unpack_report(told(clients=[1], samples=samples), 6).samples is None
    assert wire.unpack_report(told(clients=[1], problem=3), 6).problem == "it does not say why"
