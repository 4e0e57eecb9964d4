"""EF21: clients send how their vectors have changed, and the server keeps the mean of all that it knows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedapp.building import make_strategy
from fedapp.compression import make_compressor
from fedapp.errors import ConfigError
from fedapp.feedback import MeanOfKnown
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from fedapp.wire import Update
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.vectors import gaussian, generator

QUADRATIC: dict[str, Value] = {
    "dataset": "quadratic", "num_clients": 6, "clients_per_round": 6, "local_steps": 1, "lr": 0.2,
    "quadratic__dim": 30, "num_rounds": 12, "on_lost_state": "reset", "error_feedback": "ef21",
}  # fmt: skip


def update_of(client: int, vector: NDArray[Any]) -> Update:
    return Update(client, {"u": vector, "dc": vector}, 1, 1, 0.0)


@pytest.mark.parametrize("sampled", [3, 8])
def test_the_mean_is_that_of_all_the_clients_vectors_as_known(sampled: int) -> None:
    """The oracle keeps every g_i."""
    compressor = make_compressor("topk", ratio=0.2)
    server, rng = MeanOfKnown(("u",), 8), generator(1)
    known = np.zeros((8, 40))
    for _ in range(10):
        cohort = sorted(rng.choice(8, sampled, replace=False).tolist())
        updates = []
        for client in cohort:
            change = compressor.transmit((rng.normal(size=40) - known[client]), rng)[1]
            known[client] += change
            updates.append(update_of(client, change))
        seen = server.applied(updates)
        assert np.mean([update["u"] for update in seen], axis=0) == pytest.approx(
            known.mean(0), abs=1e-5
        )
        assert server.G["u"] == pytest.approx(known.mean(0), abs=1e-5)
        for before, after in zip(updates, seen, strict=True):
            assert after["dc"] is before["dc"]


def test_what_is_saved_is_restored() -> None:
    server, other = MeanOfKnown(("u",), 2), MeanOfKnown(("u",), 2)
    server.applied([update_of(0, gaussian(5)), update_of(1, gaussian(5, 2))])
    other.restore(server.saved())
    again = [one.applied([update_of(0, gaussian(5, 3))])[0]["u"] for one in (server, other)]
    assert again[0].tobytes() == again[1].tobytes()
    server.reset()
    assert server.saved() == {}


def distance(run_inline: RunInline, **keys: Value) -> float:
    return float(read_rounds(run_inline(**(QUADRATIC | keys)))[-1]["distance"])


def test_it_converges_where_topk_alone_stalls(run_inline: RunInline) -> None:
    keys: dict[str, Value] = {"algorithm": "fedavg", "compressor": "topk", "num_rounds": 150}
    keys |= {"num_clients": 3, "clients_per_round": 3}
    plain = distance(run_inline, **keys, error_feedback=False)
    with_ef21 = distance(run_inline, **keys)
    assert with_ef21 < 0.01 * plain


def test_it_converges_with_sampled_clients(run_inline: RunInline) -> None:
    keys: dict[str, Value] = {"algorithm": "fedavg", "compressor": "topk", "topk__ratio": 0.3}
    keys |= {"num_rounds": 250, "num_clients": 4, "clients_per_round": 2, "lr": 0.1}
    assert distance(run_inline, **keys) < 0.05 * distance(run_inline, **keys, error_feedback=False)


EXACT = [
    name
    for name, one in ALGORITHMS.items()
    if one.strategy.rule_is_a_mean and not one.needs.no_error_feedback
]


@pytest.mark.parametrize("algorithm", EXACT)
def test_without_loss_it_changes_nothing(algorithm: str, run_inline: RunInline) -> None:
    """Every algorithm that takes it: what the server makes of changes is what was to be sent."""
    if ALGORITHMS[algorithm].needs.network:
        pytest.skip("looks into a network")
    keys: dict[str, Value] = {"algorithm": algorithm, "compressor": "topk", "topk__ratio": 1.0}
    keys |= {"num_rounds": 5, "dtype": "float64", "lr": 0.02}
    exact = distance(run_inline, **keys, error_feedback=False)
    assert distance(run_inline, **keys) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        ({"weighting": "examples"}, "uniform"),
        ({"aggregation": "median"}, 'aggregation = "mean"'),
        ({"dp__clip": 1.0}, "dp.clip = 0"),
        ({"max_update_norm": 1.0, "on_long_update": "clip"}, 'on-long-update = "reject"'),
        ({"algorithm": "scaffold"}, "error-feedback = true"),
        ({"algorithm": "fedgate"}, "error-feedback = true"),
        ({"algorithm": "gradma-s"}, "error-feedback = true"),
        ({"on_lost_state": "go-on"}, 'on-lost-state = "reset"'),
        ({"error_feedback": "ef12"}, "ef21"),
    ],
)
def test_what_it_cannot_go_with_is_refused(keys: Mapping[str, Value], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        make_strategy(kebab({**QUADRATIC, "compressor": "topk", **keys}))
