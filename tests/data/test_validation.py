"""valid-share: samples that nobody trains on, evaluated on the server beside the test set, to choose settings on."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapp.data import load_images, load_partition, validation_rows
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.runs import assert_same

KEYS: dict[str, Value] = {
    "num_clients": 4, "clients_per_round": 2, "num_rounds": 2, "local_steps": 2, "batch_size": 8, "partition": "iid",
    "lr": 0.02,
}  # fmt: skip


@settings(max_examples=8)
@given(
    share=st.floats(0.001, 0.95),
    partition=st.sampled_from(["iid", "dirichlet", "classes"]),
    per_client=st.sampled_from([0, 30]),
    train_samples=st.sampled_from([0, 700]),
    seed=st.integers(0, 3),
)
def test_no_client_holds_a_validation_sample(
    share: float, partition: str, per_client: int, train_samples: int, seed: int
) -> None:
    keys: dict[str, Value] = {
        "valid_share": share, "partition": partition, "samples_per_client": per_client,
        "train_samples": train_samples, "num_clients": 3, "seed": seed, "clients_per_round": 1,
    }  # fmt: skip
    data, config = load_images("digits", ""), parse_run_config(kebab(keys))
    held = validation_rows(data, config)
    there = train_samples or len(data.train_labels)
    assert len(held) == round(share * there) > 0
    partition_ = load_partition(data, config)
    trained = {int(row) for client in range(3) for row in partition_[client]}
    assert not trained & set(held.tolist())
    if not per_client and partition != "classes":  # there, some classes may be held by nobody
        assert len(trained) == there - len(held)
    weights = partition_.weights(len(data.train_labels))
    assert not weights[held].any()


@pytest.mark.parametrize(
    "problem",
    [
        {"model": "logreg"},
        {"model": "logistic"},
        {"dataset": "diabetes", "model": "mlp-4"},
        {"dataset": "speeches", "model": "bag-4", "text.vocabulary": 50, "text.length": 8},
        {"problem": "tests.problems.outside.problems:Prices"},
    ],
    ids=["images", "logistic", "table", "text", "own"],
)
def test_every_problem_is_validated_alike_on_any_number_of_nodes(
    problem: dict[str, Value], run_inline: RunInline
) -> None:
    keys = KEYS | problem | {"valid_share": 0.25, "algorithm": "scaffold"}
    one = run_inline(**keys, run_name="one")
    assert_same(one, run_inline(nodes=3, **keys, run_name="three"))
    for line in read_rounds(one):
        tested = {name.removeprefix("test_") for name in line if name.startswith("test_")}
        for metric in {name for name in tested if line[f"test_{name}"] is not None}:
            assert np.isfinite(line[f"valid_{metric}"])
            assert line[f"valid_{metric}"] != line[f"test_{metric}"]


def test_the_metrics_are_those_of_the_held_out_images_in_numpy() -> None:
    config = parse_run_config(
        kebab(KEYS | {"model": "logreg", "valid_share": 0.2, "dtype": "float64"})
    )
    problem, data = make_problem(config), load_images("digits", "")
    x, buffers = problem.initial()
    x = x + np.random.default_rng(0).standard_normal(len(x))
    tensors = problem.named_tensors(x, buffers)
    weights, bias = sorted((t.copy() for t in tensors.values()), key=lambda t: -t.ndim)
    held = validation_rows(data, config)
    mean, std = np.float32(data.mean[0]), np.float32(data.std[0])
    pixels = np.asarray(data.train_images[held], np.float64).reshape(len(held), -1)
    scores = (pixels - float(mean)) * float(np.float32(1) / std) @ weights.T + bias
    labels = data.train_labels[held]
    powers = np.exp(scores - scores.max(1, keepdims=True))
    chances = powers[np.arange(len(held)), labels] / powers.sum(1)
    figures = problem.evaluate(x, buffers)
    assert figures["valid_loss"] == pytest.approx(-np.log(chances).mean())
    assert figures["valid_accuracy"] == (scores.argmax(1) == labels).mean()


def test_a_user_s_clients_each_hold_their_share_out() -> None:
    keys = KEYS | {"problem": "tests.problems.outside.problems:Prices"}
    whole = make_problem(parse_run_config(kebab(keys)))
    less = make_problem(parse_run_config(kebab(keys | {"valid_share": 0.25})))
    for client in range(4):
        all_of_it = whole.objective(client).num_examples
        assert less.objective(client).num_examples == all_of_it - round(0.25 * all_of_it)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"dataset": "quadratic"}, "has no samples: set valid-share = 0"),
        ({"server_data": False}, "the server, which has no data: set valid-share = 0"),
        ({"valid_share": 0.0001}, "leaves none to validate or to train on"),
        ({"valid_share": 0.9999}, "leaves none to validate or to train on"),
        ({"valid_share": 1.0}, "valid-share = 1.0 is not allowed"),
        (
            {"problem": "tests.problems.outside.problems:Prices", "dp__clip": 1.0},
            "would have no noise: set valid-share = 0",
        ),
    ],
)
def test_what_cannot_be_held_out_is_refused(
    keys: dict[str, Value], said: str, run_inline: RunInline, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        run_inline(**KEYS | {"valid_share": 0.2} | keys)
