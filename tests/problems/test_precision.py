"""precision = "bf16": networks compute in half precision, on the CPU too; everything else stays float32."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.randomness import generator
from fedapp.tables import Value
from tests.conftest import RunInline, read_rounds
from tests.support.runs import assert_same

ROUNDOFF = 2.0**-8  # bf16's
SMALL: dict[str, Value] = {"num_clients": 4, "clients_per_round": 3, "num_rounds": 2}


def gradient(model: str, precision: str) -> tuple[float, NDArray[np.float64]]:
    """Return a loss and its gradient at the initial model."""
    config = parse_run_config({"model": model, "precision": precision, "norm": "group"})
    problem = make_problem(config)
    samples = problem.objective(0)
    batch = next(samples.batches(config.local_work, generator(0, "test")))
    x = torch.tensor(problem.initial()[0])
    loss, g = samples.loss_gradient(x, batch)
    assert loss.dtype == g.dtype == torch.float32
    return float(loss), g.double().numpy()


@pytest.mark.parametrize("model", ["logreg", "mlp-200", "lenet5", "resnet20"])
def test_a_gradient_in_bf16_is_near_that_in_float32(model: str) -> None:
    """Within ten roundoffs of it: its error is that of sums of rounded products, layer after layer."""
    (loss, exact), (rounded_loss, rounded) = gradient(model, "fp32"), gradient(model, "bf16")
    error = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert ROUNDOFF / 100 < error < 10 * ROUNDOFF, "it is rounded, and not more than that"
    assert rounded_loss == pytest.approx(loss, rel=2 * ROUNDOFF)


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "scaffold"},
        {"algorithm": "moon", "model": "mlp-20-20"},
        {"algorithm": "fedmlb", "model": "mlp-20-20"},
        {"dataset": "shakespeare", "model": "gru-8", "local_steps": 2},
        {"dataset": "diabetes", "model": "mlp-8", "lr": 0.05, "test_share": 0.2, "eval_clients": 2},
    ],
    ids=lambda keys: "-".join(map(str, keys.values())),
)
def test_runs_in_bf16_stay_near_those_in_float32_and_give_the_same_bits_on_any_number_of_nodes(
    keys: dict[str, Value], run_inline: RunInline
) -> None:
    plain = run_inline(**SMALL | keys)
    one = run_inline(**SMALL | keys, precision="bf16")
    assert_same(one, run_inline(nodes=3, **SMALL | keys, precision="bf16"))
    model, reference = load_file(one / "model.safetensors"), load_file(plain / "model.safetensors")
    assert {name: a.dtype for name, a in model.items()} == {
        name: a.dtype for name, a in reference.items()
    }
    assert any(not np.array_equal(a, reference[name]) for name, a in model.items())
    for name, a in model.items():
        assert np.linalg.norm(a - reference[name]) < 0.05 * np.linalg.norm(reference[name]) + 1e-3
    last, expected = read_rounds(one)[-1], read_rounds(plain)[-1]
    assert last["train_loss"] == pytest.approx(expected["train_loss"], rel=0.01)
    assert last["uplink_bytes"] == expected["uplink_bytes"], "updates are float32"


def test_a_run_goes_on_elsewhere_but_not_in_another_precision(run_inline: RunInline) -> None:
    keys: dict[str, Value] = {"run_name": "run", "checkpoint_every": 1, "resume": True}
    run_inline(**SMALL | keys | {"num_rounds": 1})
    with pytest.raises(ConfigError, match="cannot go on with another precision"):
        run_inline(**SMALL | keys, precision="bf16")
    assert len(read_rounds(run_inline(**SMALL | keys, device="auto"))) == 2
