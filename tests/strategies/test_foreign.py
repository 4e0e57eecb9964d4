"""An algorithm from outside runs without a change of fedapp: its two files are in `foreign/`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapp.algorithm import Algorithm
from fedapp.building import make_strategy
from fedapp.errors import ConfigError
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from strategies.averaging import FedAvgMOptions
from tests.conftest import RunInline, kebab, read_rounds
from tests.strategies.foreign import signs
from tests.strategies.foreign.signs import SIGNS

NAME = "tests.strategies.foreign.signs:SIGNS"
KEYS: dict[str, Value] = {
    "algorithm": NAME,
    "dataset": "quadratic",
    "quadratic__dim": 6,
    "num_clients": 4,
    "clients_per_round": 4,
    "local_steps": 2,
    "lr": 0.1,
    "num_rounds": 3,
    "dtype": "float64",
}


def by_hand(step: float) -> Any:
    """Return x after the rounds, from the rule as it is written."""
    config = parse_run_config(kebab(KEYS))
    problem: Any = make_problem(config)
    A, b = problem.A.numpy(), problem.b.numpy()
    x = np.zeros(6)
    for _ in range(3):
        signs = []
        for A_i, b_i in zip(A, b, strict=True):
            y = x.copy()
            for _ in range(2):
                y = y - 0.1 * A_i @ (y - b_i)
            signs.append(np.sign(x - y))
        x = x - step * np.mean(signs, axis=0)
    return x


@pytest.mark.parametrize("step", [0.1, 0.03])
def test_a_foreign_algorithm_runs_with_its_own_key(step: float, run_inline: RunInline) -> None:
    assert NAME not in ALGORITHMS
    directory = run_inline(**KEYS, signs__step=step)
    np.testing.assert_allclose(load_file(directory / "model.safetensors")["x"], by_hand(step))
    assert len(read_rounds(directory)) == 3
    assert directory.name.startswith("signs-quadratic-")


def test_it_is_resumed_with_its_state(run_inline: RunInline, tmp_path: Path) -> None:
    whole = run_inline(**KEYS, run_name="whole")
    keys = KEYS | {"run_name": "halves", "checkpoint_every": 1}
    run_inline(**keys | {"num_rounds": 2})
    directory = run_inline(**keys, resume=True)
    assert (directory / "model.safetensors").read_bytes() == (
        whole / "model.safetensors"
    ).read_bytes()
    state = max(directory.glob("client-state/*/0/*"), key=lambda path: int(path.stem))
    assert load_file(state)["rounds"].item() == 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"signs__step": -1.0}, "signs.step = -1.0 is not allowed"),
        ({"signs__stop": 1.0}, "no config key 'signs.stop' .did you mean 'signs.step'"),
        ({"algorithm": "tests.strategies.foreign.signs:SIGN"}, "has nothing named SIGN"),
        ({"algorithm": "tests.strategies.unknown:SIGNS"}, "cannot be imported .* install it"),
        ({"algorithm": ":SIGNS"}, "is not a name: write it as package.module:name"),
        ({"algorithm": ".signs:SIGNS"}, "is not a name: write it as package.module:name"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(more: dict[str, Value], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_run_config(kebab(KEYS | more))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"weighting": "examples"}, "Signs have no weights: set weighting"),
        ({"server_lr": 0.5}, "SignMean has no server step size"),
    ],
)
def test_its_needs_are_checked(more: dict[str, Value], said: str) -> None:
    config = parse_run_config(kebab(KEYS | more))
    with pytest.raises(ConfigError, match=said):
        make_strategy(config, make_problem(config))


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (replace(SIGNS, table="time"), "names its table time, which fedapp has already"),
        (replace(SIGNS, table="fedprox"), "names its table fedprox, which fedapp has already"),
        (replace(SIGNS, options=FedAvgMOptions), "derive a class of its own"),
    ],
)
def test_tables_that_clash_are_refused(
    declared: Algorithm, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables are found by their class, so two of the same class could be mistaken for each other."""
    name = f"OTHER_{declared.table}_{declared.options.__name__}"  # what is imported once is kept
    monkeypatch.setattr(signs, name, declared, raising=False)
    with pytest.raises(ConfigError, match=said):
        parse_run_config(kebab(KEYS | {"algorithm": f"tests.strategies.foreign.signs:{name}"}))
