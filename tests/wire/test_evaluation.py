"""Evaluations on the wire: what is packed comes back, and whatever else a node or a server sends is refused or left out."""

import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st

from fedapp import wire
from fedapp.data import Facts
from fedapp.evaluation import figures_of_clients
from fedapp.refusals import Reason, Refusal
from fedapp.wire import Evaluation, EvaluationRequest, WireError

FACTS = Facts((1, 8, 8), 10, (5.0,), (6.0,))


def answer(content: RecordDict | Error) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    return Message(content, reply_to=Message(RecordDict(), 7, "evaluate"))


def sent(content: RecordDict) -> RecordDict:
    """Return a content as it arrives."""
    return recorddict_from_proto(recorddict_to_proto(content))


def request(**changed: Any) -> RecordDict:
    shared = wire.record_of({"x": np.ones(3, np.float32), "buffers": np.zeros(0, np.float32)})
    content = wire.pack_evaluation_request(EvaluationRequest(2, [0, 4], {}, FACTS), shared)
    content.config_records["round"].update(changed)
    return content


def test_a_request_survives() -> None:
    read = wire.unpack_evaluation_request(sent(request()))
    assert (read.round, read.clients, read.facts) == (2, [0, 4], FACTS)
    np.testing.assert_array_equal(read.shared["x"], np.ones(3, np.float32))


@pytest.mark.parametrize(
    "changed",
    [
        {"round": "2"}, {"round": -1}, {"clients": 3}, {"clients": ["0"]}, {"clients": [True]}, {"clients": [-1]},
        {"shape": "no"}, {"std": [0.0]},
    ],
    ids=str,
)  # fmt: skip
def test_a_request_that_is_none_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        wire.unpack_evaluation_request(request(**changed))


def test_a_request_without_a_model_is_refused() -> None:
    content = request()
    content["shared"] = wire.record_of({"x": np.ones(3)})
    with pytest.raises(WireError, match="does not hold a model"):
        wire.unpack_evaluation_request(content)
    for name, odd in (("shared", ConfigRecord()), ("round", ArrayRecord())):
        content = request()
        content[name] = odd
        with pytest.raises(WireError, match="does not ask for an evaluation"):
            wire.unpack_evaluation_request(content)


def test_workers_get_their_part_of_a_request() -> None:
    content = request()
    arrays, clients = wire.take_shared(content)
    assert (list(arrays), clients, list(content)) == (["shared"], [0, 4], ["round"])
    part = wire.part_of(content, [4])
    part["shared"] = arrays["shared"]
    assert wire.unpack_evaluation_request(part).clients == [4]


def test_evaluations_survive() -> None:
    content = RecordDict()
    results = [
        Evaluation(0, 7, {"loss": 0.5, "accuracy": 1.0}, {"loss": 0.25}),
        Evaluation(4, 1, {"rmse": 12.5}),
    ]
    for result in results:
        wire.add_evaluation(content, result)
    wire.add_refusals(content, [Refusal(5, Reason.NOT_FINITE, "too large")])
    read = wire.unpack_evaluations(answer(sent(content)), [0, 4, 5, 6])
    assert read.results == results
    assert read.refusals == [
        Refusal(5, Reason.NOT_FINITE, "too large"),
        Refusal(6, Reason.MALFORMED, "it sent nothing"),
    ]
    assert read.uplink_bytes == sum(
        content.metric_records[f"evaluation.{c}"].count_bytes() for c in (0, 4)
    )


def test_an_error_costs_all_the_node_s_clients() -> None:
    read = wire.unpack_evaluations(answer(Error(2, "first\nlast")), [1, 2])
    assert read.refusals == [Refusal(c, Reason.FAILED, "last") for c in (1, 2)]


anything = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.lists(st.floats(), max_size=2),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
)
keys = st.one_of(
    st.sampled_from(["num-examples", "metric.loss", "metric.accuracy", "finetuned.loss"]),
    st.builds(lambda p, n: p + n, st.sampled_from(["metric.", "finetuned.", ""]), st.text(max_size=40)),
)  # fmt: skip


@given(st.dictionaries(keys, anything, max_size=100))
def test_whatever_a_client_sends_is_finite_numbers_or_a_refusal(said: dict[str, Any]) -> None:
    content = RecordDict({"evaluation.3": MetricRecord(said)})
    read = wire.unpack_evaluations(answer(content), [3])
    assert len(read.results) + len(read.refusals) == 1
    for result in read.results:
        assert type(result.num_examples) is int
        assert result.num_examples >= 1
        for metrics in (result.metrics, result.finetuned):
            assert len(metrics) <= 64
            assert all(math.isfinite(value) and name.isascii() for name, value in metrics.items())
        figures = figures_of_clients([result] * 3)
        assert all(math.isfinite(value) and name.isidentifier() for name, value in figures.items())
    for refusal in read.refusals:
        assert refusal.text.isprintable()
