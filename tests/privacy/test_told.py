"""What a node tells the server of an error, without differential privacy: no cell of its data, and none of its paths."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedapp import client_app, node, wire
from fedapp.client import Client
from fedapp.data import Facts
from fedapp.engine import InlineGrid
from fedapp.tables import Value
from fedapp.wire import EvaluationRequest, Invitation
from tests.conftest import kebab
from tests.support.datasets import write_parquet

SECRET = "Smith"
KINDS = ("query", "train", "evaluate")
KEYS: dict[str, Value] = {
    "dataset": "set",
    "problem": "tabular-classification",
    "features": "a",
    "target": "label",
    "model": "mlp-4",
    "num_clients": 1,
    "clients_per_round": 1,
}
IMAGES: dict[str, Value] = {"problem": "classification", "features": "", "target": ""}
SOUND = "a,name,label\n" + "".join(f"{row}.5,{SECRET} {row},{row % 2}\n" for row in range(9))


def messages() -> dict[str, RecordDict]:
    """Return each kind of message that a server sends."""
    facts, none = Facts((1,), 2, (4.0,), (2.0,)), np.zeros(0, np.float32)
    shared = wire.record_of({"x": np.zeros(22, np.float32), "buffers": none})
    invitation = Invitation(1, 4, "run", "", {0: 0}, {}, facts=facts)
    request = EvaluationRequest(1, [0], {}, facts)
    return {
        "query": wire.pack_query(wire.ask_for_facts()),
        "train": wire.pack_invitation(invitation, shared),
        "evaluate": wire.pack_evaluation_request(request, shared),
    }


def answers(
    node_config: dict[str, Value],
    keys: dict[str, Value] | None = None,
    kinds: tuple[str, ...] = KINDS,
) -> list[str]:
    """Return all that a node answers to them, as text; each says that something is wrong."""
    InlineGrid(client_app.app, {})  # sets the identity that Flower's messages carry
    place: dict[str, Value] = {"partition-id": 0, "num-partitions": 1}
    found = []
    for kind in kinds:
        content = messages()[kind]
        context = Context(1, 1, place | node_config, RecordDict(), kebab(KEYS | (keys or {})))
        reply = client_app.app(Message(content, 1, kind), context)
        assert reply.has_content(), "Flower would tell the exception's text"
        assert not any(isinstance(record, ArrayRecord) for record in reply.content.values())
        told: dict[str, Any] = {k: dict(r) for k, r in reply.content.config_records.items()}
        assert {"problem", "error", "0"} & {key for record in told.values() for key in record}
        found.append(json.dumps(told, ensure_ascii=False))
    return found


@pytest.mark.parametrize(
    ("file", "text", "keys"),
    [
        ("train.csv", SOUND, {"features": "name"}),
        ("train.csv", SOUND, {"features": "nmae"}),
        ("train.csv", SOUND + f"1,{SECRET},0,4\n", {}),
        ("train.csv", SOUND.replace("8.5", "inf"), {}),
        ("train.csv", f"{SECRET},3,0\nJones,5,1\n", {"target": ""}),  # no header: row 1 is one
        ("train.csv", f"{SECRET},a,0\nJones,5,1\n", {}),
        ("train.jsonl", '{"a": 1, "label": 0}\n{"a": "' + SECRET + '", "label": 1}\n', {}),
        ("input.txt", f"{SECRET} is ill\nYes.\n", {"problem": "next-character"}),
        ("train.csv", SOUND.replace(",1\n", ",-7\n"), {}),
        ("train-0.parquet", SECRET, IMAGES),
    ],
)
def test_an_error_in_the_data_is_told_without_quoting_them(
    file: str, text: str, keys: dict[str, Value], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "Smith's data"
    (place / "set").mkdir(parents=True)
    (place / "set" / file).write_text(text)
    for told in answers({"data-dir": str(place)}, keys):
        assert not any(part in told for part in (SECRET, "Jones", "-7", "inf", tmp_path.name))
    for told in answers({}, keys | {"data_dir": str(place)}):  # the run names the node's directory
        assert not any(part in told for part in (SECRET, "Jones", "-7", "inf", tmp_path.name))
    assert place.name in caplog.text, "the node's own log says all"


def test_an_image_in_a_column_is_not_told_by_its_path(tmp_path: Path) -> None:
    write_parquet(tmp_path / "set" / "train-0.parquet", np.zeros((3, 8, 8), np.uint8), [0, 1, 0])
    import pyarrow as pa
    import pyarrow.parquet as pq

    entries = [{"bytes": None, "path": f"/clinic/{SECRET} {row}.png"} for row in range(3)]
    table = pa.table({"image": entries, "label": [0, 1, 0]})
    pq.write_table(table, tmp_path / "set" / "train-0.parquet")
    for told in answers({"data-dir": str(tmp_path)}, IMAGES):
        assert "Image 0 of set cannot be read" in told and SECRET not in told


def test_what_nobody_foresaw_is_told_by_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **keys: Any) -> Any:
        raise KeyError(f"{SECRET} in {tmp_path}")

    monkeypatch.setattr(node, "make_problem", fail)
    (tmp_path / "set.csv").write_text(SOUND)
    for told in answers({"data-dir": str(tmp_path)}):
        assert "KeyError: see this node's log" in told
    assert caplog.text.count("KeyError: 'Smith in") >= 3
    monkeypatch.undo()
    monkeypatch.setattr(Client, "train", fail)
    monkeypatch.setattr(node, "evaluate_client", fail)
    for told in answers({"data-dir": str(tmp_path)}, kinds=KINDS[1:]):
        assert "KeyError: see this node's log" in told


def test_no_directory_of_a_node_is_told(tmp_path: Path) -> None:
    (tmp_path / "set.csv").write_text(SOUND)
    (tmp_path / "a file").write_text("")
    for wrong in (
        {"data-dir": str(tmp_path / "none of these")},
        {"data-dir": str(tmp_path / "here"), "data-path": str(tmp_path / "there")},
        {"data-dir": str(tmp_path / "a file" / "set")},
    ):
        for told in answers(dict(wrong)):
            assert tmp_path.name not in told and "/" not in told
