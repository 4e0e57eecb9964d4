"""Private rounds through the ServerApp and the ClientApp: what is sent, what is released, and who takes part."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.models.layout import Layout
from fedapp.privacy import ServerNoise
from fedapp.privacy.noise import clipped_mean, private_update
from fedapp.problems import make_problem
from fedapp.randomness import generator
from fedapp.registry import find_compressor
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Value
from fedapp.wire import Update
from tests.conftest import RunInline, read_rounds
from tests.support.private import CLIP, KEYS, MEANS, S, Z, config_of, strategy_of


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[list[Update]]:
    """Return a list that fills with what the server receives, round by round."""
    rounds: list[list[Update]] = []
    mean = FederatedStrategy.mean

    def listen(self: Any, updates: Any, name: str = "u") -> Any:
        rounds.append(list(updates))
        return mean(self, updates, name)

    monkeypatch.setattr(FederatedStrategy, "mean", listen)
    return rounds


# Through the ServerApp and the ClientApp.


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("where", ["server", "client"])
def test_every_mean_is_released_once_with_its_noise(
    name: str, where: str, run_inline: RunInline, received: list[list[Update]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    means: list[NDArray[Any]] = []
    original = ServerNoise.mean

    def listen(self: Any, vectors: Any, tag: int) -> Any:
        means.append(original(self, vectors, tag))
        return means[-1]

    monkeypatch.setattr(ServerNoise, "mean", listen)
    own: dict[str, Value] = {"dataset": "digits", "model": "mlp-30", "compressor": "none"}
    own |= {"algorithm": name, "lr": 1e-6, "dp__where": where, "num_rounds": 2, "partition": "iid"}
    if name == "qsgd":
        own |= {"clients_per_round": 8, "local_steps": 1}
    rounds = read_rounds(run_inline(**KEYS | own))
    s = 8 if name == "qsgd" else S
    assert all(r["train_loss"] is None and r["epsilon"] > 0 for r in rounds)
    if where == "server":
        assert len(means) == 2
        noises = means
        expected = Z * CLIP / s
    else:
        assert not means
        noises = [next(iter(u.arrays.values())) for updates in received for u in updates]
        assert len(noises) == 2 * s
        expected = Z * CLIP
    for noise in noises:  # lr is next to nothing, or what is sent is clipped
        assert noise.std() == pytest.approx(expected, rel=0.07)
    assert np.abs(np.corrcoef(noises) - np.eye(len(noises))).max() < 0.15


def test_without_noise_a_hostile_client_moves_the_model_no_further_than_its_share(
    run_inline: RunInline,
) -> None:
    before = strategy_of().x
    keys = KEYS | {"lr": 0.9, "num_rounds": 1, "dp__noise_multiplier": 0.0}
    for where in ("server", "client"):
        after = load_file(run_inline(**keys, dp__where=where) / "model.safetensors")["x"]
        assert 0.1 * CLIP < np.linalg.norm(after - before) <= CLIP * (1 + 1e-6)
    free = load_file(run_inline(**keys | {"dp__clip": 0.0}) / "model.safetensors")["x"]
    assert np.linalg.norm(free - before) > 2 * CLIP


@pytest.mark.parametrize("feedback", [False, True])
def test_a_client_compresses_what_has_noise_already(
    feedback: bool, run_inline: RunInline, received: list[list[Update]]
) -> None:
    keys = KEYS | {"dp__where": "client", "compressor": "uniform", "uniform__bits": 4, "lr": 1e-9}
    keys |= {"error_feedback": feedback, "clients_per_round": 8, "num_rounds": 2}
    run_inline(**keys)
    config = config_of(**keys)
    codec = find_compressor(config, Layout.single(200).pieces)
    assert codec
    errors: dict[int, NDArray[Any]] = dict.fromkeys(range(8), np.zeros(200))
    for round_, updates in enumerate(received, 1):
        for update in updates:
            assert len(np.unique(update["u"])) <= 16  # noise after Q would be on no grid
            private = private_update(np.zeros(200), config, round_, update.client)
            assert private.std() == pytest.approx(Z * CLIP, rel=0.2)
            asked = (private + feedback * errors[update.client]).astype(np.float32)
            rng = generator(config.seed, "compress u", round_, update.client)
            seen = codec.transmit(asked, rng)[1]
            np.testing.assert_allclose(update["u"], seen, atol=1e-5)
            errors[update.client] = asked - seen


def test_the_server_clips_what_it_has_decoded(
    run_inline: RunInline, received: list[list[Update]]
) -> None:
    keys = KEYS | {"compressor": "uniform", "uniform__bits": 4, "num_rounds": 1}
    before = strategy_of().x
    after = load_file(run_inline(**keys | {"dp__noise_multiplier": 0.0}) / "model.safetensors")["x"]
    vectors = [update["u"] for update in received[0]]
    assert all(len(np.unique(v)) <= 16 and np.linalg.norm(v) > CLIP for v in vectors)
    np.testing.assert_allclose(before - after, clipped_mean(vectors, CLIP, S), atol=1e-6)


@pytest.mark.parametrize("where", ["server", "client"])
def test_only_seeded_noise_can_be_computed_again(where: str, run_inline: RunInline) -> None:
    def model(source: str) -> NDArray[Any]:
        keys = KEYS | {"clients_per_round": 8, "dp__where": where, "dp__noise_from": source}
        return np.asarray(load_file(run_inline(**keys) / "model.safetensors")["x"])

    np.testing.assert_array_equal(model("seed"), model("seed"))
    one, other = model("system"), model("system")
    assert (one != other).mean() > 0.99
    assert (one != model("seed")).mean() > 0.99


def test_local_privacy_hides_losses_and_examples(
    run_inline: RunInline, received: list[list[Update]]
) -> None:
    keys: dict[str, Value] = {"dataset": "digits", "model": "logreg", "partition": "dirichlet", "local_epochs": 1}  # fmt: skip
    run_inline(**KEYS | keys, dp__where="client")
    hidden = [(u.num_examples, u.steps, u.train_loss) for updates in received for u in updates]
    assert set(hidden) == {(32, 0, 0.0)}  # the batch size, which the config tells everybody
    received.clear()
    run_inline(**KEYS | keys | {"dp__clip": 0.0})
    told = {(u.num_examples, u.steps, u.train_loss) for updates in received for u in updates}
    assert len(told) > S  # the test above could fail


@pytest.mark.slow
def test_it_learns_under_modest_noise(run_inline: RunInline) -> None:
    keys: dict[str, Value] = {
        "model": "logreg", "partition": "iid", "num_clients": 60, "clients_per_round": 40,
        "dp__clip": 0.5, "eval_every": 20,
    }  # fmt: skip
    last = {}
    for z, num_rounds in ((1.0, 20), (100.0, 5)):
        more = {"dp__noise_multiplier": z, "num_rounds": num_rounds}
        last[z] = read_rounds(run_inline(**keys | more))[-1]["test_accuracy"]
    assert last[1.0] > 0.75
    assert last[100.0] < 0.6


# Who takes part.


def cohort_of(strategy: Any, grid: InlineGrid, round_: int) -> list[int]:
    messages = strategy.configure_train(round_, strategy.arrays(), ConfigRecord(), grid)
    return [client for message in messages for client in message.content["round"]["clients"]]


def test_nobody_can_compute_who_took_part() -> None:
    def cohorts(**keys: Value) -> list[list[int]]:
        config = config_of(num_clients=40, **keys)
        strategy = make_strategy(config, make_problem(config))
        grid = InlineGrid(client_app.app, config.flat())
        return [cohort_of(strategy, grid, round_) for round_ in range(1, 6)]

    seeded = cohorts()
    assert seeded == cohorts() == cohorts(dp__clip=0.0)
    assert cohorts(dp__noise_from="system") != cohorts(dp__noise_from="system")
    assert cohorts(dp__noise_from="system", dp__where="client") == seeded  # the server knows anyway


class HalfThere(InlineGrid):
    def get_node_ids(self) -> Any:
        return [1]


def test_cohorts_are_drawn_from_all_clients_also_those_away() -> None:
    def sizes(**keys: Value) -> list[int]:
        config = config_of(num_clients=40, clients_per_round=10, **keys)
        strategy = make_strategy(config, make_problem(config))
        grid = HalfThere(client_app.app, config.flat(), 2)
        return [len(cohort_of(strategy, grid, round_)) for round_ in range(1, 21)]

    assert sizes(dp__clip=0.0) == [10] * 20
    assert 4 <= np.mean(sizes()) <= 6
