"""Gradient clipping, and warm-up, by hand-computed numbers."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

from clients.averaging import FedAvgClient
from fedapp.building import check
from fedapp.client import Client
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.optimizers import clip_
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import RunInline, kebab
from tests.support.steps import DIM, QUADRATIC, client_of, config_of, keys_of


def test_a_long_gradient_is_shortened_and_a_short_one_stays() -> None:
    g = torch.tensor([3.0, -4.0])
    assert clip_(g.clone(), 2.5).tolist() == [1.5, -2.0]
    for largest in (5.0, 6.0, 0.0):
        assert clip_(g.clone(), largest).tolist() == [3.0, -4.0]
    assert clip_(g, 2.5) is g, "in place"


def by_hand(config: RunConfig, batches: int = 1) -> tuple[Client, Tensor, Any]:
    client = FedAvgClient(make_problem(config).objective(0), config, 0, {})
    y = torch.full((DIM,), 3.0, dtype=torch.float64)
    (batch,) = client.batches(steps=batches)
    return client, y, batch


def test_weight_decay_comes_after_clipping_and_full_gradients_are_whole() -> None:
    config = parse_run_config(kebab(QUADRATIC | {"clip_gradient": 0.01}))
    client, y, batch = by_hand(config)
    raw = client.objective.loss_gradient(y, batch)[1]
    expected = 0.01 * raw / raw.norm() + 0.03 * y
    torch.testing.assert_close(client.gradient(y, batch), expected)
    torch.testing.assert_close(client.gradient_aside(y, batch), expected)
    torch.testing.assert_close(
        client.full_gradient(y), client.objective.full_gradient(y) + 0.03 * y, rtol=0, atol=0
    )


@pytest.mark.parametrize("name", [a.name for a in ALGORITHMS.values() if not a.needs.no_clipping])
def test_clipping_far_above_all_gradients_changes_no_bit(name: str, run_inline: RunInline) -> None:
    """And far below, it does: every algorithm that allows it clips."""
    plain, high, low = (
        load_file(run_inline(**keys_of(name) | {"clip_gradient": largest}) / "model.safetensors")
        for largest in (0.0, 1e6, 1e-2)
    )
    for key in plain:
        assert plain[key].tobytes() == high[key].tobytes()
    assert any((plain[key] != low[key]).any() for key in plain)


@pytest.mark.parametrize("steps", [1, 2])
def test_fedbcgd_plus_clips_its_direction(steps: int) -> None:
    """Each step is as long as one may be at most, and the control variate is the whole full gradient."""
    config = parse_run_config(
        kebab(QUADRATIC | {"algorithm": "fedbcgd-plus", "clip_gradient": 1.0, "local_steps": steps})
    )
    x, c = np.full(DIM, 3.0), np.full(DIM, 0.2)
    state: dict[str, Tensor] = {}
    client = client_of(config, 1, state)
    update = client.train({"x": x, "c": c, "block": np.zeros(1)}, np.zeros(0))
    G = client.full_gradient(torch.tensor(x)).numpy()
    y = x.copy()
    for _ in range(
        steps
    ):  # g(y) - g(x) + G - c_i + c with the full gradients of a problem without noise, and c_i = 0
        direction = client.full_gradient(torch.tensor(y)).numpy() + c
        y -= client.lr * direction / np.linalg.norm(direction)
    np.testing.assert_allclose(update["u"], x - y)
    np.testing.assert_allclose(update["dc"], G)
    assert np.linalg.norm(G) > 1


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        ("mimelite", {}, "full gradients, which are not clipped: set clip-gradient = 0"),
        ("vrdiana", {}, "unbiased only if none of them is clipped: set clip-gradient = 0"),
        ("scaffold", {"scaffold__option": 1}, "set scaffold.option = 2, or clip-gradient = 0"),
    ],
)
def test_clipping_that_would_break_a_correction_is_refused(
    name: str, keys: dict[str, Value], said: str
) -> None:
    config = config_of(name, clip_gradient=1.0, **keys)
    with pytest.raises(ConfigError, match=re.escape(said)):
        check(config, make_problem(config))
    if keys:
        check(config_of(name, clip_gradient=1.0), make_problem(config))


def test_warm_up_grows_linearly_and_composes_with_every_schedule() -> None:
    def lr(**keys: Any) -> list[float]:
        return [RunConfig(lr=0.8, warmup_rounds=3, **keys).lr_at(r) for r in range(1, 7)]

    assert lr() == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    decayed = lr(lr_schedule="exponential", lr_decay=0.5)
    assert decayed == pytest.approx([0.2, 0.2, 0.15, 0.1, 0.05, 0.025])
    inverse = lr(lr_schedule="inverse", local_steps=2)
    assert inverse == pytest.approx([0.2, 0.4 / 3, 0.6 / 5, 0.8 / 7, 0.8 / 9, 0.8 / 11])
    root = lr(lr_schedule="inverse-sqrt", local_steps=2, num_rounds=8)
    assert root == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2, 0.2])
    assert RunConfig(lr=0.8, lr_schedule="exponential").largest_lr == 0.8
    assert RunConfig(lr=0.8, warmup_rounds=3).largest_lr == 0.8
    assert RunConfig(lr=0.8, warmup_rounds=3, num_rounds=2).largest_lr == 0.4


def test_fedcet_s_bound_is_that_of_the_largest_step() -> None:
    """2/((tau + 3) lr) = 2/(8 * 0.1) = 2.5; for the first, warm step it would be 7.5."""
    for c, allowed in ((2.4, True), (2.6, False)):
        config = parse_run_config(
            kebab({"algorithm": "fedcet", "dataset": "quadratic", "clients_per_round": 20, "lr": 0.1,
                   "local_steps": 5, "warmup_rounds": 2, "fedcet__c": c})
        )  # fmt: skip
        if allowed:
            check(config, make_problem(config))
        else:
            with pytest.raises(ConfigError, match=r"2/\(\(tau \+ 3\) lr\) = 2.5"):
                check(config, make_problem(config))
