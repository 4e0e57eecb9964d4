"""Bytes of a real federation: ours against those that Flower's SuperLink counts."""

from pathlib import Path

import pytest

from deploy.processes import Federation
from fedapp.rounds_file import read_rounds
from fedapp.tables import Value
from tests.conftest import RunInline
from tests.support.federations import NODES, Started, assert_same_model

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("deploy")]

ROUNDS = 2
AROUND = 2500  # bytes that Flower may add to one message around its content: see docs/bytes.md
KEYS: dict[str, Value] = {
    "algorithm": "fedgate", "num_rounds": ROUNDS,  # digits, 15,010 numbers
    "num_clients": NODES, "clients_per_round": NODES,  # client c lives on node c
    "downlink": "grid",
}  # fmt: skip


def test_flower_counts_what_we_count_and_a_constant_for_each_message(
    federation: Federation, run_inline: RunInline, tmp_path: Path
) -> None:
    """Ours are 20 to 120 kB a message, so that anything left out or counted twice would show.

    On the grid, nodes receive a model and then a difference to it, and the result has the bits of a run inline.
    """
    keys = KEYS | {"results_dir": str(tmp_path)}
    run = Started(federation, keys | {"run_name": "run"})
    assert run.end() == "finished:completed", run.shown()
    assert_same_model(tmp_path / "run", run_inline(**keys, run_name="inline"))
    traffic = federation.last_run()["network-traffic"]
    rounds = read_rounds(tmp_path / "run")
    messages = NODES * (ROUNDS + 1)  # the first asks each node which clients it hosts
    for way, counter in (("uplink", "inbound-bytes"), ("downlink", "outbound-bytes")):
        arrays = sum(line[f"{way}_bytes"] for line in rounds)
        ours = arrays + sum(line[f"{way}_overhead_bytes"] for line in rounds)
        difference = (traffic[counter] - ours) / messages
        print(f"{way}: arrays {arrays}, ours {ours}, Flower {traffic[counter]}: {difference:+.0f}")
        assert 0 < difference < AROUND, (way, ours, traffic)
        assert arrays > 10 * AROUND
