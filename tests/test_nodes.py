"""Nodes before and during a run: what they report, who took part, and what is logged of them."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedapp import hosting, server_app
from fedapp.attendance import Attendance
from fedapp.console import MOST_NODES
from fedapp.errors import RunError
from fedapp.failures import MOST_OF_NODE, FailureLog
from fedapp.hosting import Hosting
from fedapp.parsing import parse_run_config
from fedapp.refusals import Reason, Refusal
from fedapp.tables import Value
from fedapp.waiting import wait_for_all
from tests.conftest import read_rounds
from tests.support.datasets import write_shards
from tests.support.deaths import in_round, killed
from tests.support.nodes import REFUSED, grid_of, place
from tests.support.rounds import NASTY, Claims

# Before the first round.


def own_data(tmp_path: Path, count: int = 3) -> list[dict[str, Any]]:
    keys: dict[str, Value] = {"num-clients": count, "clients-per-round": 1, "partition": "iid"}
    shards = write_shards(tmp_path, keys)
    return [place(p, count, **{"data-dir": shard}) for p, shard in enumerate(shards)]


def test_the_nodes_are_shown_before_the_first_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = own_data(tmp_path)
    config, grid = grid_of(*nodes, results_dir=str(tmp_path / "results"))
    server_app.run(grid, config)
    before, _, after = capsys.readouterr().out.partition("round 1/3")
    lines = [line.split() for line in before.splitlines()]
    assert ["node", "clients", "samples", "state"] in lines
    for node in range(1, 4):
        assert [str(node), f"{node - 1},", f"{node + 2}", "479", "ready"] in lines
    assert "6 of 6 clients have a node" in before
    assert "took part      all 6 clients, 3 times" in after


def test_a_missing_node_with_data_of_its_own_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = own_data(tmp_path)[:2]
    config, grid = grid_of(*nodes, results_dir=str(tmp_path / "results"))
    with pytest.raises(RunError, match="data of their own, so every client needs a node") as caught:
        server_app.run(grid, config)
    assert "2 clients had none, such as client 2 (no node hosts it)" in str(caught.value)
    assert "4 of 6 clients have a node" in capsys.readouterr().out
    assert not [kind for kind, _ in grid.served if kind == "train"]
    config, grid = grid_of(*nodes, results_dir=str(tmp_path / "results"), require_all_clients="no")
    rounds = read_rounds(server_app.run(grid, config).path)
    assert [r["clients"] for r in rounds] == [4] * 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "took part 4 of 6 clients, 3 times" in shown
    assert "never took part 2 clients (no node: 2, 5)" in shown


def test_without_data_of_their_own_nodes_are_required_only_if_asked_for(tmp_path: Path) -> None:
    keys: dict[str, Value] = {"results_dir": str(tmp_path)}
    config, grid = grid_of(place(0), place(1), **keys)
    assert len(read_rounds(server_app.run(grid, config).path)) == 3
    config, grid = grid_of(place(0), place(1), **keys, require_all_clients="yes")
    with pytest.raises(
        RunError, match='With require-all-clients = "yes" every client needs a node'
    ):
        server_app.run(grid, config)


def test_a_node_whose_data_are_wrong_is_waited_for_until_they_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = own_data(tmp_path)
    data = Path(nodes[1]["data-dir"])
    data.rename(tmp_path / "elsewhere")
    config, grid = grid_of(*nodes, results_dir=str(tmp_path / "results"))
    with pytest.raises(RunError, match=r"client 1 \(node 2: The node's data-dir = .* is not there"):
        server_app.run(grid, config)
    assert sum(m.startswith("Node 2 cannot train: ") for m in caplog.messages) == 1
    monkeypatch.setattr(hosting, "FIRST_PAUSE", 0.01)
    config, grid = grid_of(*nodes, results_dir=str(tmp_path / "results"), node_timeout=60.0)
    serve, asked = grid.serve, [0]

    def fixed_when_asked_again(message: Message) -> Message:
        asked[0] += message.metadata.dst_node_id == 2
        if asked[0] == 2 and not data.exists():
            (tmp_path / "elsewhere").rename(data)
        return serve(message)

    vars(grid)["serve"] = fixed_when_asked_again
    rounds = read_rounds(server_app.run(grid, config).path)
    assert [(r["clients"], r["failures"]) for r in rounds] == [(6, 0)] * 3


def test_a_simulation_s_nodes_are_asked_for_little(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, grid = grid_of(place(0), place(1), place(2), results_dir=str(tmp_path))
    replies: list[Message] = []
    serve = grid.serve

    def kept(message: Message) -> Message:
        replies.append(serve(message))
        return replies[-1]

    vars(grid)["serve"] = kept
    server_app.run(grid, config)
    said = [r.content["hosting"] for r in replies if "hosting" in r.content]
    assert [list(record) for record in said] == [["range"]] * 3
    shown = capsys.readouterr().out.partition("round 1/3")[0]
    assert "have a node" not in shown
    assert "samples" not in shown


@pytest.mark.parametrize("where", ["server", "client"])
def test_with_privacy_a_node_does_not_say_how_many_samples_it_has(
    where: str, tmp_path: Path
) -> None:
    nodes = own_data(tmp_path)
    config, grid = grid_of(*nodes, dp__clip=1.0, dp__where=where)
    from fedapp import wire
    from fedapp.problems import make_problem

    facts = wire.facts_head(make_problem(config).facts)
    hosting = Hosting(6)
    wait_for_all(hosting, grid, 0.1, 1, "yes", {"shared-data": True, **facts})
    assert [(r.samples, r.problem) for r in hosting.rows()] == [(None, "")] * 3
    assert hosting.has_own_data()


@pytest.mark.parametrize("samples", [-1, 2**60, True, "many", [3], 0.5, NASTY])
def test_what_nodes_report_is_distrusted(samples: Any, capsys: pytest.CaptureFixture[str]) -> None:
    claim = {"clients": [0], "samples": samples, "own-data": "yes", "problem": NASTY}
    hosting = Hosting(1)
    hosting.update(Claims(node=claim))
    (row,) = hosting.rows()
    assert row.samples is None
    assert row.problem.isprintable()
    assert len(row.problem) <= 300
    assert not hosting.has_own_data()
    hosting = Hosting(1)
    hosting.update(Claims(node={"clients": [0], "problem": [1]}))
    assert hosting.rows()[0].problem == "it does not say why"


def test_a_server_s_refusal_is_one_printable_line(caplog: pytest.LogCaptureFixture) -> None:
    _, grid = grid_of(place(0, 1))
    for reason in (NASTY, 7, [NASTY]):
        content = RecordDict({"refused": ConfigRecord({"reason": reason})})
        (reply,) = grid.send_and_receive([Message(content, 1, "query")])
        assert not reply.has_error()
    told = [r.message for r in caplog.records if r.message.startswith(REFUSED)]
    assert len(told) == 3
    assert all(m.isprintable() and len(m) < 400 for m in told)


def test_very_many_nodes_are_not_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from fedapp.console import RunConsole

    config = parse_run_config({})
    console = RunConsole(config, Path("here"), 1)
    claims = {f"n{n}": {"clients": [n]} for n in range(70)}
    hosting = Hosting(80)
    hosting.update(Claims(**claims))
    console.on_nodes(hosting, deployed=True)
    shown = capsys.readouterr().out
    assert shown.count(" ready") == MOST_NODES + 1
    assert "and 20 more nodes, 0 of them not ready" in shown
    assert "70 of 80 clients have a node" in shown


# Who took part.


def test_attendance_by_hand() -> None:
    attendance = Attendance(6)
    assert attendance.summary(range(6)) == [("never took part", "6 clients (not drawn: 6)")]
    attendance.took_part([0, 1, 2])
    assert attendance.summary(range(6))[0] == ("took part", "3 of 6 clients, once")
    attendance.took_part([0, 1])
    attendance.failed({3: "", 2: ""})
    attendance.failed([3])
    assert attendance.summary([0, 1, 2, 3, 4]) == [
        ("took part", "3 of 6 clients, 1 to 2 times"),
        ("never took part", "3 clients (failed each time: 3; no node: 5; not drawn: 1)"),
        ("failed at times", "1 client: 2 (1 of 2 times)"),
        ("no node at the end", "1 client: 5"),
    ]
    many = Attendance(1000)
    many.took_part(range(1000))
    assert many.summary(range(1000)) == [("took part", "all 1000 clients, once")]
    many.failed(range(1000))
    assert all(len(text) < 300 for _, text in many.summary([]))


def test_who_took_part_counts_all_rounds_of_a_run_that_went_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: dict[str, Value] = {
        "results_dir": str(tmp_path), "run_name": "run", "num_rounds": 7, "checkpoint_every": 2,
    }  # fmt: skip
    config, grid = grid_of(place(0, 1), **keys)
    with pytest.MonkeyPatch.context() as patch:
        in_round(6)(patch)
        killed(lambda: server_app.run(grid, config))
    config, grid = grid_of(place(0, 1), **keys, resume=True)
    server_app.run(grid, config)
    assert "all 6 clients, 7 times" in capsys.readouterr().out


def test_nodes_that_vanish_are_in_the_closing_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, grid = grid_of(place(0), place(1), place(2), results_dir=str(tmp_path), num_rounds=6)
    grid.before[3] = lambda: (grid.contexts.pop(2), grid.contexts.pop(3))
    server_app.run(grid, config)
    shown = " ".join(capsys.readouterr().out.split())
    assert "took part all 6 clients, 2 to 6 times" in shown
    assert "no node at the end 4 clients: 1, 2, 4, 5" in shown


# Log lines.


def test_a_node_with_many_clients_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog()
    node_of = {client: 1 + client // 1000 for client in range(2000)}

    def failed(client: int, text: str) -> Refusal:
        return Refusal(client, Reason.FAILED, text)

    with caplog.at_level("WARNING", logger="flwr"):
        for number in range(3):
            reasons = [failed(c, f"excuse {number} of {c}") for c in range(1000)]
            failures.log(reasons, node_of)
        failures.log([failed(1500, "a cable is broken"), failed(3, "once more")], node_of)
    told = [m for m in caplog.messages if "excuse" in m]
    assert len(told) == MOST_OF_NODE
    (more,) = [m for m in caplog.messages if "further ones" in m]
    assert "Clients of node 1 failed" in more
    assert "Client 1500 failed: a cable is broken" in caplog.messages, "other nodes are heard"
    assert len(caplog.messages) == MOST_OF_NODE + 2
