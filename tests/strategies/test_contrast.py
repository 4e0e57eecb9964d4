"""MOON and FedMLB, which look into the network, against their losses written out on matrices."""

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from clients.gradma import GradMAClient
from fedapp.config import RunConfig
from fedapp.data import load_images
from fedapp.errors import ConfigError
from fedapp.models.networks import make_network
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.randomness import generator, sample_cohort
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests import oracles
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.cases import trajectory

WIDTHS = [64, 4, 8, 10]
KEYS: dict[str, Value] = {
    "model": "mlp-4-8",
    "dtype": "float64",
    "num_clients": 5,
    "clients_per_round": 2,
    "num_rounds": 10,
    "local_steps": 2,
    "batch_size": 12,
    "lr": 0.3,
    "weight_decay": 0.01,
    "partition": "dirichlet",
    "partition_alpha": 1.0,
}
OWN: dict[str, dict[str, Value]] = {
    "moon": {"moon__mu": 0.7, "moon__temperature": 0.4},
    "moonm": {"moonm__mu": 0.7, "moonm__temperature": 0.4, "moonm__beta1": 0.6},
    "fedmlb": {"fedmlb__lambda1": 0.6, "fedmlb__lambda2": 1.3, "fedmlb__temperature": 1.5},
    "fedmlbm": {
        "fedmlbm__lambda1": 0.6,
        "fedmlbm__lambda2": 1.3,
        "fedmlbm__temperature": 1.5,
        "fedmlbm__beta1": 0.6,
    },
}


def options_of(config: RunConfig) -> Any:
    return config.table(ALGORITHMS[config.algorithm].options)


def oracle(config: RunConfig) -> list[oracles.Vector]:
    """Local SGD on the written-out loss, then FedAvg's mean, with momentum beta1."""
    problem: Any = make_problem(config)
    data = load_images("digits", "")
    keys, beta1 = options_of(config), getattr(options_of(config), "beta1", 0.0)
    pixels = data.train_images.reshape(len(data.train_images), -1).astype(np.float64)
    inputs = (pixels - data.mean[0]) / data.std[0]
    x, m = problem.initial()[0], np.zeros(problem.layout.size)
    previous: dict[int, oracles.Vector] = {}
    found = []
    for k in range(1, config.num_rounds + 1):
        us = []
        for i in sample_cohort(list(range(5)), 2, config.seed, k):
            y = x.copy()
            rng = generator(config.seed, "batches", k, i)
            for batch in problem.objective(i).batches(config.local_work, rng):
                received = oracles.layers_of(x, WIDTHS)
                last = oracles.layers_of(previous.get(i, x), WIDTHS)

                def loss(
                    w: oracles.Vector,
                    batch: Any = batch,
                    received: Any = received,
                    last: Any = last,
                ) -> float:
                    layers = oracles.layers_of(w, WIDTHS)
                    sample = inputs[batch], data.train_labels[batch]
                    if "moon" in config.algorithm:
                        return oracles.moon_loss(
                            layers, received, last, *sample, keys.mu, keys.temperature
                        )
                    return oracles.fedmlb_loss(
                        layers, received, *sample, keys.lambda1, keys.lambda2, keys.temperature
                    )

                y = y - config.lr * (oracles.slope_of(loss, y) + config.weight_decay * y)
            previous[i] = y
            us.append(x - y)
        m = beta1 * m + sum(us) / len(us)
        x = x - m
        found.append(x)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", OWN)
def test_trajectory_equals_the_written_out_loss(algorithm: str) -> None:
    config = parse_run_config(kebab(KEYS | OWN[algorithm] | {"algorithm": algorithm}))
    ours, theirs = trajectory(config), oracle(config)
    assert len(ours) == 10
    for a, b in zip(ours, theirs, strict=True):
        assert np.linalg.norm(a - b) < 1e-4 * np.linalg.norm(b)


@pytest.mark.parametrize("algorithm", ["moon", "fedmlb"])
def test_the_first_rounds_equal_the_written_out_loss(algorithm: str) -> None:
    """Quickly: in four rounds of two of five clients some come back, and have a previous model."""
    few: dict[str, Value] = {"algorithm": algorithm, "num_rounds": 4}
    config = parse_run_config(kebab(KEYS | OWN[algorithm] | few))
    for a, b in zip(trajectory(config), oracle(config), strict=True):
        assert np.linalg.norm(a - b) < 1e-5 * np.linalg.norm(b)


@pytest.mark.parametrize("algorithm", ["moon", "fedmlb"])
def test_another_weight_would_be_noticed(algorithm: str) -> None:
    keys = KEYS | OWN[algorithm] | {"algorithm": algorithm}
    other = {"moon": "moon__mu", "fedmlb": "fedmlb__lambda2"}[algorithm]
    changed: dict[str, Value] = {other: 0.4}
    a, b = (trajectory(parse_run_config(kebab(k)))[-1] for k in (keys, keys | changed))
    assert np.linalg.norm(a - b) > 1e-3 * np.linalg.norm(a)


@pytest.mark.parametrize(
    ("algorithm", "zero"),
    [("moon", {"moon__mu": 0.0}), ("fedmlb", {"fedmlb__lambda1": 0.0, "fedmlb__lambda2": 0.0})],
)
@pytest.mark.parametrize(
    "work", [{}, {"local_epochs": 1, "weighting": "examples", "num_rounds": 4, "batch_size": 40}]
)
def test_without_its_terms_it_is_fedavg(
    algorithm: str, zero: dict[str, Value], work: dict[str, Value]
) -> None:
    """Also where clients take different numbers of steps, and count by their examples."""
    keys = KEYS | work
    ours = trajectory(parse_run_config(kebab(keys | zero | {"algorithm": algorithm})))
    theirs = trajectory(parse_run_config(kebab(keys | {"algorithm": "fedavg"})))
    np.testing.assert_allclose(ours[-1], theirs[-1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("algorithm", ["moon", "fedmlb"])
@pytest.mark.parametrize("model", ["lenet5", "resnet20"])
def test_any_network_and_its_statistics(algorithm: str, model: str, run_inline: RunInline) -> None:
    """Statistics are those of the local model's own batches alone, as FedAvg's are in its first step."""
    keys: dict[str, Value] = {"model": model, "num_rounds": 1, "local_steps": 1, "num_clients": 3}
    runs = [
        run_inline(algorithm=name, clients_per_round=2, **keys) for name in (algorithm, "fedavg")
    ]
    ours, fedavg = (load_file(run / "model.safetensors") for run in runs)
    assert read_rounds(runs[0])[0]["failures"] == 0
    statistics = [name for name in ours if "running" in name]
    assert bool(statistics) == (model == "resnet20")
    for name in statistics:
        np.testing.assert_allclose(ours[name], fedavg[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["logreg", "mlp-7-5", "lenet5", "resnet20", "vgg11"])
def test_a_network_is_its_levels_one_after_the_other(name: str) -> None:
    network = make_network(name, (3, 32, 32), 10, "batch", seed=0).eval()
    images = torch.randn(2, 3, 32, 32)
    outputs = images
    for level in network.levels:
        outputs = level(outputs)
    torch.testing.assert_close(outputs, network(images))
    torch.testing.assert_close(network.head(network.representation(images)), outputs)
    if name != "logreg":
        assert all(any(True for _ in level.parameters()) for level in network.levels)


@pytest.mark.parametrize("algorithm", ["moon", "fedmlbm"])
@pytest.mark.parametrize("keys", [{"dataset": "quadratic"}, {"model": "logistic"}])
def test_problems_without_a_network_are_refused(
    algorithm: str, keys: dict[str, Value], run_inline: RunInline
) -> None:
    with pytest.raises(ConfigError, match="looks into a network: choose one of fedapp's networks"):
        run_inline(algorithm=algorithm, **keys)


def test_a_gradient_aside_leaves_statistics_and_losses_alone() -> None:
    """GradMA's other gradients are not training."""
    config = parse_run_config(
        kebab({"model": "resnet20", "algorithm": "gradma-w", "num_clients": 5})
    )
    objective = make_problem(config).objective(0)
    client = GradMAClient(objective, config, 0, {})
    x = torch.tensor(make_problem(config).initial()[0])
    (batch,) = client.batches(steps=1)
    before = objective.buffers.clone()
    client.gradient_aside(x, batch)
    torch.testing.assert_close(objective.buffers, before, rtol=0, atol=0)
    assert not client.losses
    client.gradient(x, batch)
    assert not torch.equal(objective.buffers, before)
    assert len(client.losses) == 1
