"""What a message has beside its arrays' data: compared with the objects that Flower really makes of it."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp import wire
from fedapp.downlink import Parcel
from fedapp.exchange import Exchange
from fedapp.wire import Arrays, Invitation, Update
from fedapp.wire.overhead import CHUNK, LONGEST, record_overhead
from tests.conftest import RunInline, read_rounds

LARGE = -LONGEST - 1  # takes ten bytes, too, and is not negative
SLACK = 10  # bytes that a smaller whole number can spare
names = st.text("abcdefghij-.é", min_size=1, max_size=8)


@pytest.fixture(autouse=True)
def task() -> None:
    """Let messages be made, as in a run."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1


def objects(content: Any) -> int:
    """Return the bytes of all objects that Flower sends for a content."""
    return sum(len(each.deflate()) for each in get_all_nested_objects(content).values())


def numbers(count: int, first: float) -> np.ndarray[Any, Any]:
    """Return numbers that no other array of a test has."""
    return np.arange(count, dtype=np.float32) + np.float32(first)


@settings(max_examples=50)
@given(st.dictionaries(names, st.tuples(st.integers(0, 3000), st.booleans()), max_size=5))
def test_a_record_of_arrays_costs_what_flower_sends(sizes: dict[str, tuple[int, bool]]) -> None:
    arrays: Arrays = {}
    for place, (name, (count, square)) in enumerate(sizes.items()):
        whole = numbers(2 * count + 2, 10_000 * place)
        arrays[name] = whole.reshape(-1, 2) if square else whole
    record = wire.record_of(arrays)
    assert wire.nbytes(record) + record_overhead(record) == objects(record)


@pytest.mark.parametrize("size", [CHUNK - 128, CHUNK - 127, 2 * CHUNK + 5])
def test_long_arrays_are_sent_in_chunks(size: int) -> None:
    data = np.random.default_rng(0).integers(0, 255, size, np.uint8)
    record = wire.record_of({"u": data})
    assert wire.nbytes(record) + record_overhead(record) == objects(record)


@pytest.mark.parametrize(
    "own", [{}, {"D": numbers(7, 50)}, {"D": numbers(7, 50), "c": numbers(3, 70)}]
)
def test_an_invitation_costs_what_flower_sends(own: Arrays) -> None:
    shared = wire.record_of({"x": numbers(5, 0), "buffers": numbers(2, 20)})
    invitation = Invitation(
        LARGE, LARGE, "", "", {LARGE: LARGE}, {}, {LARGE: own} if own else {}, digests={LARGE: LARGE}
    )  # fmt: skip
    exchange = Exchange()
    content = exchange.invite(7, invitation, Parcel(shared, [shared]), 0).content
    places = SLACK * len(own)
    counted = exchange.downlink_bytes + exchange.downlink_overhead
    assert objects(content) <= counted <= objects(content) + places


def test_clients_of_one_node_are_counted_as_if_each_were_alone() -> None:
    shared = wire.record_of({"x": numbers(5, 0), "buffers": numbers(2, 20)})
    common, single = numbers(5, 90), numbers(5, 100)
    per_client = {3: {"D": common}, 5: {"D": common}, 700: {"D": common, "c": single}}
    accepted, kept = {3: 1, 5: 90, 700: 0, 900: 17}, {3: [1], 5: [90, 4], 700: [], 900: [17]}

    def counted(*nodes: list[int]) -> tuple[int, int]:
        exchange = Exchange()
        for node, clients in enumerate(nodes, start=1):
            own = {c: per_client[c] for c in clients if c in per_client}
            here = {c: accepted[c] for c in clients}
            told = Invitation(1, 5, "run", "", here, {}, own, {c: kept[c] for c in clients})
            exchange.invite(node, told, Parcel(shared, len(clients) * [shared]), 0)
        return exchange.downlink_bytes, exchange.downlink_overhead

    assert (
        counted([3, 5, 700, 900]) == counted([3], [5], [700], [900]) == counted([3, 700], [900, 5])
    )


@pytest.mark.parametrize("nmse", [None, 0.25])
def test_a_reply_costs_what_flower_sends(nmse: float | None) -> None:
    content = RecordDict()
    arrays = {"u": numbers(9, 0), "buffers": numbers(1, 50)}
    wire.add_update(content, Update(4, arrays, LARGE, LARGE, 0.5, True, LARGE, nmse))
    wire.add_refusals(content, [])
    spec: wire.Spec = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    reply = wire.unpack_reply(
        Message(content, reply_to=Message(RecordDict(), 7, "train")), {4: spec}
    )
    counted = reply.uplink_bytes + reply.uplink_overhead
    assert objects(content) <= counted <= objects(content) + SLACK  # state-lost is 1


def test_the_overhead_depends_on_neither_nodes_nor_names_of_directories(
    run_inline: RunInline, tmp_path: Any
) -> None:
    keys: dict[str, Any] = {
        "dataset": "quadratic", "algorithm": "fedgate", "num_clients": 12, "clients_per_round": 12,
        "num_rounds": 3, "lr": 0.01,
    }  # fmt: skip
    columns = "uplink_bytes", "downlink_bytes", "uplink_overhead_bytes", "downlink_overhead_bytes"
    seen = []
    for nodes, place in ((1, "short"), (5, "a-name-that-is-longer"), (12, "another")):
        state = tmp_path / f"state-{place}"
        rounds = read_rounds(run_inline(nodes=nodes, run_name=place, state_dir=str(state), **keys))
        seen.append([[line[column] for column in columns] for line in rounds])
    assert seen[0] == seen[1] == seen[2]
    assert all(min(line) > 0 for line in seen[0])
