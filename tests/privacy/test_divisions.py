"""The names of divisions: whatever gives a sample to another client is another division, and adds to the same budget."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from fedapp import client_app, wire
from fedapp.building import make_strategy
from fedapp.config import RunConfig
from fedapp.data import Shard, load_partition, validation_rows
from fedapp.data.array_shard import load_array_shard
from fedapp.data.partitions import deal
from fedapp.engine import InlineGrid
from fedapp.parsing import parse_run_config, tables
from fedapp.privacy.budget import UNRELATED, UNRELATED_TABLES, division_of
from fedapp.problems import make_problem
from fedapp.problems.arrays import ArrayProblem
from fedapp.problems.kinds import KINDS, kind_of
from fedapp.problems.network import NetworkProblem, as_rows
from fedapp.problems.tabular import Table
from fedapp.tables import Value
from fedapp.wire import Invitation
from tests.conftest import kebab
from tests.support.hostile_server import counted

NODE: dict[str, Value] = {"partition-id": 0, "num-partitions": 1}
GROUPS = ("g0", "g1", "g2", "g3")
TABLE: dict[str, Value] = {
    "dataset": "set",
    "problem": "tabular-classification",
    "features": "x",
    "model": "logreg",
    "num_clients": 4,
    "clients_per_round": 4,
    "partition": "writer",
    "group": "g0",
    "dp__clip": 1.0,
    "dp__where": "client",
    "dp__noise_multiplier": 4.0,
}
# What does not matter to who holds which samples.
SAME: dict[str, Value] = {
    "lr": 0.07,
    "num_rounds": 9,
    "batch_size": 3,
    "dp__noise_multiplier": 7.0,
    "run_name": "b",
    "fedprox__mu": 0.5,
    "topk__ratio": 0.3,
    "optimizer__momentum": 0.1,
    "test_share": 0.3,
    "eval_every": 2,
}
TEXTS: dict[str, Value] = {
    "dataset": "speeches",
    "model": "bag",
    "num_clients": 4,
    "clients_per_round": 4,
}
CHARACTERS: dict[str, Value] = TEXTS | {"dataset": "shakespeare", "model": "gru-4"}


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    """Write a table with four columns that may divide it."""
    rng = np.random.default_rng(0)
    owners = rng.integers(0, 4, (120, len(GROUPS)))
    rows = [f"{rng.normal():.4f},{i % 2},{','.join(map(str, own))}" for i, own in enumerate(owners)]
    text = "\n".join([f"x,label,{','.join(GROUPS)}", *rows])
    (tmp_path / "set.csv").write_text(text + "\n")
    return str(tmp_path)


def held(config: RunConfig, shard: Shard | None = None) -> tuple[str, ...]:
    """Return a digest of what each client trains on."""
    problem = make_problem(config, shard)
    assert isinstance(problem, NetworkProblem)
    parts = [as_rows(problem.problem.client_data(c), "it") for c in range(int(config.num_clients))]
    return tuple(
        hashlib.sha256(b"".join(a[part.rows].numpy().tobytes() for a in part.arrays)).hexdigest()
        for part in parts
    )


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (
            TABLE,
            [
                *({"group": group} for group in GROUPS),
                *({"partition": "classes", "target": target} for target in ("label", *GROUPS)),
                {"features": "g1"},
                {"problem": "tabular-regression", "target": "g2", "partition": "classes"},
                {"valid_share": 0.1},
                {"valid_share": 0.2},
                {"train_samples": 90},
                {"samples_per_client": 7, "partition": "iid"},
                {"num_clients": 3, "clients_per_round": 3},
                {"partition": "dirichlet"},
                {"partition": "dirichlet", "partition_alpha": 3.0},
                {"partition": "iid"},
                {"partition": "iid", "seed": 1},
            ],
        ),
        (TEXTS, [{"text__length": 32}, {"text__vocabulary": 99}, {"seed": 3}]),
        (CHARACTERS, [{"characters__length": 40}, {"partition": "writer"}]),
    ],
)
def test_what_gives_clients_other_samples_changes_the_name(
    base: dict[str, Value], changes: list[dict[str, Value]], data_dir: str
) -> None:
    place: dict[str, Value] = {"data_dir": data_dir} if base is TABLE else {}
    held_by: dict[str, tuple[str, ...]] = {}
    for change in ({}, *changes):
        config = parse_run_config(kebab(base | place | change))
        other = parse_run_config(kebab(base | place | change | SAME))
        name, rows = division_of(config, NODE), held(config)
        assert held_by.setdefault(name, rows) == rows
        assert division_of(other, NODE) == name
        assert change or held(other) == rows
    assert len(set(held_by.values())) > len(changes) // 2, "the changes change something"


def test_a_key_that_is_read_while_data_are_divided_is_in_the_name(data_dir: str) -> None:
    """So nothing that decides who holds a sample can be among the keys that are left out."""
    read: set[str] = set()
    own = Shard(data_dir, range(4), None)
    table: dict[str, Value] = TABLE | {
        "data_dir": data_dir,
        "valid_share": 0.1,
        "train_samples": 90,
    }
    bases: list[dict[str, Value]] = [{}, {"valid_share": 0.1}, table, TEXTS, CHARACTERS]
    for base in bases:
        for partition in ("iid", "dirichlet", "classes", "writer"):
            for drawn in (0, 5):
                keys = base | {"partition": partition, "samples_per_client": drawn}
                if partition == "writer" and not base.get("problem"):
                    continue
                config = spied_on(parse_run_config(kebab(keys)), read)
                kind = KINDS[-1] if "dataset" not in base else kind_of(config)
                assert kind.data is not None
                data = kind.data(config)
                division = load_partition(data, config)
                assert all(len(division[client]) for client in range(4))
                validation_rows(data, config)
                if base is table:
                    load_array_shard(own, config, Table.decoder)
                    deal(120, range(4), config, "shard")
    counted_keys = {name.replace("_", "-") for name in read}
    assert {"seed", "num-clients", "valid-share", "group", "target", "features"} <= counted_keys
    assert not counted_keys & UNRELATED


def spied_on(config: RunConfig, read: set[str]) -> RunConfig:
    """Return a config that notes which of its keys are read."""

    class Spied(type(config)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name in RunConfig.model_fields:
                read.add(name)
            return super().__getattribute__(name)

        def table(self, kind: Any) -> Any:  # looks at all of them
            return config.table(kind)

    object.__setattr__(spied := config.model_copy(), "__class__", Spied)
    return spied


def test_the_keys_that_are_left_out_are_keys() -> None:
    flat = parse_run_config({}).flat()
    assert flat.keys() >= UNRELATED
    others = {key.partition(".")[0] for key in flat if "." in key} - tables().keys()
    assert others >= UNRELATED_TABLES


def test_what_a_user_s_function_may_read_is_in_the_name() -> None:
    dataset: dict[str, Value] = {"dataset": "some.module:data", "problem": "classification"}
    problem: dict[str, Value] = {"problem": "some.module:Problem"}
    other: dict[str, Value] = {"lr": 0.7}
    for keys in (dataset, problem):
        configs = [parse_run_config(keys), parse_run_config(keys | other)]
        assert len({division_of(config, NODE) for config in configs}) == 2


class Asked:
    """A server that asks the clients of one node, which has a ledger."""

    def __init__(self, data_dir: str, **node: Value) -> None:
        InlineGrid(client_app.app, {})  # sets the identity that Flower's messages carry
        self.run: dict[str, Value] = TABLE | {"data_dir": data_dir}
        self.state_dir = Path(data_dir) / "state"
        limits = {key.replace("_", "-"): value for key, value in node.items()}
        self.node = NODE | {"state-dir": str(self.state_dir)} | limits

    def answers(self, client: int, **keys: Value) -> bool:
        """Ask a client for an update; return whether there is one."""
        flat = kebab(self.run | keys)
        config = parse_run_config(flat)
        shared = make_strategy(config, make_problem(config)).arrays()
        context = Context(1, 1, dict(self.node), RecordDict(), flat)
        invitation = Invitation(1, 4, "run", "", {client: 0}, {})
        message = Message(wire.pack_invitation(invitation, shared), 1, "train")
        reply = client_app.app(message, context).content
        return isinstance(reply.get(f"client.{client}"), ArrayRecord)


def test_a_sample_is_released_as_often_as_the_limit_says_over_all_divisions(data_dir: str) -> None:
    server = Asked(data_dir, dp_max_releases=2)
    given = 0
    changes: list[dict[str, Value]] = [{"group": group} for group in GROUPS]
    changes.append({"valid_share": 0.1})
    for change in changes:
        problem = make_problem(parse_run_config(kebab(server.run | change)))
        assert isinstance(problem, NetworkProblem) and isinstance(problem.problem, ArrayProblem)
        division = problem.problem.partition
        assert division is not None
        holders = [client for client in range(4) if 0 in division[client]]
        given += sum(server.answers(c, **change) for c in holders for _ in range(3))
    assert given == 2


def test_clients_that_share_samples_share_a_budget(data_dir: str) -> None:
    server = Asked(data_dir, dp_max_releases=3)
    keys: dict[str, Value] = {"partition": "iid", "samples_per_client": 90}
    assert [server.answers(c, **keys) for c in (0, 1, 2, 3, 0)] == [True] * 3 + [False] * 2
    assert counted(server.state_dir) == {"all": 3}


def test_other_rows_in_a_file_are_another_division(data_dir: str) -> None:
    """Which of a node's clients holds a row depends on how many there are."""
    server = Asked(data_dir, dp_max_releases=3)
    assert [server.answers(c) for c in (0, 1, 2)] == [True] * 3
    file = Path(data_dir) / "set.csv"
    file.write_text(file.read_text() + "1.5,1,0,0,0,0\n")
    make_problem(parse_run_config({}))  # a process keeps the data of its last problem
    assert not server.answers(0)
