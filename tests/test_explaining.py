"""Figures that explain results: each against NumPy, from the clients' own states and from what they sent."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedapp import client_app
from fedapp.building import make_strategy
from fedapp.compression.quantizers import QSGD
from fedapp.engine import InlineGrid
from fedapp.explaining import realised_gq
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.projection import Memory
from fedapp.rounds import run_rounds
from fedapp.state import ContextStore
from fedapp.strategy import FederatedStrategy
from fedapp.tables import Value
from fedapp.wire import Update
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.runs import assert_same

KEYS: dict[str, Value] = {
    "model": "logistic", "dtype": "float64", "num_clients": 6, "clients_per_round": 3, "num_rounds": 5, "local_steps": 2,
    "batch_size": 16, "lr": 0.5,
}  # fmt: skip
Numbers = NDArray[Any]


class Followed:
    """A run, round by round: its record, the updates that were used, and each client's state after it."""

    def __init__(self, **keys: Value) -> None:
        self.config = parse_run_config(kebab(KEYS | keys))
        problem = make_problem(self.config)
        self.strategy: FederatedStrategy[Any] = make_strategy(self.config, problem)
        self.updates: Sequence[Update] = []
        aggregate = self.strategy.aggregate

        def noted(updates: Sequence[Update]) -> None:
            self.updates = list(updates)
            aggregate(updates)

        vars(self.strategy)["aggregate"] = noted
        self._grid = InlineGrid(client_app.app, self.config.flat(), 1)
        self._rounds = run_rounds(self._grid, self.strategy, problem, self.config)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self._rounds

    def states(self) -> dict[int, dict[str, Numbers]]:
        """Return what each client that took part remembers."""
        (context,) = self._grid.contexts.values()
        store, accepted = ContextStore(context.state), self.strategy.ledger.accepted
        return {client: store.load(client, accepted[client]) or {} for client in accepted}


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "fedgate"},
        {"algorithm": "fedgate", "local_epochs": 1, "weighting": "examples"},
        {"algorithm": "fedcomgate", "compressor": "qsgd", "fedcomgate__damping": 0.7},
        {"algorithm": "fedcomgate", "local_epochs": 1},
        {"algorithm": "scaffold", "compressor": "qsgd", "downlink": "grid"},
    ],
)
def test_the_sum_of_what_is_tracked_is_that_of_the_clients_states(keys: dict[str, Value]) -> None:
    run = Followed(**keys)
    for record in run:
        strategy: Any = run.strategy
        if keys["algorithm"] == "scaffold":
            total = sum(state["c_i"] for state in run.states().values()) - 6 * strategy.c
        else:
            total = np.zeros(64)
            for client, state in run.states().items():
                owed = strategy.ledger.delivery(client)
                a = keys.get("fedcomgate__damping", 1.0)
                taken = a * owed["T"] if "T" in owed else state["weight"] * owed[strategy.vector]
                total = total + state["delta"] - taken
        size = max(float(np.linalg.norm(s.get("delta", 1.0))) for s in run.states().values())
        assert record["tracking_sum"] == pytest.approx(np.linalg.norm(total), abs=1e-12 * size)
    if "weighting" in keys:
        assert record["tracking_sum"] > 1e-6, "a weighted mean is not the clients' own"
    else:
        assert record["tracking_sum"] < 1e-12 * size


def test_the_sum_is_not_told_once_a_round_s_change_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Followed(algorithm="scaffold", num_rounds=3)
    rounds = iter(run)
    with monkeypatch.context() as patch:
        patch.setattr("fedapp.explaining.LARGEST", 1)
        first = next(rounds)
    assert "tracking_sum" not in first
    assert not any("tracking_sum" in record for record in rounds)


def test_fedcet_s_consensus_error_is_that_of_the_clients_z() -> None:
    run = Followed(algorithm="fedcet", clients_per_round=6)
    for record in run:
        z = np.array([state["z"] for state in run.states().values()])
        expected = ((z - z.mean(0)) ** 2).sum(1).mean()
        assert record["consensus_error"] == pytest.approx(expected)


def test_drift_and_control_variates_of_fedbcgd_are_those_that_were_sent() -> None:
    run = Followed(algorithm="fedbcgd-plus", fedbcgd__blocks=3, num_rounds=6)
    last: dict[int, int] = {}
    for record in run:
        drift = [(update["u"] ** 2).sum() for update in run.updates]
        change = [(update["dc"] ** 2).sum() for update in run.updates]
        assert record["local_drift"] == pytest.approx(np.mean(drift))
        assert record["control_change"] == pytest.approx(np.mean(change))
        clients = [update.client for update in run.updates]
        ages = [record["round"] - last[client] for client in clients if client in last]
        assert record.get("control_age") == (pytest.approx(np.mean(ages)) if ages else None)
        last |= dict.fromkeys(clients, record["round"])


def test_g_q_is_what_its_definition_gives_on_average() -> None:
    """Assumption 5 of FedCOM: |mean Q(v_i)|^2 - |Q(mean v_i)|^2, over many draws of Q."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((4, 50)) + rng.standard_normal(50)
    compressor = QSGD(levels=4)
    literal, estimated = [], []
    for _ in range(400):
        sent = np.array([compressor.transmit(v, rng)[1] for v in vectors])
        whole = compressor.transmit(vectors.mean(0), rng)[1]
        nmse = ((sent - vectors) ** 2).sum(1) / (vectors**2).sum(1)
        of_mean = (sent.mean(0) ** 2).sum()
        literal.append(of_mean - (whole**2).sum())
        estimated.append(realised_gq((sent**2).sum(1), nmse, of_mean))
    error = np.std(literal) / np.sqrt(len(literal))
    assert np.mean(estimated) == pytest.approx(np.mean(literal), abs=4 * error)
    assert np.mean(literal) < -4 * error, "the two sides differ by more than chance"


def test_g_q_of_a_run_is_that_of_what_was_sent() -> None:
    run = Followed(algorithm="fedcom", compressor="qsgd", num_rounds=2)
    for record in run:
        sent = np.array([update["D"] for update in run.updates], np.float64)
        nmse = np.array([update.uplink_nmse for update in run.updates])
        expected = realised_gq((sent**2).sum(1), nmse, (sent.mean(0) ** 2).sum())
        assert record["uplink_gq"] == pytest.approx(expected)
    biased = next(iter(Followed(algorithm="fedcom", compressor="topk")))
    assert "uplink_gq" not in biased


@pytest.mark.parametrize("seed", range(3))
def test_active_constraints_are_those_with_multipliers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, v = rng.standard_normal((5, 12)), rng.standard_normal(12)
    memory = Memory(8, (7, 5), np.dtype(np.float64))
    memory.update(0.5, dict(enumerate(rows)))
    memory.project(v)
    active = 0
    for piece in (slice(0, 7), slice(7, 12)):
        z, _ = nnls(rows[:, piece].T, -v[piece])
        active += int((z > 1e-10).sum())
    assert memory.active == active / 10


def test_a_run_records_gradma_s_active_constraints(run_inline: RunInline) -> None:
    lines = read_rounds(run_inline(**KEYS | {"algorithm": "gradma-s"}))
    shares = [line["active_constraints"] for line in lines]
    assert all(0 <= share <= 1 for share in shares)
    assert max(shares) > 0


@pytest.mark.parametrize("algorithm", ["gradma", "gradma-s"])
def test_active_constraints_of_a_round_are_those_that_the_momentum_only_just_agrees_with(
    algorithm: str,
) -> None:
    run = Followed(algorithm=algorithm, model="logreg", partition="dirichlet", num_rounds=8)
    seen = set()
    for record in run:
        strategy: Any = run.strategy
        clients, tensors = list(strategy.slots), strategy.D.pieces
        vectors = np.array([strategy.D.vector(strategy.slots[client]) for client in clients])
        active = 0
        for tensor in tensors:
            lengths = np.linalg.norm(vectors[:, tensor], axis=1)
            cosines = vectors[:, tensor] @ strategy.m[tensor] / lengths
            active += int((np.abs(cosines) < 1e-10 * np.linalg.norm(strategy.m[tensor])).sum())
        assert record["active_constraints"] == active / (len(clients) * len(tensors))
        seen.add(record["active_constraints"])
    assert len(tensors) == 2
    assert len(seen) > 2


def test_a_strategy_may_have_a_d_of_its_own() -> None:
    """A mean of updates, as in other papers: no memory with constraints."""
    run = Followed(algorithm="fedavg")
    vars(run.strategy)["D"] = np.zeros(64)
    assert not any("active_constraints" in record for record in run)


def test_a_resumed_run_has_the_same_figures(run_inline: RunInline) -> None:
    keys = KEYS | {"algorithm": "fedgate", "weighting": "examples", "checkpoint_every": 1}
    whole = run_inline(**keys, run_name="whole")
    run_inline(**keys | {"num_rounds": 3}, run_name="halves")
    assert_same(whole, run_inline(**keys, run_name="halves", resume=True))
    assert read_rounds(whole)[-1]["tracking_sum"] > 0


def test_nothing_is_told_where_noise_protects_clients(run_inline: RunInline) -> None:
    keys = {"dp__clip": 1.0, "dp__noise_from": "seed", "model": "logreg", "dtype": "float32"}
    (line, *_) = read_rounds(
        run_inline(**KEYS | keys | {"algorithm": "fedcom", "compressor": "qsgd"})
    )
    assert not {"uplink_gq", "tracking_sum", "control_age"} & line.keys()
