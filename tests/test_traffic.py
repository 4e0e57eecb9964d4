"""The simulated clock, with and without the downlink, by hand."""

import numpy as np
import pytest

from fedapp.parsing import parse_run_config
from fedapp.tables import Value
from fedapp.traffic import round_costs, training_seconds
from fedapp.wire import Update
from tests.conftest import RunInline, read_rounds

MODEL = 50  # numbers


def costs(down: int = 4000, **keys: Value) -> dict[str, int | float]:
    """Return the costs of a round of two clients: 600 bytes up, of 800 nominal bits."""
    config = parse_run_config(
        {"time.comm-comp-ratio": 10.0, "local-steps": 3, "batch-size": 4} | keys
    )
    updates = [Update(client, {"u": np.zeros(MODEL)}, 20, 3, 0.5) for client in (0, 1)]
    return round_costs(config, 1, updates, 800, 600, MODEL, down)


def training() -> float:
    config = parse_run_config({"local-steps": 3, "batch-size": 4})
    return training_seconds(config, 1, {0: 12, 1: 12})


def test_a_second_sends_a_tenth_of_a_model_if_a_model_takes_ten() -> None:
    """A model has 50 * 32 = 1600 bits and takes 10 s: 160 bits in a second. 4800 bits take 30 s, 800 take 5."""
    found = costs()
    assert found["simulated_seconds"] == pytest.approx(training() + 30)
    assert found["simulated_seconds_nominal"] == pytest.approx(training() + 5)


def test_the_downlink_goes_over_the_same_channel_after_the_other() -> None:
    """4000 bytes are 32,000 bits, at 160 in a second: 200 s more, whichever way the uplink is counted."""
    found = costs(**{"time.downlink": True})
    assert found["simulated_seconds"] == pytest.approx(training() + 230)
    assert found["simulated_seconds_nominal"] == pytest.approx(training() + 205)


def test_nothing_sent_down_takes_no_time() -> None:
    assert costs(0, **{"time.downlink": True}) == costs()


def test_a_run_with_the_downlink_takes_longer_by_just_that(run_inline: RunInline) -> None:
    """A client receives 2 * 128 bytes of headers and 4 * 200 of numbers; a model has 32 * 200 bits, and takes 100 s."""
    keys: dict[str, Value] = {
        "dataset": "quadratic", "quadratic__dim": 200, "num_clients": 3, "clients_per_round": 3, "num_rounds": 2,
        "algorithm": "fedavg",
    }  # fmt: skip
    without, with_it = (
        read_rounds(run_inline(**keys, time__downlink=downlink)) for downlink in (False, True)
    )
    for one, other in zip(without, with_it, strict=True):
        assert one["test_loss"] == other["test_loss"]
        for clock in ("simulated_seconds", "simulated_seconds_nominal"):
            assert other[clock] - one[clock] == pytest.approx(
                3 * 8 * (256 + 800) / (32 * 200 / 100)
            )
