"""FedCET: the exchange form is the paper's recursion, its invariants, and what a lost client does."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from clients.fedcet import FedCETClient
from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.engine import InlineGrid
from fedapp.errors import RunError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.refusals import Reason, Refusal
from fedapp.rounds import run_rounds
from fedapp.tables import Value
from strategies.fedcet import exchange_gain, largest_gain
from tests import oracles
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.cases import (
    LR,
    ROUNDS,
    N,
    config_for,
    largest_difference,
    oracle_inputs,
    trajectory,
)

ALL: dict[str, Value] = {"clients_per_round": N, "dtype": "float64"}


@pytest.mark.parametrize("tau", [1, 2, 5])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_the_exchange_form_is_the_recursion_with_w(tau: int, part: float) -> None:
    """Both the client and server, and the drift form, against equation 2 with W(t) and start (5)."""
    c = part * 2 / ((tau + 3) * LR)
    config = config_for("fedcet", local_steps=tau, fedcet__c=c, **ALL)
    x, gradient, cohorts = oracle_inputs(config)
    recursion = list(oracles.fedcet_recursion(x, gradient, N, ROUNDS, tau, LR, c))
    assert largest_difference(trajectory(config), recursion) < 1e-9
    drift = list(oracles.fedcet(x, gradient, cohorts, tau, LR, c))
    assert largest_difference(drift, recursion) < 1e-9


def test_the_recursion_notices_another_mixing() -> None:
    config = config_for("fedcet", fedcet__c=0.6, **ALL)
    x, gradient, _ = oracle_inputs(config)
    other = list(oracles.fedcet_recursion(x, gradient, N, ROUNDS, 5, LR, 0.61))
    assert largest_difference(trajectory(config), other) > 1e-4


def test_the_drifts_sum_to_zero_and_become_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum d_i = 0 always, and in the end d_i = -G_i(x*): that is why x* is where all come to rest."""
    kept: dict[int, dict[int, torch.Tensor]] = defaultdict(dict)
    update = FedCETClient.update

    def spy(self: FedCETClient, x: torch.Tensor) -> Any:
        sent = update(self, x)
        kept[self.round][self.client] = self.state["d"]
        return sent

    monkeypatch.setattr(FedCETClient, "update", spy)
    config = config_for("fedcet", num_rounds=300, weight_decay=0.0, **ALL)
    trajectory(config)
    for drifts in kept.values():
        assert float(torch.stack(list(drifts.values())).sum(0).norm()) < 1e-10
    problem: Any = make_problem(config)
    optimum = torch.tensor(problem.optimum)
    for client, d in kept[300].items():
        gradient = problem.objective(client).full_gradient(optimum)
        assert float(gradient.norm()) > 0.1
        np.testing.assert_allclose(d, -gradient, atol=1e-9)


def test_the_first_round_by_hand() -> None:
    """One client, f = (x - b)^2 / 2, lr = 1/2, from 0: x_1(0) = b/2, then z = 3b/4."""
    keys: dict[str, Value] = {"quadratic__dim": 1, "quadratic__condition": 1.0, "weight_decay": 0.0}
    config = config_for("fedcet", num_clients=1, clients_per_round=1, lr=0.5, num_rounds=1, **keys)
    problem: Any = make_problem(config)
    (x,) = trajectory(config)
    np.testing.assert_allclose(x, 0.75 * problem.b[0].double().numpy(), rtol=1e-6)


def test_c_is_chosen_and_told(run_inline: RunInline, capsys: pytest.CaptureFixture[str]) -> None:
    keys: dict[str, Value] = {"algorithm": "fedcet", "dataset": "quadratic", "num_rounds": 2}
    run_inline(clients_per_round=20, local_steps=3, lr=0.25, **keys)
    assert (
        "FedCET uses c = 1.2, nine tenths of its bound 2/((tau + 3) lr)" in capsys.readouterr().out
    )
    config = parse_run_config(kebab(keys | {"local_steps": 3, "lr": 0.25}))
    assert exchange_gain(0.0, config) == 0.9 * largest_gain(config) == 1.2


class Failing(InlineGrid):
    """Loses a node's answer in some attempts; or, if `forget`, what the node's clients remember."""

    attempts = 0
    lost: tuple[int, ...] = ()
    forget = False

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        training = any(m.metadata.message_type == "train" for m in messages)
        self.attempts += training
        if training and self.forget and self.attempts in self.lost:
            self.contexts[2].state.clear()
        replies = list(super().send_and_receive(messages, timeout=timeout))
        if training and not self.forget and self.attempts in self.lost:
            return [r for r in replies if r.metadata.src_node_id != 2]
        return replies


def run_failing(lost: tuple[int, ...], forget: bool = False, **keys: Value) -> list[Any]:
    config = config_for("fedcet", **ALL, **keys)
    problem = make_problem(config)
    strategy = make_strategy(config, problem)
    grid = Failing(client_app.app, config.flat(), 3)
    grid.lost, grid.forget = lost, forget
    return [(strategy.x.copy(), record) for record in run_rounds(grid, strategy, problem, config)]


def test_a_client_that_fails_ends_the_run() -> None:
    said = r"in round 7 there was no update from client 1 \(no answer in time\) and 3 more: fix"
    with pytest.raises(RunError, match=said):
        run_failing((7,))


@pytest.mark.parametrize(
    ("failed", "said"), [((4,), r"4 \(why\): fix"), ((4, 6), r"4 \(why\) and 1 more: fix")]
)
def test_the_first_client_that_failed_is_named(failed: tuple[int, ...], said: str) -> None:
    config = config_for("fedcet", **ALL)
    strategy = make_strategy(config, make_problem(config))
    refusals = [Refusal(client, Reason.FAILED, "why") for client in failed]
    with pytest.raises(RunError, match=said):
        strategy.on_too_few_updates(7, refusals)


def test_a_client_without_its_state_ends_the_run() -> None:
    with pytest.raises(RunError, match=r"round 3 .* client 1 \(.*state is lost.*\) and 3 more"):
        run_failing((3,), forget=True)


def test_or_its_round_is_repeated_without_being_counted() -> None:
    """The models are those of a run without failures, bit for bit."""
    whole = trajectory(config_for("fedcet", **ALL))
    rounds = run_failing((1, 7, 8, 13), fedcet__on_failure="skip")
    assert [record["round"] for _, record in rounds] == list(range(1, ROUNDS + 1))
    assert sum(record["failures"] for _, record in rounds) == 4 * 4
    for (ours, _), theirs in zip(rounds, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_repeating_has_an_end() -> None:
    with pytest.raises(RunError, match="Round 5 had fewer than min-clients = 12"):
        run_failing((5, 6, 7), fedcet__on_failure="skip", round_retries=2)


def test_one_vector_each_way(run_inline: RunInline) -> None:
    keys: dict[str, Value] = {"dataset": "quadratic", "quadratic__dim": 1000, "num_rounds": 4}
    for record in read_rounds(run_inline(algorithm="fedcet", clients_per_round=20, **keys)):
        vector, buffers = 128 + 4 * 1000, 128
        assert record["uplink_bytes"] == record["downlink_bytes"] == 20 * (vector + buffers)
