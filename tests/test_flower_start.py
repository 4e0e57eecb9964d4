"""Strategies and ClientApp in another Flower app: Flower's own `start()` gives the bits of our loop."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from deploy.processes import Federation
from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.client_app import make_client_app
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.keywords import as_config
from fedapp.problems import make_problem
from fedapp.problems.outline import server_shard
from fedapp.registry import ALGORITHMS
from fedapp.rounds import run_rounds
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Value
from tests.support.datasets import OWN_DATA, write_shards
from tests.support.federations import simulated

ROUNDS = 4
SMALL: dict[str, Any] = {
    "num_rounds": ROUNDS,
    "num_clients": 8,
    "clients_per_round": 4,
    "model": "mlp-10",
}
# What another app's run config may say.
OTHER_APP: dict[str, Value] = {"learning-rate": 0.1, "num-clients": 3}


def under_our_loop(
    keys: dict[str, Any], nodes: int = 3
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Return the model after each round, and the records."""
    config = as_config(keys)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = InlineGrid(client_app.app, config.flat(), nodes)
    models, records = [], []
    for record in run_rounds(grid, strategy, problem, config):
        models.append(strategy.x.tobytes() + strategy.buffers.tobytes())
        records.append(record)
    return models, records


def under_flowers_loop(
    keys: dict[str, Any], nodes: int = 3
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Return the same from Flower's `start()`, with a ClientApp that does not read the app's run config."""
    problem = make_problem(as_config(keys))
    strategy = make_strategy(keys)
    grid = InlineGrid(make_client_app(keys), OTHER_APP, nodes)
    models = []

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        models.append(strategy.x.tobytes() + strategy.buffers.tobytes())
        return MetricRecord(dict(problem.evaluate(strategy.x, strategy.buffers)))

    result = strategy.start(grid, strategy.arrays(), ROUNDS, evaluate_fn=evaluate)
    records: list[dict[str, Any]] = [
        dict(result.train_metrics_clientapp[round_])
        | dict(result.evaluate_metrics_clientapp.get(round_, {}))
        | dict(result.evaluate_metrics_serverapp[round_])
        for round_ in range(1, ROUNDS + 1)
    ]
    assert result.arrays == strategy.arrays()
    return models[1:], records


def assert_same_bits(keys: dict[str, Any]) -> None:
    models, records = under_our_loop(keys)
    models_too, records_too = under_flowers_loop(keys)
    assert models_too == models
    for mine, theirs in zip(records, records_too, strict=True):
        assert theirs == {name: mine[name] for name in theirs}
        assert {"test_accuracy", "train_loss", "uplink_bytes", "clients"} <= theirs.keys()


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "fedavg"},
        {"algorithm": "fedavg", "model": "resnet20", "local_steps": 1, "batch_size": 4},  # buffers
        {"algorithm": "fedcomgate", "clients_per_round": 8},  # compressed; states delivered
        {"algorithm": "scaffold", "compressor": "topk", "error_feedback": True},
        {"algorithm": "gradma"},  # the server's memory
        {"algorithm": "fedbcgd-plus"},  # blocks, so clients send different vectors
        {"algorithm": "diana", "clients_per_round": 8, "local_steps": 1},
        {"algorithm": "fedadam", "lr_schedule": "inverse-sqrt"},
        {"eval_clients": "0.5", "test_share": 0.2, "eval_finetune": 1},
        {"trainable": "head", "algorithm": "scaffold"},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_flowers_start_gives_the_bits_of_our_loop(keys: dict[str, Any]) -> None:
    assert_same_bits(SMALL | keys)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_under_flowers_start(algorithm: str) -> None:
    needs = ALGORITHMS[algorithm].needs
    keys = SMALL | {"algorithm": algorithm}
    if needs.all_clients:
        keys["clients_per_round"] = 8
    if needs.one_local_step:
        keys["local_steps"] = 1
    assert_same_bits(keys)


class Forgetful(InlineGrid):
    """Loses all training replies of the second round."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return [reply for reply in replies if reply.metadata.group_id != "2"]


def started(strategy: FederatedStrategy[Any], grid: InlineGrid, **named: Any) -> Any:
    return strategy.start(grid, strategy.arrays(), ROUNDS, **named)


@pytest.mark.parametrize("algorithm", ["scaffold", "fedcomgate"])
def test_a_round_with_too_few_updates_changes_nothing_and_the_next_follows(algorithm: str) -> None:
    keys = SMALL | {"algorithm": algorithm}
    strategy, seen = make_strategy(keys), []

    def look(round_: int, arrays: ArrayRecord) -> None:
        seen.append(strategy.x.copy())

    result = started(strategy, Forgetful(make_client_app(keys), OTHER_APP, 2), evaluate_fn=look)
    metrics = [result.train_metrics_clientapp[r] for r in range(1, ROUNDS + 1)]
    assert [m["clients"] for m in metrics] == [4, 0, 4, 4]
    assert [m["failures"] for m in metrics] == [0, 4, 0, 0]
    assert np.array_equal(seen[1], seen[2])
    assert not np.array_equal(seen[2], seen[3])
    assert result.arrays == strategy.arrays()


def test_other_initial_arrays_are_refused() -> None:
    keys = SMALL | {"dataset": "quadratic"}
    strategy, other = make_strategy(keys), make_strategy(keys | {"quadratic__dim": 7})
    grid = InlineGrid(make_client_app(keys), OTHER_APP)
    with pytest.raises(ConfigError, match=r"pass strategy\.arrays\(\)"):
        strategy.start(grid, other.arrays(), ROUNDS)


def test_a_schedule_that_depends_on_the_rounds_is_refused_for_another_number() -> None:
    keys = SMALL | {"dataset": "quadratic", "lr_schedule": "inverse-sqrt"}
    strategy, grid = make_strategy(keys), InlineGrid(make_client_app(keys), OTHER_APP)
    with pytest.raises(ConfigError, match=f"with num-rounds = {ROUNDS + 1}"):
        strategy.start(grid, strategy.arrays(), ROUNDS + 1)


def test_the_app_of_this_package_still_reads_the_run_config() -> None:
    keys = SMALL | {"dataset": "quadratic"}
    strategy = make_strategy(keys)
    grid = InlineGrid(
        client_app.app, as_config(keys | {"num_clients": 2, "clients_per_round": 2}).flat()
    )
    grid_too = InlineGrid(make_client_app(keys), OTHER_APP)
    strategy.hosting.update(grid)
    assert list(strategy.hosting.clients) == [0, 1]
    other = make_strategy(keys)
    other.hosting.update(grid_too)
    assert list(other.hosting.clients) == list(range(8))


def test_a_server_without_data_asks_the_nodes(tmp_path: Path) -> None:
    """The nodes have the data of a run whose server has them all."""
    keys: dict[str, Any] = OWN_DATA | {"algorithm": "scaffold", "num-rounds": ROUNDS}
    alone = keys | {"server-data": False, "dataset": "digits", "data-dir": "/nowhere"}
    grid = InlineGrid(make_client_app(alone), OTHER_APP, nodes=3)
    for context, place in zip(grid.contexts.values(), write_shards(tmp_path), strict=True):
        context.node_config["data-dir"] = place
    strategy = make_strategy(alone, grid=grid)
    strategy.start(grid, strategy.arrays(), ROUNDS)
    in_loop = make_strategy(alone, grid=grid)
    problem = make_problem(in_loop.config, server_shard(in_loop.config))
    for context in grid.contexts.values():
        context.state = RecordDict()
    list(run_rounds(grid, in_loop, problem, in_loop.config))
    assert strategy.x.tobytes() == in_loop.x.tobytes()
    with pytest.raises(ConfigError, match="grid"):
        make_strategy(alone)


PROJECT = {
    "pyproject.toml": """
[project]
name = "other"
version = "1.0.0"
description = "Another Flower app"
license = "Apache-2.0"
dependencies = ["fedapp"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "other"

[tool.flwr.app.components]
serverapp = "other.server_app:app"
clientapp = "other.client_app:app"

[tool.flwr.app.config]
rounds = 2
out = ""
""",
    "other/__init__.py": "",
    "other/settings.py": "KEYS = {keys!r}\n",
    "other/client_app.py": """
from fedapp.client_app import make_client_app
from other.settings import KEYS

app = make_client_app(KEYS)
""",
    "other/server_app.py": """
import numpy as np
from flwr.serverapp import ServerApp

from fedapp.problems.outline import server_shard
from fedapp.building import make_strategy
from other.settings import KEYS

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = make_strategy(KEYS)
    strategy.start(grid, strategy.arrays(), context.run_config["rounds"])
    np.save(context.run_config["out"], strategy.x)
""",
}


@pytest.mark.slow
@pytest.mark.xdist_group("flwr")
def test_another_project_runs_a_strategy_with_flwr_run(
    simulation: Federation, tmp_path: Path
) -> None:
    keys = SMALL | {"algorithm": "fedcomgate"}
    for name, text in PROJECT.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{keys!r}", repr(keys)))
    out = tmp_path / "x.npy"
    config = f'rounds={ROUNDS} out="{out}"'
    shown, status = simulated(simulation, config, app=tmp_path / "project")
    assert status["status"] == "finished:completed", shown
    assert np.load(out).tobytes() == under_our_loop(keys)[0][-1]
