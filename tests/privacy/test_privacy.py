"""Differential privacy: clipping, noise, what is told and what is spent; and what the table on SecAgg+ says."""

import json
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import Strategy
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.optimize import brentq
from scipy.stats import norm

from fedapp import client_app, registry
from fedapp.algorithm import Algorithm
from fedapp.building import make_strategy
from fedapp.config import RunConfig
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.privacy import CountedPrivacy, ServerNoise, accounting, server_privacy
from fedapp.privacy.accounting import epsilon
from fedapp.privacy.noise import clipped, clipped_mean, private_update, system_normals
from fedapp.problems import make_problem
from fedapp.randomness import generator
from fedapp.registry import ALGORITHMS, find_compressor
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Value
from fedapp.wire import Update
from tests.conftest import RunInline, kebab, read_rounds

MEANS = [name for name, a in ALGORITHMS.items() if a.strategy.rule_is_a_mean]
CLIP, Z, S = 0.5, 1.5, 4
KEYS: dict[str, Value] = {
    "dataset": "quadratic",
    "quadratic__dim": 200,
    "num_clients": 8,
    "clients_per_round": S,
    "num_rounds": 3,
    "lr": 0.3,
    "dp__clip": CLIP,
    "dp__noise_multiplier": Z,
    "dp__noise_from": "seed",
}


def config_of(**keys: Value) -> RunConfig:
    return parse_run_config(kebab(KEYS | keys))


def strategy_of(**keys: Value) -> Any:
    config = config_of(**keys)
    return make_strategy(config, make_problem(config))


def sent(*vectors: NDArray[Any]) -> list[Update]:
    return [Update(c, {"u": vector}, 1, 1, 0.0) for c, vector in enumerate(vectors)]


def counted(config: RunConfig) -> CountedPrivacy:
    privacy = server_privacy(config)
    assert isinstance(privacy, CountedPrivacy)
    return privacy


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


# Clipping, noise, sensitivity.


def test_clipping_is_exact() -> None:
    rng = np.random.default_rng(0)
    vector = rng.normal(size=1000).astype(np.float32)
    long = clipped(vector, 0.25)
    assert np.linalg.norm(long) == pytest.approx(0.25, rel=1e-14)
    np.testing.assert_allclose(long / 0.25, vector / np.linalg.norm(vector.astype(float)))
    np.testing.assert_array_equal(clipped(vector, 1e3), vector)
    np.testing.assert_array_equal(clipped(np.zeros(3, np.float32), 1.0), np.zeros(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_has_no_length_counts_as_nothing(bad: float) -> None:
    np.testing.assert_array_equal(clipped(np.array([1.0, bad]), 1.0), [0, 0])


Coordinates = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=3, max_size=3)


@settings(deadline=None, max_examples=200)
@given(st.lists(Coordinates, min_size=2, max_size=5), st.one_of(st.none(), Coordinates))
def test_one_client_moves_the_mean_by_at_most_twice_clip_over_s(
    rows: list[list[float]], other: list[float] | None
) -> None:
    vectors = [np.array(row, np.float32) for row in rows]
    replaced = vectors[1:] + ([] if other is None else [np.array(other, np.float32)])
    moved = clipped_mean(vectors, CLIP, 5) - clipped_mean(replaced, CLIP, 5)
    assert np.linalg.norm(moved) <= 2 * CLIP / 5 * (1 + 1e-9)


def test_that_bound_is_reached_and_absent_clients_count_as_zero() -> None:
    far = np.array([1e6, 0.0])
    moved = clipped_mean([far, far], CLIP, S) - clipped_mean([far, -far], CLIP, S)
    np.testing.assert_allclose(moved, [2 * CLIP / S, 0])
    np.testing.assert_allclose(clipped_mean([far], CLIP, S), [CLIP / S, 0])


def test_system_noise_is_standard_normal_and_new_each_time() -> None:
    draws = system_normals(400_000)
    assert abs(draws.mean()) < 6 / math.sqrt(draws.size)
    assert abs(draws.var() - 1) < 6 * math.sqrt(2 / draws.size)
    shares = [(np.abs(draws) < edge).mean() for edge in (0.5, 1, 2, 3)]
    np.testing.assert_allclose(shares, [2 * norm.cdf(e) - 1 for e in (0.5, 1, 2, 3)], atol=0.006)
    assert not np.isin(draws[:1000], system_normals(1000)).any()


@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x7F, 0x80, 0x01, 0xFE])
def test_no_bits_make_noise_infinite(byte: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in range(8):
        for rest in (0x00, 0xFF):
            bits = bytearray([rest] * 8)
            bits[place] = byte
            monkeypatch.setattr(os, "urandom", lambda size, bits=bits: bytes(bits) * (size // 8))
            (draw,) = system_normals(1)
            assert math.isfinite(draw)
            assert 0 < abs(draw) < 9


def test_noise_is_symmetric(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).integers(2**63, size=1000, dtype=np.uint64)
    draws = []
    for sign in (0, 1):
        bits = (numbers | np.uint64(1)) - np.uint64(sign)
        monkeypatch.setattr(os, "urandom", lambda size, bits=bits: bits.tobytes())
        draws.append(system_normals(1000))
    np.testing.assert_array_equal(draws[0], -draws[1])


@pytest.mark.parametrize("count", [S, 1])
def test_the_means_noise_is_what_is_promised(count: int) -> None:
    strategy = strategy_of(dataset="digits", model="mlp-200")
    size = strategy.x.size
    update = np.full(size, 0.5 * CLIP / math.sqrt(size), np.float32)  # half as long as allowed
    noises = []
    for tag in (1, 2):
        strategy.ledger.begin(tag, 0)
        mean = strategy.mean(sent(*[update] * count))
        assert mean.dtype == strategy.x.dtype
        noises.append(mean - count * update / S)
    for noise in noises:
        assert noise.std() == pytest.approx(Z * CLIP / S, rel=0.02)
        assert abs(noise.mean()) < 5 * Z * CLIP / S / math.sqrt(noise.size)
    assert abs(np.corrcoef(noises)[0, 1]) < 0.04


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
    codec = find_compressor(config, (200,))
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


# What is refused.


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in MEANS])
def test_rules_that_are_no_mean_are_refused(name: str) -> None:
    own: dict[str, Value] = {"algorithm": name, "dataset": "digits", "clients_per_round": 8}
    with pytest.raises(ConfigError, match="choose an algorithm whose rule is a mean"):
        strategy_of(**own, local_steps=1)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"weighting": "examples"}, 'set weighting = "uniform"'),
        ({"aggregation": "median"}, 'set aggregation = "mean"'),
        ({"aggregation": "trimmed-mean"}, 'set aggregation = "mean"'),
        ({"max_update_norm": 1.0}, "set max-update-norm = 0"),
        ({"dataset": "digits", "model": "resnet20"}, 'set norm = "group"'),
        ({"dataset": "digits", "model": "logreg", "eval_train": True}, "set eval-train = false"),
        ({"dataset": "digits", "model": "logistic"}, "a network as model"),
    ],
)  # fmt: skip
def test_what_would_not_be_protected_is_refused(keys: dict[str, Value], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        strategy_of(**keys)
    strategy_of(**keys, dp__clip=0.0)


def test_what_is_allowed() -> None:
    strategy_of(max_update_norm=100.0, dp__where="client")  # a function of what is noised already
    strategy_of(dataset="digits", model="resnet20", norm="group")
    strategy_of(compressor="topk", error_feedback=True)


def test_without_the_accountant_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[privacy\]'"):
        strategy_of()
    strategy_of(dp__noise_multiplier=0.0)
    assert counted(strategy_of(dp__where="client").config).spent(3) > 0  # in closed form


def test_what_weakens_the_protection_is_told(
    run_inline: RunInline, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = KEYS | {"dp__noise_from": "system"}
    run_inline(**quiet)
    assert not [m for m in caplog.messages if "dp." in m]
    whole = counted(config_of()).spent(3)
    assert f"after 3 rounds epsilon = {whole:.4g} will have been spent" in capsys.readouterr().out
    for keys, said in (
        ({"dp__noise_from": "seed"}, "take the noise off again"),
        ({"dp__noise_multiplier": 0.0}, "nothing is protected"),
        ({"dp__delta": 0.2}, "well below 1/num-clients"),
    ):
        caplog.clear()
        rounds = read_rounds(run_inline(**quiet | keys))
        assert said in caplog.text
    directory = run_inline(**quiet | {"dp__noise_multiplier": 0.0})
    assert [r["epsilon"] for r in read_rounds(directory)] == [None] * 3
    assert rounds[-1]["epsilon"] < whole  # for a larger delta


# What is spent.


def exact_epsilon(deviation: float, distance: float, delta: float) -> float:
    """Return epsilon of the Gaussian mechanism as such (Balle and Wang, 2018, theorem 8)."""

    def excess(e: float) -> float:
        a, b = distance / (2 * deviation), e * deviation / distance
        return float(norm.cdf(a - b) - math.exp(e) * norm.cdf(-a - b)) - delta

    return float(brentq(excess, 0, 500))


@pytest.mark.parametrize("z", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("releases", [1, 10, 100])
@pytest.mark.parametrize("where", ["server", "client"])
def test_epsilon_of_all_clients_is_the_gaussians(z: float, releases: int, where: str) -> None:
    spent = counted(
        config_of(clients_per_round=8, dp__noise_multiplier=z, dp__where=where)
    ).spent(releases)  # fmt: skip
    # k releases with deviation z clip, of what moves by 2 clip, are one of sqrt(k) times the distance.
    exact = exact_epsilon(z * CLIP, 2 * CLIP * math.sqrt(releases), 1e-5)
    assert spent == pytest.approx(exact, rel=1e-6)
    # Rényi's curve a/(2 sigma^2), turned into epsilon as Canonne, Kamath and Steinke do, is a bound.
    a = np.linspace(1.01, 400, 100_000)
    curve = releases * a / (2 * (z / 2) ** 2)
    best = (curve + np.log1p(-1 / a) - (math.log(1e-5) + np.log(a)) / (a - 1)).min()
    assert 0.6 * best < spent <= best


@pytest.mark.parametrize(("sample", "population"), [(5, 20), (50, 500), (100, 10_000)])
@pytest.mark.parametrize("z", [1.0, 4.0])
def test_epsilon_of_a_sample_is_no_less_than_an_attack_achieves(
    sample: int, population: int, z: float
) -> None:
    """All others send 0; whether one of them sends clip or -clip is told apart by the sum's density."""
    config = config_of(num_clients=population, clients_per_round=sample, dp__noise_multiplier=z)
    spent = counted(config).spent(1)
    q, grid = sample / population, np.linspace(-1 - 9 * z, 1 + 9 * z, 200_001)

    def density(sign: int) -> NDArray[Any]:
        return np.asarray((1 - q) * norm.pdf(grid, 0, z) + q * norm.pdf(grid, sign, z))

    over = np.maximum(density(1) - math.exp(spent) * density(-1), 0)
    assert over.sum() * (grid[1] - grid[0]) <= 1e-5
    for releases in (1, 10):
        assert counted(config).spent(releases) < epsilon(z / 2, 1e-5, releases)


def losses_of_an_attack(
    z: float, q: float, roles: Sequence[bool], size: int, rng: np.random.Generator
) -> NDArray[Any]:
    """Return the privacy losses of many runs in which all but one client send the same vector of length clip.

    In each round, the others send what the one's replacement sends (`True`), or what the one itself would send: then it is
    the replacement that stands out. It is 2 clip away, in units of which the noise is z/2, if it is drawn at all.
    """
    deviation = z / 2
    total = np.zeros(size)
    for stands_out in roles:
        x = deviation * rng.normal(size=size)
        if stands_out:
            x += rng.random(size) < q
        ratio = np.log1p(q * np.expm1((x - 0.5) / deviation**2))
        total += ratio if stands_out else -ratio
    return total


@pytest.mark.parametrize("roles", ["the same", "the other", "alternating"])
@pytest.mark.parametrize(
    ("z", "sample", "population", "rounds"), [(4.0, 50, 500, 100), (1.0, 5, 20, 10)]
)
def test_epsilon_of_many_samples_is_no_less_than_an_attack_achieves(
    z: float, sample: int, population: int, rounds: int, roles: str
) -> None:
    """Monte Carlo, at a delta that is met often enough; the bound is close to the worst of the three."""
    delta, size = 0.01, 40_000
    parts = {"the same": [True], "the other": [False], "alternating": [True, False]}[roles]
    rng = np.random.default_rng(0)
    losses = losses_of_an_attack(
        z, sample / population, (parts * rounds)[:rounds], size, rng
    )  # fmt: skip
    bound = epsilon(z / 2, delta, rounds, sample, population)

    def achieved(eps: float) -> float:
        return float(np.maximum(-np.expm1(eps - losses), 0).mean())

    sure = 5 * math.sqrt(delta / size)
    assert achieved(bound) <= delta + sure
    if roles == "the same":
        assert achieved(0.75 * bound) > delta + sure, "three quarters of it would be no bound"


def test_that_attack_shows_what_is_no_bound() -> None:
    """Accounting with the noise over clip, as for clients that are added or removed, is refuted by it."""
    losses = losses_of_an_attack(4.0, 0.1, [True] * 100, 40_000, np.random.default_rng(0))
    wrong = epsilon(4.0, 0.01, 100, 50, 500)
    assert np.maximum(-np.expm1(wrong - losses), 0).mean() > 0.02


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("multiplier", [0.5, 2.0, 10.0])
def test_the_loss_distribution_has_the_curve_of_one_sample(share: float, multiplier: float) -> None:
    """On the grid, and above it in between; for both orders of the neighbours."""
    one = accounting.loss_distribution(multiplier, share).to_dense_pmf()
    for e in np.linspace(0, 20 * one._discretization, 61):
        exact = float(accounting.sampled_deltas(multiplier, share, np.array([e]))[0])
        assert exact * (1 - 1e-9) - 1e-15 <= one.get_delta_for_epsilon(e) <= exact * 1.01 + 1e-9
        mirrored = 1 - math.exp(-e) * (1 - one.get_delta_for_epsilon(e))
        assert one.get_delta_for_epsilon(-e) == pytest.approx(mirrored, abs=1e-12)


def test_the_curve_of_one_sample_is_that_of_its_densities() -> None:
    q, sigma = 0.1, 2.0
    x = np.linspace(-40, 41, 400_001)
    drawn = (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, 1, sigma)
    for e in (0.0, 0.05, 0.3):
        direct = np.maximum(drawn - math.exp(e) * norm.pdf(x, 0, sigma), 0).sum() * (x[1] - x[0])
        assert accounting.sampled_deltas(sigma, q, np.array([e]))[0] == pytest.approx(direct, rel=1e-4)  # fmt: skip


def test_the_bounds_that_the_document_names() -> None:
    """A hundred rounds of 50 of 500 clients, z = 4: by Rényi's divergences, by losses, and by both."""
    assert accounting.by_renyi(2.0, 1e-5, 100, 50, 500) == pytest.approx(5.38, abs=0.005)
    assert accounting.by_losses(2.0, 1e-5, 100, 0.1) == pytest.approx(2.541, abs=0.001)
    assert epsilon(2.0, 1e-5, 100, 50, 500) == pytest.approx(2.541, abs=0.001)


@pytest.mark.parametrize(
    ("sample", "population", "z"), [(50, 500, 4.0), (3, 4, 1.0), (1, 900, 9.0)]
)
def test_epsilon_grows_from_round_to_round(sample: int, population: int, z: float) -> None:
    spent = [epsilon(z / 2, 1e-5, k, sample, population) for k in (0, 1, 2, 3, 5, 10, 99, 100, 101)]
    assert spent == sorted(spent)
    assert spent[-2] < spent[-1]


@pytest.mark.parametrize("multiplier", [0.0, 5e-324, 1e-300, 1e-3, 1e300])
def test_no_noise_and_extreme_noise_have_an_epsilon(multiplier: float) -> None:
    for delta in (1e-12, 1e-5, 0.9):
        for sample in (1, 10):
            assert epsilon(multiplier, delta, 3, sample, 10) >= 0
    assert epsilon(0.0, 1e-5, 1) == math.inf
    assert epsilon(1e300, 1e-5, 1) == 0


def test_sampling_nearly_all_costs_no_more_than_all() -> None:
    assert epsilon(0.5, 1e-5, 50, 19, 20) <= epsilon(0.5, 1e-5, 50)


def test_the_records_say_what_was_spent_so_far(run_inline: RunInline) -> None:
    rounds = read_rounds(run_inline(**KEYS))
    expected = [epsilon(Z / 2, 1e-5, k, S, 8) for k in (1, 2, 3)]
    assert [r["epsilon"] for r in rounds] == expected
    assert expected[0] < expected[1] < expected[2]
    local = run_inline(**KEYS, dp__where="client")
    counts = json.loads((local / "privacy.json").read_text())["releases"]
    assert sum(counts.values()) == 3 * S
    most = max(counts.values())
    assert read_rounds(local)[-1]["epsilon"] == epsilon(Z / 2, 1e-5, most)


def failing_once(round_: int, failed: list[int]) -> Algorithm:
    """Return FedAvg whose first client in a round fails."""
    fedavg = ALGORITHMS["fedavg"]

    class Once(fedavg.client):  # type: ignore[misc, name-defined]
        def train(self, received: Any, buffers: Any) -> Any:
            if self.round == round_ and not failed:
                failed.append(self.client)
                raise ValueError("out of luck")
            return super().train(received, buffers)

    return replace(fedavg, client=Once)


def test_what_clients_sent_in_a_thin_round_counts(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second round, the first attempt fails: the server has seen what the others sent."""
    failed: list[int] = []
    monkeypatch.setitem(registry.ALGORITHMS, "fedavg", failing_once(2, failed))
    keys = KEYS | {"dp__where": "client", "min_clients": 8, "clients_per_round": 8}
    directory = run_inline(**keys)
    assert failed
    counts = json.loads((directory / "privacy.json").read_text())["releases"]
    assert counts == {str(client): 4 for client in range(8)}
    spent = [r["epsilon"] for r in read_rounds(directory)]
    assert spent == [epsilon(Z / 2, 1e-5, k) for k in (1, 3, 4)]


@pytest.mark.slow
def test_nobody_is_drawn_in_place_of_a_client_that_fails(
    run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or those who do not fail would be in more rounds than is counted, of which every one is released."""
    fedavg = ALGORITHMS["fedavg"]

    class Ill(fedavg.client):  # type: ignore[misc, name-defined]
        def train(self, received: Any, buffers: Any) -> Any:
            if self.client >= 1:
                raise ValueError("out of luck")
            return super().train(received, buffers)

    monkeypatch.setitem(registry.ALGORITHMS, "fedavg", replace(fedavg, client=Ill))
    directory = run_inline(**KEYS | {"clients_per_round": 2, "num_rounds": 40})
    rounds = read_rounds(directory)
    took_part = sum(r["clients"] for r in rounds)
    assert (
        2 <= took_part <= 20
    )  # of 8 clients 2 are drawn: 10 times is usual, 40 if somebody must be there
    assert {r["clients"] + r["failures"] for r in rounds} == {2}
    assert json.loads((directory / "privacy.json").read_text())["releases"] == {"server": 40}
    with pytest.raises(ConfigError, match="set min-clients = 1"):
        run_inline(**KEYS | {"min_clients": 2})


def test_what_is_run_again_counts_again(run_inline: RunInline) -> None:
    keys = KEYS | {"run_name": "run", "checkpoint_every": 2}
    directory = run_inline(**keys | {"num_rounds": 5})  # the last checkpoint is that of round 4
    run_inline(**keys | {"num_rounds": 7, "resume": True})
    spent = [r["epsilon"] for r in read_rounds(directory)]
    assert spent == [epsilon(Z / 2, 1e-5, k, S, 8) for k in (1, 2, 3, 4, 6, 7, 8)]
    before = (directory / "privacy.json").read_text()
    run_inline(**keys | {"num_rounds": 7, "resume": True})  # complete already
    assert (directory / "privacy.json").read_text() == before
    for damage in ("", "{}", None):
        (directory / "privacy.json").unlink()
        if damage is not None:
            (directory / "privacy.json").write_text(damage)
        with pytest.raises(ConfigError, match="does not say what this run has spent"):
            run_inline(**keys | {"num_rounds": 9, "resume": True})
        (directory / "privacy.json").write_text(before)


# Secure aggregation: docs/privacy.md says for every algorithm whether its server needs only sums.

DOCUMENT = Path(__file__).parents[2] / "docs" / "privacy.md"


def verdicts() -> dict[str, str]:
    table = DOCUMENT.read_text().split("## Secure aggregation")[1]
    rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", table, re.MULTILINE)
    return {name: verdict for names, verdict in rows for name in re.findall(r"`([^`]+)`", names)}


def test_the_table_names_every_algorithm() -> None:
    assert sorted(verdicts()) == sorted(ALGORITHMS)
    compressed = {name for name, a in ALGORITHMS.items() if a.compressor != "none"}
    told = {name for name, verdict in verdicts().items() if "compressor" in verdict}
    assert told == compressed


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_table_is_right_about_sums(name: str) -> None:
    """Give two servers updates with the same sums; only where these are all that counts do they agree."""
    keys: dict[str, Value] = {"algorithm": name, "dataset": "digits", "model": "mlp-20"}
    keys |= {"local_steps": 1, "clients_per_round": 8, "dp__clip": 0.0, "dtype": "float64"}
    one, other = strategy_of(**keys), strategy_of(**keys)
    rng = np.random.default_rng(1)
    for round_ in (1, 2):
        for strategy in (one, other):
            strategy.ledger.begin(round_, 0)
            strategy.ledger.accepted = dict.fromkeys(range(8), strategy.ledger.tag)
            strategy.on_cohort(range(8), round_, 0)
        group = getattr(one, "group", dict.fromkeys(range(8), 0))
        vectors = [
            {n: rng.normal(size=sum(one.sent_tensors(c))) for n in one.algorithm.client.sends}
            for c in range(8)
        ]
        means = [
            {n: np.mean([v[n] for d, v in enumerate(vectors) if group[d] == group[c]], axis=0) for n in one.algorithm.client.sends}
            for c in range(8)
        ]  # fmt: skip
        one.aggregate([Update(c, v, 1, 1, 0.0) for c, v in enumerate(vectors)])
        other.aggregate([Update(c, v, 1, 1, 0.0) for c, v in enumerate(means)])
    mine, theirs = one.saved(), other.saved()
    assert mine.keys() == theirs.keys()
    same = all(np.allclose(mine[k], theirs[k], atol=1e-9) for k in mine)
    verdict = verdicts()[name]
    assert same == (not verdict.startswith("no"))
    assert (len(set(group.values())) > 1) == verdict.startswith("per group")


def test_flowers_secagg_cannot_be_driven_from_here() -> None:
    """What docs/privacy.md says of Flower; when this fails, look again."""
    config = config_of()
    grid = InlineGrid(client_app.app, config.flat())
    context = Context(1, 0, {}, RecordDict(), {})
    with pytest.raises(TypeError, match="LegacyContext"):
        SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)(grid, context)
    assert not hasattr(Strategy, "configure_fit")
    strategy = make_strategy(config, make_problem(config))
    strategy.hosting.update(grid)
    how = ConfigRecord()
    [message] = strategy.configure_train(1, strategy.arrays(), how, grid)
    masked = ClientApp(mods=[secaggplus_mod])
    masked.train()(lambda message, _: message)
    with pytest.raises(KeyError, match="secaggplus"):
        masked(message, context)
