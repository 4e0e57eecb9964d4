"""What a server asks of a node: wrong invitations are refused, and nodes make no directory for it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedapp import client_app, wire
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from fedapp.wire import WireError
from tests.conftest import kebab
from tests.support.rounds import KEYS


def invitation(**changed: Any) -> RecordDict:
    x = np.zeros(30, np.float32)
    told = wire.Invitation(1, 4, "run", "", {0: 0}, {}, {}, {0: [2]})
    shared = wire.record_of({"x": x, "buffers": np.zeros(0, np.float32)})
    content = wire.pack_invitation(told, shared)
    for key, value in changed.items():
        content.config_records["round"][key.replace("_", "-")] = value
    return content


@pytest.mark.parametrize(
    "changed",
    [
        *({"run": run} for run in ("../../etc", "..", ".", "", "/etc", "a/b", "a\\b", "C:", "a\0b", "\x1b[2J", 3)),
        {"tag": "../../x"}, {"tag": -1}, {"tag": [4]}, {"round": "1"}, {"round": 1.0}, {"accepted": ["../x"]},
        {"clients": ["../x"]}, {"clients": [True]}, {"clients": [0, 1]}, {"clients": 0}, {"kept_tags": ["/x"]},
        {"kept_clients": [0, 0]}, {"own_clients": [0], "own_names": ["x"], "own_arrays": [7]}, {"state_dir": 3},
        {"model": "../x"}, {"model": "0" * 31}, {"base": 3}, {"base": "g" * 32},
    ],
    ids=str,
)  # fmt: skip
def test_an_invitation_that_is_none_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        wire.unpack_invitation(invitation(**changed))


def test_names_that_runs_have_are_taken() -> None:
    for run in ("fedavg-digits-20260101-120000", "run.2", "läuft gut", "-x"):
        assert wire.unpack_invitation(invitation(run=run)).run == run


def test_a_node_makes_no_directory_that_a_server_names(tmp_path: Path) -> None:
    def trained(state_dir: Path, **own: Value) -> list[str]:
        config = parse_run_config(kebab(KEYS | {"algorithm": "mifa"}))
        grid = InlineGrid(client_app.app, config.flat())
        grid.contexts[1].node_config |= own
        message = Message(invitation(state_dir=str(state_dir)), 1, "train")
        (reply,) = grid.send_and_receive([message])
        assert "client.0" in reply.content
        return list(grid.contexts[1].state)

    in_memory = ["state.0.4"]
    assert trained(tmp_path / "away" / "client-state") == in_memory
    assert trained(tmp_path) == in_memory, "it is there, but it is not what servers make"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "client-state").mkdir()  # as the server of a simulation does
    assert trained(tmp_path / "client-state") == []
    assert [p.name for p in tmp_path.rglob("*.safetensors")] == ["4.safetensors"]
    own = tmp_path / "own"
    assert trained(tmp_path / "client-state", **{"state-dir": str(own)}) == []
    assert (own / "run" / "0" / "4.safetensors").is_file(), "the node's own config comes first"
