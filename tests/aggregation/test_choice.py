"""The choice of an aggregation rule: what a strategy does with it, what is refused, and whole runs among hostile clients."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapp import building
from fedapp.aggregation import buffer_rule_of
from fedapp.aggregation.choice import ByRule
from fedapp.aggregation.rules import CenteredClipping, MultiKrum, NearestNeighborMixing
from fedapp.building import make_strategy
from fedapp.checkpoint import Checkpoints
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.plan import plan
from fedapp.problems import kind_of, make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from fedapp.wire import Update
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.deaths import before_checkpoint, in_round, killed
from tests.support.rules import centered_clip, some_rows
from tests.support.runs import assert_same, run

DOCUMENT = Path(__file__).parents[2] / "docs" / "robustness.md"


def strategy(**keys: Value) -> Any:
    config = parse_run_config(kebab(QUADRATIC | keys))
    return make_strategy(config, make_problem(config))


QUADRATIC: dict[str, Value] = {
    "dataset": "quadratic",
    "num_clients": 9,
    "clients_per_round": 9,
    "num_rounds": 40,
    "quadratic__heterogeneity": 0.0,
    "lr": 0.3,
}


def updates(x: Any, name: str = "u") -> list[Update]:
    return [Update(c, {name: row}, 1 + c, 1, 0.0) for c, row in enumerate(x)]


def test_the_strategy_uses_the_rule_and_carries_the_centre() -> None:
    x = some_rows(4, 9, 30).astype(np.float32)
    made = strategy(aggregation="multi-krum", hostile=0.2, mixing="nnm")
    expected = NearestNeighborMixing(2, MultiKrum(2))(list(x))
    np.testing.assert_array_equal(made.mean(updates(x)), expected)
    assert "vector.centre" not in made.saved()
    made = strategy(aggregation="centered-clipping", clip_radius=0.7)
    first = made.mean(updates(x))
    np.testing.assert_allclose(first, centered_clip(x, np.zeros(30), 0.7), atol=1e-6)
    second = made.mean(updates(2 * x))
    np.testing.assert_allclose(second, centered_clip(2 * x, first, 0.7), atol=1e-6)
    assert "vector.centre" in made.saved()


def test_a_reset_forgets_the_centre() -> None:
    x = some_rows(4, 9, 30).astype(np.float32)
    rule = ByRule(CenteredClipping(0.7), np.zeros(30, np.float32))
    first = rule.mean(updates(x), "u", 1)
    rule.mean(updates(2 * x), "u", 2)
    rule.reset()
    np.testing.assert_array_equal(rule.mean(updates(x), "u", 3), first)


def test_the_mean_keeps_its_bits() -> None:
    x = some_rows(6, 9, 30).astype(np.float32)
    exact = x.astype(np.float64)
    mean = (exact.sum(axis=0) / 9).astype(np.float32)
    np.testing.assert_array_equal(strategy().mean(updates(x)), mean)
    weighted = (np.arange(1, 10) @ exact / 45).astype(np.float32)
    np.testing.assert_array_equal(strategy(weighting="examples").mean(updates(x)), weighted)
    ordered = np.sort(x, axis=0)
    np.testing.assert_array_equal(strategy(aggregation="median").mean(updates(x)), ordered[4])
    trimmed = strategy(aggregation="trimmed-mean", trim=0.2).mean(updates(x))
    np.testing.assert_array_equal(trimmed, ordered[2:7].mean(axis=0))
    assert not {"vector.centre"} & set(strategy().saved())  # checkpoints are as they were


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"hostile": 0.5}, "hostile = 0.5 is not allowed"),
        ({"aggregation": "multi-krum"}, "needs to know how many clients may be hostile: set hostile"),
        ({"mixing": "nnm"}, 'mixing = "nnm" needs to know how many'),
        ({"aggregation": "multi-krum", "hostile": 0.4}, "4 of 9 clients, and the multi-krum .* 11"),
        ({"aggregation": "median", "hostile": 0.49}, "5 of 9 clients, and the median .* 11 or more"),
        ({"aggregation": "trimmed-mean", "hostile": 0.2}, "set trim to at least 0.2"),
        ({"mixing": "nnm", "hostile": 0.2, "weighting": "examples"}, 'set weighting = "uniform"'),
        ({"mixing": "nnm", "hostile": 0.2, "dp__clip": 1.0}, 'set mixing = "none", or dp.clip = 0'),
        ({"aggregation": "multi-krum", "hostile": 0.2, "dp__clip": 1.0}, "or dp.clip = 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_withstood_is_refused(
    keys: dict[str, Value], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        strategy(**keys)
    assert not caplog.text  # one sentence, not two
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_mixing_and_new_rules_need_a_rule_that_is_a_mean(name: str) -> None:
    own: dict[str, Value] = {"algorithm": name, "dataset": "digits", "model": "mlp-8"}
    if name in ("qsgd", "diana", "vrdiana"):
        own["local_steps"] = 1
    for keys in ({"mixing": "nnm"}, {"aggregation": "centered-clipping"}):
        config = parse_run_config(kebab(QUADRATIC | own | keys | {"hostile": 0.2}))
        if ALGORITHMS[name].strategy.rule_is_a_mean:
            make_strategy(config, kind_of(config).outline(config))
        else:
            with pytest.raises(ConfigError, match=r"relies on sums.*set (mixing|aggregation) ="):
                make_strategy(config, kind_of(config).outline(config))


def test_the_document_names_the_algorithms_that_take_a_rule() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    named = text.split("whose rule is a mean (")[1].split(")")[0].split(", ")
    assert sorted(named) == sorted(
        name for name, a in ALGORITHMS.items() if a.strategy.rule_is_a_mean
    )


def test_what_a_rule_withstands_is_told() -> None:
    def told(**keys: Value) -> str:
        return " ".join(building.warnings(strategy(**keys)))

    trimmed = told(aggregation="trimmed-mean")
    assert "withstands 1 hostile of 9 clients in a round, and protects nobody" in trimmed
    trimmed = told(aggregation="trimmed-mean", trim=0.25, hostile=0.2)
    assert "withstands 3 hostile of 9" in trimmed
    assert 'aggregation = "mean" withstands no hostile client' in told(hostile=0.2)
    assert not told(aggregation="median", hostile=0.2)
    assert not told(aggregation="multi-krum", hostile=0.2)
    # 4 of 20 are hostile. Of 5 drawn, more than 1 is: 1 - (C(16,5) + 4 C(16,4))/C(20,5) = 0.249.
    few = told(aggregation="median", hostile=0.2, num_clients=20, clients_per_round=5)
    assert "25 % of rounds of 5 clients hold more than the 1" in few


def test_warnings_are_logged_once(run_inline: RunInline, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="flwr"):
        run_inline(**QUADRATIC | {"num_rounds": 2}, hostile=0.2)
    assert sum("withstands no hostile client" in message for message in caplog.messages) == 1


def test_a_round_in_which_the_hostile_could_decide_is_repeated() -> None:
    assert strategy(aggregation="multi-krum", hostile=0.2).min_clients == 7
    assert strategy(aggregation="geometric-median", hostile=0.2).min_clients == 5
    assert strategy(aggregation="median", hostile=0.2, min_clients=6).min_clients == 6
    assert strategy(aggregation="median").min_clients == 1
    assert strategy(hostile=0.2).min_clients == 1


def test_statistics_follow_a_robust_rule() -> None:
    x = some_rows(9, 9, 4).astype(np.float32)
    x[0] = 1e9
    new = ("multi-krum", "geometric-median", "centered-clipping")
    chosen: list[dict[str, Value]] = [{"aggregation": name} for name in new]
    chosen.append({"mixing": "nnm"})
    for keys in chosen:
        config = parse_run_config(kebab(QUADRATIC | keys | {"hostile": 0.1}))
        np.testing.assert_array_equal(buffer_rule_of(config)(list(x)), np.sort(x, axis=0)[4])
    assert buffer_rule_of(parse_run_config(kebab(QUADRATIC)))(list(x)).max() > 1e7


@pytest.mark.parametrize(
    "keys",
    [
        {"aggregation": "multi-krum", "hostile": 0.3},
        {"aggregation": "geometric-median"},
        {"aggregation": "centered-clipping"},
        {"aggregation": "centered-clipping", "mixing": "nnm", "hostile": 0.3},
        {"aggregation": "median", "mixing": "nnm", "hostile": 0.3},
    ],
)
def test_three_hostile_clients_of_ten_do_no_harm(
    keys: dict[str, Value], run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from clients.averaging import FedAvgClient

    honest = FedAvgClient.update

    def update(self: Any, x: Any) -> Any:
        sent = honest(self, x)
        return {"u": torch.full_like(x, 1e4)} if self.client in (0, 4, 9) else sent

    monkeypatch.setattr(FedAvgClient, "update", update)
    ten: dict[str, Value] = {"num_clients": 10, "clients_per_round": 10, "num_rounds": 40}
    ten["max_update_ratio"] = 0.0  # or they would be refused before any rule sees them
    rounds = read_rounds(run_inline(**QUADRATIC | ten | keys))
    assert rounds[-1]["distance"] < 0.05 * rounds[0]["distance"] + 0.05


SAVED: dict[str, Value] = {
    "model": "mlp-10",
    "num-clients": 8,
    "clients-per-round": 6,
    "local-steps": 2,
    "lr": 0.05,
    "num-rounds": 9,
    "eval-every": 3,
    "checkpoint-every": 2,
    "run-name": "run",
    "aggregation": "centered-clipping",
}


@pytest.mark.parametrize("mixing", ["none", "nnm"])
def test_a_killed_run_with_centered_clipping_ends_as_if_nothing_had_happened(
    mixing: str, tmp_path: Path
) -> None:
    keys = SAVED | ({"mixing": mixing, "hostile": 0.2} if mixing != "none" else {})
    whole = run(tmp_path / "whole", keys | {"checkpoint-every": 0})
    for death in (in_round(6), before_checkpoint(8)):
        with pytest.MonkeyPatch.context() as patch:
            death(patch)
            killed(lambda: run(tmp_path / "killed", keys, resume=True))
    newest = Checkpoints(tmp_path / "killed" / "run").paths()[0]
    assert load_file(newest)["vector.centre"].any()
    assert_same(whole, run(tmp_path / "killed", keys, resume=True))


def test_the_number_of_nodes_does_not_matter(run_inline: RunInline) -> None:
    keys = {k.replace("-", "_"): v for k, v in SAVED.items()} | {"mixing": "nnm", "hostile": 0.2}
    one, three = (run_inline(nodes=n, **keys | {"run_name": f"on{n}"}) for n in (1, 3))
    model, other = (load_file(place / "model.safetensors") for place in (one, three))
    for name in model:
        np.testing.assert_array_equal(model[name], other[name])


def test_a_dry_run_checks_the_rule() -> None:
    fine = parse_run_config({"aggregation": "multi-krum", "hostile": 0.2, "clients-per-round": 20})
    common, _ = plan([fine])
    assert "1 runs" in common
    with pytest.raises(ConfigError, match="set clients-per-round to at least"):
        plan([fine.model_copy(update={"clients_per_round": 4})])
