"""Option 1 of FedGATE and FedCOMGATE: clients derive x, and end with the bits of option 2, which sends it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedapp import client_app, server_app
from fedapp.building import expected_bytes, make_strategy
from fedapp.config import RunConfig
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.quadratic import Quadratic
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from tests.conftest import kebab, read_rounds
from tests.support.deaths import in_round, killed

KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "quadratic__dim": 400,
    "num_clients": 6,
    "clients_per_round": 6,
    "local_steps": 2,
    "num_rounds": 7,
    "lr": 0.3,
    "eval_every": 7,
}


def config_with(algorithm: str, option: int, **keys: Value) -> RunConfig:
    own: dict[str, Value] = {"algorithm": algorithm, f"{algorithm}__option": option}
    return parse_run_config(kebab(KEYS | own | keys))


def run(
    algorithm: str, option: int, grid_type: type[InlineGrid] = InlineGrid, **keys: Value
) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Return x after each round, and the records."""
    config = config_with(algorithm, option, **keys)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = grid_type(client_app.app, config.flat(), 3)
    rounds = [(strategy.x.tobytes(), r) for r in run_rounds(grid, strategy, problem, config)]
    return [x for x, _ in rounds], [record for _, record in rounds]


class Losing(InlineGrid):
    """Loses the answers of the second node in the rounds of `thin`, and all of one attempt at round 4."""

    thin = (3, 5)
    lost_all = False

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        replies = list(super().send_and_receive(messages, timeout=timeout))
        numbers = {m.content["round"]["round"] for m in messages if "round" in m.content}
        if numbers == {4} and not self.lost_all:
            self.lost_all = True
            return []
        if numbers & set(self.thin):
            return [r for r in replies if r.metadata.src_node_id != 2]
        return replies


@pytest.mark.parametrize("grid_type", [InlineGrid, Losing])
@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("fedgate", {}),
        ("fedgate", {"dtype": "float64", "server_lr": 0.7}),
        ("fedcomgate", {"lr_schedule": "exponential", "lr_decay": 0.9, "server_lr": 0.7}),
        ("fedcomgate", {"compressor": "topk", "fedcomgate__memory": "paper"}),
        ("fedgate", {"dataset": "digits", "model": "mlp-8", "lr": 0.1}),
    ],
)
def test_both_options_give_the_same_bits(
    algorithm: str, keys: dict[str, Value], grid_type: type[InlineGrid]
) -> None:
    one, told_one = run(algorithm, 1, grid_type, **keys)
    two, told_two = run(algorithm, 2, grid_type, **keys)
    assert len(set(two)) == KEYS["num_rounds"], "x moves"
    assert one == two
    failures = [record["failures"] for record in told_one]
    assert failures == [record["failures"] for record in told_two]
    assert (sum(failures) > 0) == (grid_type is Losing)


def test_half_of_the_downlink_is_saved() -> None:
    _, one = run("fedgate", 1)
    _, two = run("fedgate", 2)
    down_one, down_two = ([r["downlink_bytes"] for r in records] for records in (one, two))
    assert down_one[0] == down_two[0], "the first round's clients hold nothing"
    vector = 400 * 4 + 128  # with the header of an array
    for ours, theirs in zip(down_one[1:], down_two[1:], strict=True):
        assert theirs - ours == 6 * vector
    assert down_one[1] == 6 * (vector + 128), "the mean, and no buffers"
    config = config_with("fedgate", 1)
    _, down = expected_bytes(make_strategy(config, make_problem(config)))
    assert down == 6 * 400 * 4


def test_only_who_missed_a_round_receives_x() -> None:
    """Node 2 hosts two of six clients, and its answers are lost in rounds 3 and 5; round 4 is tried twice."""
    _, one = run("fedgate", 1, Losing)
    _, two = run("fedgate", 2, Losing)
    vector = 400 * 4 + 128
    saved = [t["downlink_bytes"] - o["downlink_bytes"] for o, t in zip(one, two, strict=True)]
    # Round 4: the first attempt saves four vectors; when it is repeated, all receive x.
    assert [count // vector for count in saved] == [0, 6, 6, 4, 6, 4, 6]


def test_unequal_work_sends_x_and_changes_no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """mean(D_j / tau_j) goes down then, which x cannot be derived from."""
    make = Quadratic.objective

    def objective(self: Quadratic, client: int) -> Any:
        made: Any = make(self, client)
        made.num_examples = client + 1
        return made

    monkeypatch.setattr(Quadratic, "objective", objective)
    keys: dict[str, Value] = {"local_epochs": 1, "batch_size": 1}
    one, told_one = run("fedcomgate", 1, InlineGrid, **keys)
    two, told_two = run("fedcomgate", 2, InlineGrid, **keys)
    assert one == two
    assert [r["downlink_bytes"] for r in told_one] == [r["downlink_bytes"] for r in told_two]


@pytest.mark.parametrize("algorithm", ["fedgate", "fedcomgate"])
def test_a_killed_run_resumes_with_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    def start(place: str, option: int) -> Path:
        keys: dict[str, Value] = {"run_name": "run", "checkpoint_every": 2, "resume": True}
        directory = {"results_dir": str(tmp_path / place)}
        config = config_with(algorithm, option, **keys, **directory)
        return server_app.run(InlineGrid(client_app.app, config.flat(), 3), config).path

    whole, other = start("whole", 1), start("two", 2)
    with pytest.MonkeyPatch.context() as patch:
        in_round(4)(patch)
        killed(lambda: start("killed", 1))
    resumed = start("killed", 1)
    assert (
        len({(d / "model.safetensors").read_bytes()[-400 * 4 :] for d in (whole, other, resumed)})
        == 1
    )
    down = [[r["downlink_bytes"] for r in read_rounds(d)] for d in (whole, resumed)]
    assert down[0] == down[1]


class Forgetting(InlineGrid):
    """Its second node loses its clients' states before round 4."""

    lost = False

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        if not self.lost and any(
            m.content["round"]["round"] == 4 for m in messages if "round" in m.content
        ):
            self.lost = True
            self.contexts[2].state.clear()
        return super().send_and_receive(messages, timeout=timeout)


@pytest.mark.parametrize("on_lost_state", ["go-on", "reset"])
def test_a_client_that_lost_its_state_fails_once_and_then_receives_x(
    on_lost_state: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Value] = {"on_lost_state": on_lost_state}
    xs, records = run("fedgate", 1, Forgetting, **keys)
    assert [record["failures"] for record in records] == [0, 0, 0, 2, 0, 0, 0]
    assert any("state is lost" in message for message in caplog.messages)
    assert np.isfinite(np.frombuffer(xs[-1], np.float32)).all()


@pytest.mark.parametrize("algorithm", ["fedgate", "fedcomgate"])
def test_fewer_than_all_clients_are_refused(algorithm: str) -> None:
    config = config_with(algorithm, 1, clients_per_round=5)
    with pytest.raises(ConfigError, match=r"set clients-per-round = 6, or .*option = 2"):
        make_strategy(config, make_problem(config))


@pytest.mark.parametrize("name", ["fedgate", "fedcomgate"])
def test_clients_cannot_derive_x_from_a_rounded_mean(name: str) -> None:
    keys = {"algorithm": name, f"{name}.option": 1, "downlink": "grid", "dataset": "quadratic"}
    with pytest.raises(ConfigError, match=f"{name}.option = 2"):
        make_strategy(keys | {"num-clients": 4, "clients-per-round": 4})
