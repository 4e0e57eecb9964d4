"""Augmentation in training: of mini-batches alone, and the same for every gradient on a batch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from fedapp.config import RunConfig
from fedapp.data.augmentation import AUGMENTATIONS, Augmented
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.problems.problem import Problem
from fedapp.randomness import generator
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import RunInline, kebab
from tests.support.cases import trajectory

KEYS: dict[str, Value] = {
    "model": "mlp-8", "num_clients": 5, "clients_per_round": 2, "num_rounds": 2, "local_steps": 3,
    "batch_size": 7,
}  # fmt: skip


def config_of(**keys: Value) -> RunConfig:
    return parse_run_config(kebab(KEYS | keys))


def batches_of(config: RunConfig, round_: int = 1) -> list[Any]:
    rng = generator(config.seed, "batches", round_, 2)
    return list(make_problem(config).objective(2).batches(config.local_work, rng))


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_training_sees_augmented_images_of_the_same_samples(kind: str) -> None:
    plain, augmented = batches_of(config_of()), batches_of(config_of(augmentation=kind))
    assert len(plain) == len(augmented) == 3
    for before, batch in zip(plain, augmented, strict=True):
        assert isinstance(batch, Augmented)
        np.testing.assert_array_equal(batch.rows, before)
    problem: Any = make_problem(config_of(augmentation=kind))
    arrays = problem.objective(2).arrays
    raw = torch.from_numpy(problem.data.train_images)
    mean, std = problem.data.mean[0], problem.data.std[0]
    for batch in augmented:
        images, labels = problem.gather(arrays, batch)
        expected = (batch.augment(raw[torch.from_numpy(batch.rows)]) - mean) / std
        torch.testing.assert_close(images, expected)
        np.testing.assert_array_equal(labels, problem.data.train_labels[batch.rows])
        assert not torch.equal(images, problem.gather(arrays, batch.rows)[0])
        assert torch.equal(images, problem.gather(arrays, batch)[0]), "after another batch"


def test_every_step_and_round_draws_anew() -> None:
    """What the batches of two rounds, and of the first again, make of the same images."""
    config = config_of(augmentation="crop-flip")
    images = torch.arange(7 * 64).view(7, 1, 8, 8)
    batches = [batch for round_ in (1, 2, 1) for batch in batches_of(config, round_)]
    seen = [batch.augment(images).numpy().tobytes() for batch in batches]
    assert len(set(seen)) == 6
    assert seen[:3] == seen[6:]


def test_full_gradients_and_evaluation_see_images_as_they_are() -> None:
    results = []
    for kind in ("none", "crop-flip"):
        config = config_of(augmentation=kind, eval_train=True)
        problem = make_problem(config)
        x, buffers = problem.initial()
        full = problem.objective(2).full_gradient(torch.tensor(x)).clone()
        results.append((full, problem.evaluate(x, buffers)))
    (full, figures), (full_too, figures_too) = results
    assert torch.equal(full, full_too)
    assert figures == figures_too


@pytest.mark.parametrize("name", ["fedavg", "moon", "fedmlb", "gradma-w", "fedbcgd-plus"])
def test_algorithms_with_several_gradients_on_a_batch_train(name: str) -> None:
    keys: dict[str, Value] = {"algorithm": name, "augmentation": "crop-flip"}
    one, two = (trajectory(config_of(**keys), nodes)[-1] for nodes in (1, 3))
    np.testing.assert_array_equal(one, two)
    plain = trajectory(config_of(algorithm=name))[-1]
    assert np.abs(one - plain).max() > 1e-4


@pytest.mark.parametrize("forgets", [False, True])
def test_the_difference_of_two_gradients_at_one_point_is_zero(forgets: bool) -> None:
    """Variance reduction needs g(y) and g(x) on the same images, whatever was gathered in between."""
    config = config_of(algorithm="fedbcgd-plus", augmentation="random-resized-crop")
    problem: Any = make_problem(config)
    client = ALGORITHMS[config.algorithm].client(problem.objective(2), config, 2, {})
    x = torch.tensor(problem.initial()[0])
    for batch in client.batches():
        g = client.gradient(x, batch).clone()
        if forgets:
            client.full_gradient(x)
        assert torch.equal(g, client.gradient_aside(x, batch))


@pytest.mark.parametrize(
    "keys",
    [
        {"dataset": "quadratic"},
        {"model": "logistic"},
        {"dataset": "diabetes"},
        {"dataset": "wine"},
        {"dataset": "speeches", "model": "bag"},
    ],
)
def test_only_images_can_be_augmented(keys: dict[str, Value], run_inline: RunInline) -> None:
    with pytest.raises(ConfigError, match='set augmentation = "none"'):
        run_inline(augmentation="crop-flip", **keys)


class Brought(Problem):
    """A user's problem, whose samples are images or not."""

    shape: tuple[int, ...] = (1, 6, 6)

    def model(self) -> nn.Module:
        """Return a linear model."""
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(self.shape), 2))

    def client_data(self, client: int) -> tuple[Any, Any]:
        """Return twenty samples of two classes."""
        rng = np.random.default_rng(client)
        return rng.normal(size=(20, *self.shape)), rng.integers(0, 2, 20)


class BroughtTable(Brought):
    """Rows of a table."""

    shape = (6,)


def test_a_user_s_images_are_augmented_and_a_user_s_table_is_refused(
    run_inline: RunInline,
) -> None:
    place, keys = __name__, KEYS
    one, two = (
        load_file(
            run_inline(**keys, problem=f"{place}:Brought", augmentation=kind) / "model.safetensors"
        )
        for kind in ("none", "crop-flip")
    )
    assert any((one[name] != two[name]).any() for name in one)
    with pytest.raises(ConfigError, match=r'the shape \(6,\): set augmentation = "none"'):
        run_inline(**keys, problem=f"{place}:BroughtTable", augmentation="crop-flip")
