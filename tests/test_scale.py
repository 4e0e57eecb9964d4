"""A million clients: what a run keeps does not grow with them, or by a few bytes."""

import resource
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapp import client_app, wire
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.problems import quadratic
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds

MILLION = 1_000_000
KEYS: dict[str, dict[str, Value]] = {
    "quadratic": {"dataset": "quadratic", "quadratic__dim": 3},
    "digits": {"samples_per_client": 10, "model": "logreg", "partition": "dirichlet"},
}


@pytest.mark.parametrize("problem", KEYS)
def test_a_million_clients_train_and_resume_within_memory(
    problem: str, run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quadratic, "DISTINCT", 300)  # so that they are drawn at once
    keys: dict[str, Value] = KEYS[problem] | {
        "num_clients": MILLION, "clients_per_round": 20, "local_steps": 1, "checkpoint_every": 1, "run_name": "many",
    }  # fmt: skip
    run_inline(**KEYS[problem], num_rounds=1)  # everything is imported
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    directory = run_inline(**keys, num_rounds=2)
    whole = run_inline(**keys | {"run_name": "whole"}, num_rounds=3)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < 100 * MILLION
    saved = directory / "checkpoint" / "round-0000002.safetensors"
    assert saved.stat().st_size < 60_000
    assert {"attendance.clients", "accepted"} <= load_file(saved).keys()
    run_inline(**keys, num_rounds=3, resume=True)
    assert [r["clients"] for r in read_rounds(directory)] == [20, 20, 20]
    one, other = (load_file(path / "model.safetensors") for path in (directory, whole))
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_a_node_tells_a_million_clients_in_a_few_bytes() -> None:
    config = parse_run_config(kebab({"num_clients": MILLION, "dataset": "quadratic"}))
    grid = InlineGrid(client_app.app, config.flat(), nodes=2)
    query: Any = grid.create_message(wire.pack_query(None), "query", 2, "1")
    (reply,) = grid.send_and_receive([query])
    assert len(reply.content.config_records["hosting"]) == 1
    assert wire.unpack_report(reply, MILLION).clients == range(1, MILLION, 2)
