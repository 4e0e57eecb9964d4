"""What a node lets its clients release: a hostile server's questions, put to the real ClientApp."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedapp import client_app, wire
from fedapp.building import make_strategy
from fedapp.client import Client
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.parsing import parse_run_config
from fedapp.privacy import budget
from fedapp.privacy.accounting import epsilon, gaussian_epsilon
from fedapp.privacy.budget import LEDGER, Limits, NodeLedger
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from fedapp.wire import Invitation
from tests.conftest import RunInline, kebab, read_rounds

KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "quadratic__dim": 100,
    "num_clients": 4,
    "clients_per_round": 4,
    "lr": 1e-9,
    "dp__clip": 0.5,
    "dp__noise_multiplier": 4.0,
    "dp__where": "client",
}


class Hostile:
    """A server that asks a node whatever it likes."""

    def __init__(self, **node: Value) -> None:
        InlineGrid(client_app.app, {})  # sets the identity that Flower's messages carry
        honest = parse_run_config(kebab(KEYS))
        self.arrays = make_strategy(honest, make_problem(honest)).arrays()
        place: dict[str, Value] = {"partition-id": 0, "num-partitions": 1}
        self.node = place | {key.replace("_", "-"): value for key, value in node.items()}
        self.state = RecordDict()

    def ask(self, *clients: int, run: str = "run", **keys: Value) -> RecordDict:
        """Return what the node answers to one invitation."""
        flat = kebab(KEYS | keys)
        context = Context(1, 1, dict(self.node), self.state, flat)
        invitation = Invitation(1, 4, run, "", dict.fromkeys(clients, 0), {})
        message = Message(wire.pack_invitation(invitation, self.arrays), 1, "train")
        return client_app.app(message, context).content

    def update(self, **keys: Any) -> NDArray[Any] | str:
        """Return client 0's update, or why there is none."""
        content = self.ask(0, **keys)
        record = content.get("client.0")
        if isinstance(record, ArrayRecord):
            return wire.arrays_of(record)["u"]
        return str(content.config_records["failures"]["0"])

    def restart(self) -> None:
        """Forget the Context, as a SuperNode that restarts does, and as every new run does."""
        self.state = RecordDict()


def counted(state_dir: Path) -> Counter[str]:
    """Return how often each client released something, from the ledger's file."""
    releases = json.loads((state_dir / LEDGER).read_text())["releases"]
    total: Counter[str] = Counter()
    for clients in releases.values():
        for client, pairs in clients.items():
            total[client] += sum(count for _, count in pairs)
    return total


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
        file, directory = map(Path, synced)
        assert (file.name, directory) == ("privacy-ledger.json", tmp_path)
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


# Floors.


def test_a_node_can_demand_noise(tmp_path: Path) -> None:
    for limits in ({"dp_require": True}, {"dp_min_noise": 2.0}, {"dp_max_epsilon": 100.0}):
        server = Hostile(state_dir=str(tmp_path), **limits)
        for keys, said in (
            ({"dp__clip": 0.0}, "dp-require"),
            ({"dp__where": "server"}, "dp-require"),
            ({"dp__noise_multiplier": 0.0}, "dp-require"),
            ({"dp__noise_from": "seed"}, "noise that the server can take off"),
            ({"dp__clip": 1e-310}, "too extreme"),
        ):
            assert said in str(server.update(**keys))
        assert not isinstance(server.update(), str)
    assert "dp-min-noise = 5" in str(Hostile(state_dir=str(tmp_path), dp_min_noise=5).update())


Anything = st.one_of(
    st.booleans(), st.integers(-3, 10**6), st.floats(), st.floats(0, 10), st.text(max_size=5)
)
DP_KEYS: dict[str, st.SearchStrategy[Any]] = {
    "dp.clip": st.one_of(st.sampled_from([0.0, 0.5, 5e-324, 1e-300, 1e300]), Anything),
    "dp.noise-multiplier": st.one_of(st.sampled_from([0.0, 2.999, 3.0, 1e-300, 1e300]), Anything),
    "dp.where": st.one_of(st.sampled_from(["client", "server"]), Anything),
    "dp.delta": Anything,
    "dp.noise-from": st.one_of(st.sampled_from(["system", "seed"]), Anything),
    "dp.max-epsilon": Anything,
    **{f"{prefix}{key}": Anything for prefix in ("dp-", "dp.") for key in ("min-noise", "max-releases", "require")},
    "state-dir": st.sampled_from(["", "/nowhere", "/tmp"]),
}  # fmt: skip


@pytest.mark.slow
@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.fixed_dictionaries({}, optional=DP_KEYS))
def test_no_run_config_undercuts_a_node(tmp_path_factory: Any, keys: dict[str, Value]) -> None:
    directory = tmp_path_factory.getbasetemp() / "floors"
    directory.mkdir(exist_ok=True)
    (directory / LEDGER).unlink(missing_ok=True)
    server = Hostile(state_dir=str(directory), dp_min_noise=3.0, dp_max_releases=2)
    own = {key.replace(".", "__").replace("-", "_"): v for key, v in keys.items()}
    with np.errstate(all="ignore"):
        answers = [server.update(**own) for _ in range(4)]
    given_ = [answer for answer in answers if not isinstance(answer, str)]
    assert len(given_) <= 2
    for answer in given_:  # lr is next to nothing: what there is, is noise
        clip = float(keys.get("dp.clip", 0.5))
        assert counted(directory)["0"] >= len(given_)
        assert not np.isfinite(answer).all() or answer.std() > 3 * clip * 0.7


def test_no_limit_without_a_place_to_count(tmp_path: Path) -> None:
    for limits in ({"dp_require": True}, {"dp_max_releases": 3}):
        server = Hostile(**limits)
        assert "set state-dir in the node's config" in str(server.update())
        assert "set state-dir in the node's config" in str(server.update(state_dir=str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("dp_max_release", 3, "dp-max-release = 3"),
        ("dp_max_releases", "many", "dp-max-releases = 'many'"),
        ("dp_min_noise", -1.0, "greater than 0"),
        ("dp_min_noise", math.nan, "finite"),
        ("dp_require", "yes", "dp-require = 'yes'"),
        ("dp_delta", 2.0, "less than 1"),
    ],
)
def test_a_limit_that_is_misspelt_is_refused(
    key: str, value: Value, said: str, tmp_path: Path
) -> None:
    server = Hostile(state_dir=str(tmp_path), **{key: value})
    assert said in str(server.update())
    message = Message(RecordDict(), 1, "query")
    context = Context(1, 1, dict(server.node), RecordDict(), kebab(KEYS))
    reply = client_app.app(message, context).content
    assert said in str(reply.config_records["hosting"]["error"])


def test_every_algorithm_that_may_be_used_sends_one_vector() -> None:
    means = [a for a in ALGORITHMS.values() if a.strategy.rule_is_a_mean]
    assert len(means) > 5
    assert all(len(a.client.sends) == 1 for a in means)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"algorithm": "scaffold"}, "more than one update"),
        ({"dataset": "digits", "model": "resnet20"}, "BatchNorm"),
    ],
)
def test_a_node_refuses_what_would_leave_without_noise(keys: dict[str, Value], said: str) -> None:
    """Also if the server, which should, does not."""
    assert said in str(Hostile().update(**keys))


def test_an_exceptions_text_stays_on_the_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, *args: Any) -> Any:
        raise ValueError("sample 17 is a secret")

    monkeypatch.setattr(Client, "train", fail)
    server = Hostile()
    assert server.update() == "it failed: see its node's log"
    assert "secret" in caplog.text
    assert "secret" in str(server.update(dp__clip=0.0))


# The file.


@pytest.mark.parametrize("damage", ["empty", "cut", "digit", "binary", "list", "directory", "lock"])
def test_a_damaged_ledger_is_never_a_new_one(damage: str, tmp_path: Path) -> None:
    server = Hostile(state_dir=str(tmp_path))
    server.update()
    path = tmp_path / LEDGER
    text = path.read_text()
    if damage == "directory":
        path.unlink()
        path.mkdir()
    elif damage == "lock":
        path.with_suffix(".lock").unlink(missing_ok=True)
        path.with_suffix(".lock").mkdir()
    else:
        spoilt = {
            "empty": b"",
            "cut": text[:-9].encode(),
            "digit": text.replace("[4.0, 1]", "[4.0, 0]").encode(),
            "binary": b"\xff\xfe" + text.encode(),
            "list": b"[]",
        }[damage]
        assert spoilt != text.encode()
        path.write_bytes(spoilt)
    for _ in range(2):
        said = str(server.update())
        assert re.search(r"privacy-ledger\.json (is damaged|cannot be read or written)", said)
        assert "\n" not in said


def test_a_new_ledger_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Hostile(state_dir=str(tmp_path))
    server.update()
    server.update()
    assert caplog.text.count("Starting a new ledger") == 1


def test_a_full_disk_lets_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Hostile(state_dir=str(tmp_path))
    server.update()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in str(server.update())
    monkeypatch.undo()
    server.update()
    assert counted(tmp_path) == {"0": 2}


CHARGE = """
import sys
from pathlib import Path
from fedapp.privacy.budget import Limits, NodeLedger
ledger = NodeLedger(Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    limit, times = map(int, line.split())
    limits = Limits.model_validate({"dp-max-releases": limit})
    for _ in range(times):
        print("refused" if ledger.charge("division", [0], 4.0, limits) else "released", flush=True)
"""


@pytest.mark.slow
def test_processes_lose_no_count_when_two_write_and_when_one_is_killed(tmp_path: Path) -> None:
    arguments, pipe = [sys.executable, "-c", CHARGE, str(tmp_path)], subprocess.PIPE
    processes = [subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]

    def tell(process: subprocess.Popen[str], limit: int, times: int) -> None:
        assert process.stdin
        process.stdin.write(f"{limit} {times}\n")
        process.stdin.flush()

    def lines(process: subprocess.Popen[str], count: int) -> list[str]:
        assert process.stdout
        return [process.stdout.readline().strip() for _ in range(count)]

    try:
        assert [lines(process, 1) for process in processes] == [["ready"]] * 2
        for process in processes:
            tell(process, 60, 40)
        said = Counter(line for process in processes for line in lines(process, 40))
        assert said == {"released": 60, "refused": 20}
        assert counted(tmp_path) == {"0": 60}
        tell(processes[0], 10**9, 10**9)
        lines(processes[0], 20)
        processes[0].send_signal(signal.SIGKILL)
        assert processes[0].stdout
        released = 20 + processes[0].stdout.read().count("released\n")
        assert 60 + released <= counted(tmp_path)["0"] <= 61 + released
        before = counted(tmp_path)["0"]
        tell(processes[1], 10**9, 1)
        assert lines(processes[1], 1) == ["released"]
        assert counted(tmp_path) == {"0": before + 1}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_lock_that_is_held_is_waited_for_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    monkeypatch.setattr(budget, "WAIT", 0.1)
    with FileLock((tmp_path / LEDGER).with_suffix(".lock")), pytest.raises(ConfigError) as told:
        NodeLedger(tmp_path).charge("division", [0], 4.0, Limits())
    assert "held by another process" in str(told.value)


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
