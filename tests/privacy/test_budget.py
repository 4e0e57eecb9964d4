"""The privacy budget of a node, and of a run: a hostile server's questions, put to the real ClientApp."""

import os
from pathlib import Path
from typing import Any

import pytest

from fedapp import client_app
from fedapp.client import Client
from fedapp.engine import InlineGrid
from fedapp.errors import RunError
from fedapp.parsing import parse_run_config
from fedapp.privacy.accounting import epsilon, gaussian_epsilon
from fedapp.privacy.budget import LEDGER, LEDGER_ID
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.hostile_server import KEYS, Hostile, counted

# The budget.


def test_a_server_that_asks_300_times_gets_as_many_answers_as_the_budget_has(
    tmp_path: Path,
) -> None:
    server = Hostile(state_dir=str(tmp_path), dp_max_releases=7)
    answers = [server.update() for _ in range(300)]
    given_ = [answer for answer in answers if not isinstance(answer, str)]
    assert len(given_) == 7
    assert len({answer.tobytes() for answer in given_}) == 7
    assert set(answers[7:]) == {
        "its privacy budget is spent: another update would exceed this node's dp-max-releases = 7"
    }
    assert counted(tmp_path) == {"0": 7}


def test_the_budget_in_epsilon_is_kept_and_used(tmp_path: Path) -> None:
    server = Hostile(state_dir=str(tmp_path), dp_max_epsilon=6.0, dp_delta=1e-6)
    answers = sum(not isinstance(server.update(), str) for _ in range(30))
    assert epsilon(2.0, 1e-6, answers) <= 6 < epsilon(2.0, 1e-6, answers + 1)
    assert 3 < answers < 20
    assert isinstance(server.update(dp__noise_multiplier=1.0), str)
    # Ten thousand times the noise costs next to nothing, and still fits.
    assert not isinstance(server.update(dp__noise_multiplier=4e4), str)


def test_different_noise_adds_up(tmp_path: Path) -> None:
    used = [(4.0, 3), (8.0, 5), (2.5, 1)]
    cost = gaussian_epsilon([(z / 2, count) for z, count in used], 1e-5)
    as_one = sum(4 * count / z**2 for z, count in used)
    assert cost == pytest.approx(epsilon(as_one**-0.5, 1e-5, 1))
    server = Hostile(state_dir=str(tmp_path), dp_max_epsilon=cost * (1 + 1e-6))
    for z, count in used:
        for _ in range(count):
            assert not isinstance(server.update(dp__noise_multiplier=z), str)
    assert "dp-max-epsilon" in str(server.update(dp__noise_multiplier=30.0))


def test_no_name_of_a_run_and_no_restart_gives_a_new_budget(tmp_path: Path) -> None:
    server = Hostile(state_dir=str(tmp_path), dp_max_releases=5)
    keys: list[dict[str, Value]] = [
        {"run": "other"},
        {"run_name": "other"},
        {"seed": 1},
        {"num_rounds": 7, "lr": 0.5},
        {"partition": "iid"},
        {"dp__clip": 0.7, "dp__noise_multiplier": 9.0, "dp__delta": 0.1},
        {"state_dir": str(tmp_path / "of the run")},
        {"results_dir": str(tmp_path / "results")},
    ]
    answers = []
    for key in keys:
        server.restart()
        answers.append(server.update(**key))
    assert [isinstance(answer, str) for answer in answers] == [False] * 5 + [True] * 3


def test_clients_have_budgets_of_their_own_until_the_data_are_divided_otherwise(
    tmp_path: Path,
) -> None:
    server = Hostile(state_dir=str(tmp_path), dp_max_releases=10)
    for _ in range(3):
        assert all(f"client.{c}" in server.ask(c) for c in range(4))
    assert counted(tmp_path) == {"0": 3, "1": 3, "2": 3, "3": 3}
    # With another seed, client 0 may hold samples of all four, which have released 12 times.
    assert "dp-max-releases" in str(server.update(seed=1))
    assert "client.0" in server.ask(0)


def test_only_those_whose_budget_is_spent_are_left_out(tmp_path: Path) -> None:
    server = Hostile(state_dir=str(tmp_path), dp_max_releases=2)
    server.ask(1)
    server.ask(1)
    content = server.ask(0, 1, 2)
    assert {"client.0", "client.2"} <= content.keys()
    assert "client.1" not in content
    assert counted(tmp_path) == {"0": 1, "1": 2, "2": 1}


def test_clients_of_other_nodes_are_not_charged(tmp_path: Path) -> None:
    server = Hostile(state_dir=str(tmp_path), dp_max_releases=2, num_partitions=2)
    assert "client.1" not in server.ask(0, 1)
    assert counted(tmp_path) == {"0": 1}


def test_what_leaves_is_on_the_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync, train = os.fsync, Client.train

    def listen(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def look(self: Any, *args: Any) -> Any:
        assert counted(tmp_path)["0"] == 1
        files, directories = map(Path, synced[::2]), map(Path, synced[1::2])
        assert [file.name for file in files] == [LEDGER, LEDGER_ID]
        assert list(directories) == [tmp_path, tmp_path]
        return train(self, *args)

    monkeypatch.setattr(os, "fsync", listen)
    monkeypatch.setattr(Client, "train", look)
    assert not isinstance(Hostile(state_dir=str(tmp_path)).update(), str)


def test_a_run_may_set_itself_a_budget_which_its_nodes_keep() -> None:
    """In the run's Context, with neither a state-dir nor limits of the node."""
    most = epsilon(2.0, 1e-5, 5)
    server = Hostile()
    answers = [server.update(dp__max_epsilon=most * 1.0001) for _ in range(300)]
    assert sum(not isinstance(answer, str) for answer in answers) == 5
    assert "would exceed the run's dp.max-epsilon" in str(answers[-1])


def test_nothing_is_kept_where_nothing_is_limited(tmp_path: Path) -> None:
    server = Hostile()
    server.update()
    assert not server.state
    with_disk = Hostile(state_dir=str(tmp_path))
    with_disk.update(dp__clip=0.0)
    with_disk.update(dp__where="server")
    assert not (tmp_path / LEDGER).exists()
    with_disk.update()
    assert counted(tmp_path) == {"0": 1}, "limits that are set later know of it"


# The server's own budget.


@pytest.mark.parametrize("where", ["server", "client"])
def test_a_run_ends_before_it_costs_more_than_its_budget(
    where: str, run_inline: RunInline, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    keys = KEYS | {"dp__where": where, "num_rounds": 9, "run_name": "run", "checkpoint_every": 1}
    most = epsilon(2.0, 1e-5, 4) * 1.0001
    with pytest.raises(RunError, match=r"more than dp\.max-epsilon"):
        run_inline(**keys, dp__max_epsilon=most)
    rounds = read_rounds(tmp_path / "run")
    assert [r["epsilon"] for r in rounds] == [epsilon(2.0, 1e-5, k) for k in (1, 2, 3, 4)]
    said = " ".join(capsys.readouterr().out.split())
    assert "end the run after 4 of these rounds" in said
    assert (tmp_path / "run" / "model.safetensors").is_file()
    run_inline(**keys, dp__max_epsilon=2 * most, resume=True)
    assert len(read_rounds(tmp_path / "run")) == 9


def test_a_federation_with_limits_works_until_they_are_reached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the real ServerApp: a client that may say no more is a failed client."""
    from fedapp import server_app

    keys = KEYS | {"num_rounds": 3, "results_dir": str(tmp_path / "results")}
    for expected in ([4, 4, 4], [4, 2, 2]):
        config = parse_run_config(kebab(keys))
        grid = InlineGrid(client_app.app, config.flat(), 2)
        for place, limit in ((1, 10), (2, 4)):
            grid.contexts[place].node_config |= {
                "state-dir": str(tmp_path / str(place)),
                "dp-max-releases": limit,
            }
        rounds = read_rounds(server_app.run(grid, config).path)
        assert [r["clients"] for r in rounds] == expected
    assert "its privacy budget is spent" in caplog.text
