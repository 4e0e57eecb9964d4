"""The simulated clock, from the model of FedPAQ's section 5 and not from the code.

A round of r clients takes r * bits / bandwidth + max over them of (tau B shift + Exp(mean tau B / scale)), with
shift = 1/scale = 1/2, so that a sample takes one second on average; a model of 32 d bits takes `time.comm-comp-ratio` seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fedapp import traffic
from fedapp.config import RunConfig
from fedapp.models.layout import Piece
from fedapp.parsing import parse_run_config
from fedapp.randomness import generator, sample_cohort
from fedapp.tables import Value
from fedapp.traffic import round_costs
from fedapp.wire import Update
from tests.conftest import RunInline, kebab, read_rounds

MODEL = 50  # numbers
# Drawn from an exponential variable with mean 1; every client of a hand-computed round has its own.
DRAWS = {0: 1.0, 1: 3.0, 2: 0.25}


@pytest.fixture
def fixed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the exponential variables be DRAWS."""

    class Fixed:
        def __init__(self, seed: int, purpose: str, round_: int, client: int) -> None:
            assert purpose == "time"
            self.draw = DRAWS[client]

        def exponential(self, mean: float) -> float:
            return mean * self.draw

    monkeypatch.setattr(traffic, "generator", Fixed)


def config_of(keys: dict[str, Value]) -> RunConfig:
    common: dict[str, Value] = {"time__comm_comp_ratio": 10.0, "local_steps": 3, "batch_size": 4}
    return parse_run_config(kebab(common | keys))


def costs(
    keys: dict[str, Value],
    down: int = 4000,
    examples: Sequence[int] = (20, 20, 20),
    round_: int = 1,
) -> dict[str, int | float]:
    """Return the costs of a round in which clients sent 600 bytes, of 800 nominal bits."""
    updates = [
        Update(client, {"u": np.zeros(MODEL)}, n, 3, 0.5) for client, n in enumerate(examples)
    ]
    return round_costs(config_of(keys), round_, updates, 800, 600, MODEL, down)


# By hand. A model has 50 * 32 = 1600 bits and takes 10 s: 160 bits in a second. 600 bytes are 4800 bits and take 30 s, 800
# bits 5 s. Clients train on 3 * 4 = 12 samples: 12 * (0.5 + 0.5 draw) = 12, 24 and 7.5 s, of which the longest counts.


@pytest.mark.usefixtures("fixed_draws")
def test_a_round_takes_the_slowest_client_and_then_what_all_send() -> None:
    found = costs({})
    assert found["simulated_seconds"] == pytest.approx(24 + 30)
    assert found["simulated_seconds_nominal"] == pytest.approx(24 + 5)
    assert found["uplink_bits_nominal"] == 800


@pytest.mark.usefixtures("fixed_draws")
def test_the_downlink_goes_over_the_same_channel_after_the_other() -> None:
    """4000 bytes are 32,000 bits, at 160 in a second: 200 s more, whichever way the uplink is counted."""
    found = costs({"time__downlink": True})
    assert found["simulated_seconds"] == pytest.approx(24 + 230)
    assert found["simulated_seconds_nominal"] == pytest.approx(24 + 205)


def test_nothing_sent_down_takes_no_time() -> None:
    assert costs({"time__downlink": True}, down=0) == costs({})


@pytest.mark.usefixtures("fixed_draws")
@pytest.mark.parametrize(
    ("keys", "examples", "seconds"),
    [
        ({}, (20, 20, 20), 24.0),
        ({"local_steps": 6}, (20, 20, 20), 48.0),
        ({"batch_size": 8}, (20, 20, 20), 48.0),
        # A batch has at most all of a client's examples: 12 * 1, 3 * 2 * 2 and 12 * 0.625.
        ({}, (20, 2, 20), 12.0),
        # Two passes: 40 * 1, 14 * 2 and 2 * 0.625; and with all examples in a batch, 3 * 40 * 2.
        ({"local_epochs": 2}, (20, 7, 1), 40.0),
        ({"local_epochs": 2}, (10, 7, 30), 37.5),
        ({"batch_size": 0}, (20, 40, 20), 240.0),
    ],
)
def test_training_takes_time_for_every_sample_of_every_local_step(
    keys: dict[str, Value], examples: tuple[int, ...], seconds: float
) -> None:
    found = costs(keys, examples=examples)
    assert found["simulated_seconds"] == pytest.approx(seconds + 30)
    assert found["simulated_seconds_nominal"] == pytest.approx(seconds + 5)


@pytest.mark.usefixtures("fixed_draws")
@pytest.mark.parametrize(("ratio", "seconds"), [(0.0, 0), (1.0, 3), (100.0, 300), (1000.0, 3000)])
def test_sending_takes_time_in_proportion_to_the_ratio(ratio: float, seconds: float) -> None:
    """4800 bits are three models."""
    found = costs({"time__comm_comp_ratio": ratio})
    assert found["simulated_seconds"] == pytest.approx(24 + seconds)


def test_a_round_in_which_nobody_trained_takes_what_was_sent() -> None:
    assert costs({}, examples=())["simulated_seconds"] == pytest.approx(30)


# What is sent, in nominal bits and in words.


def pieces_of(*sizes: int) -> tuple[Piece, ...]:
    return tuple(Piece(size, size) for size in sizes)


@pytest.mark.parametrize(("dtype", "bits"), [(np.float32, 32), (np.float64, 64)])
def test_what_is_not_compressed_has_the_bits_of_its_type(dtype: type, bits: int) -> None:
    """Two vectors of 10 + 40 numbers; buffers do not count."""
    upload = traffic.Upload(("u", "dc"), None, np.dtype(dtype), (np.dtype(dtype), (7,)))
    assert upload.nominal_bits(pieces_of(10, 40)) == 2 * 50 * bits


def test_words_name_the_smallest_and_the_largest_upload_and_the_bytes_of_the_largest() -> None:
    upload = traffic.Upload(("u",), None, np.dtype(np.float32), (np.dtype(np.float32), (0,)))
    told = upload.in_words([pieces_of(10), pieces_of(20, 30), pieces_of(15)], "and no more")
    assert told.startswith("A client sends u (10 to 50 numbers, 200 B), and no more;")
    assert "(10 numbers, 40 B)" in upload.in_words([pieces_of(10)], "")
    assert "buffers" not in told


def test_words_name_each_vector_with_its_own_bytes_and_the_buffers() -> None:
    single = np.dtype(np.float32)
    upload = traffic.Upload(("u", "dc"), None, single, (single, (7,)))
    told = upload.in_words([pieces_of(10)], "")
    assert "u (10 numbers, 40 B), dc (10 numbers, 40 B), buffers (7 numbers, 28 B)" in told


# By what is known of the distribution. Of r exponential variables with mean 1, the largest has mean 1 + 1/2 + ... + 1/r.


def training(rounds: int, clients: int, **keys: Value) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the seconds of training of many rounds; nothing is sent."""
    ratio: dict[str, Value] = {"time__comm_comp_ratio": 0.0}
    examples = (20,) * clients
    found = (costs(ratio | keys, 0, examples, k) for k in range(1, rounds + 1))
    return np.array([cost["simulated_seconds"] for cost in found])


def test_a_client_takes_half_of_the_mean_for_certain_and_half_at_random() -> None:
    """12 samples: at least 6 s, the rest exponential with mean 6. 3000 draws: a mean to 0.11 s, in one deviation."""
    seconds = training(3000, 1) - 6
    assert 0 < seconds.min() < 0.05
    assert seconds.mean() == pytest.approx(6, abs=0.45)
    assert seconds.std() == pytest.approx(6, abs=0.7)
    assert np.median(seconds) == pytest.approx(6 * np.log(2), abs=0.45)


def test_more_clients_make_a_round_longer_as_the_largest_of_them_does() -> None:
    """With five clients: 6 + 6 (1 + 1/2 + 1/3 + 1/4 + 1/5) = 19.7 s."""
    seconds = training(1000, 5)
    assert seconds.mean() == pytest.approx(19.7, abs=0.9)
    assert len(set(seconds)) == 1000


def test_clients_rounds_and_seeds_have_draws_of_their_own() -> None:
    first, second = training(50, 1), training(50, 1, seed=7)
    assert len({*first, *second}) == 100
    np.testing.assert_array_equal(first, training(50, 1))
    pairs = np.corrcoef(first, second)[0, 1]
    assert abs(pairs) < 0.5


# In a run.


def expected_seconds(
    config: RunConfig, record: Mapping[str, Any], bits: float, samples: Mapping[int, int]
) -> float:
    """Return what the model of the paper gives for a round."""
    draws = {
        i: generator(config.seed, "time", record["round"], i).standard_exponential()
        for i in samples
    }
    slowest = max(n * 0.5 + 0.5 * n * draws[i] for i, n in samples.items())
    return float(slowest + bits / (32 * 200 / 30))


def test_the_rounds_of_a_run_take_what_the_paper_s_model_gives(run_inline: RunInline) -> None:
    """200 numbers that take 30 s, qsgd; three of five clients, four steps with batches of one."""
    keys: dict[str, Value] = {
        "algorithm": "fedpaq", "dataset": "quadratic", "quadratic__dim": 200, "num_clients": 5,
        "clients_per_round": 3, "num_rounds": 3, "local_steps": 4, "batch_size": 1, "seed": 3,
        "qsgd__levels": 7, "time__comm_comp_ratio": 30.0,
    }  # fmt: skip
    config = parse_run_config(kebab(keys))
    for record in read_rounds(run_inline(**keys)):
        cohort = sample_cohort(range(5), 3, 3, record["round"])
        samples = dict.fromkeys(cohort, 4)
        # A number takes one of 2 * 7 + 1 values, 4 bits in whole ones; the norm 32 more.
        assert record["uplink_bits_nominal"] == 3 * (4 * 200 + 32)
        for name, bits in (
            ("simulated_seconds", 8 * record["uplink_bytes"]),
            ("simulated_seconds_nominal", record["uplink_bits_nominal"]),
        ):
            assert record[name] == pytest.approx(expected_seconds(config, record, bits, samples))


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
