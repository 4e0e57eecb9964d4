"""Compression through the real ServerApp and ClientApp: bytes, costs, and payloads that are wrong."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from safetensors.numpy import load_file

from clients.averaging import FedAvgClient
from fedapp import client_app, node, server_app
from fedapp.algorithm import Algorithm
from fedapp.compression import COMPRESSORS, make_compressor
from fedapp.engine import InlineGrid
from fedapp.errors import DivergedError
from fedapp.parsing import parse_run_config
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds

ONE_STEP = {"qsgd", "diana", "vrdiana"}
QUADRATIC: dict[str, Value] = {
    "dataset": "quadratic",
    "quadratic__dim": 200,
    "num_clients": 6,
    "clients_per_round": 6,
    "local_steps": 1,
    "num_rounds": 5,
    "lr": 0.1,
}
DIGITS: dict[str, Value] = QUADRATIC | {"dataset": "digits", "model": "mlp-3"}


def problem_for(algorithm: str) -> dict[str, Value]:
    """A problem that an algorithm can do with: those that look into a network need one."""
    return DIGITS if ALGORITHMS[algorithm].needs.network else QUADRATIC


def counting_app(counted: dict[str, int]) -> ClientApp:
    """The real ClientApp, with a Flower mod that counts the bytes of the arrays it sees."""

    def count(message: Message, context: Context, serve: Any) -> Message:
        reply: Message = serve(message, context)
        for direction, content in (("down", message.content), ("up", reply.content)):
            for record in content.array_records.values():
                counted[direction] += sum(len(array.data) for array in record.values())
        return reply

    app = ClientApp(mods=[count])
    app.query()(node.query)
    app.train()(node.train)
    return app


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.usefixtures("single_updates")
def test_bytes_are_those_that_a_flower_mod_counts(algorithm: str, tmp_path: Path) -> None:
    """One client a node, so that what is counted for each client is in each message."""
    keys = problem_for(algorithm) | {"algorithm": algorithm, "results_dir": str(tmp_path)}
    config = parse_run_config(kebab(keys))
    counted = {"down": 0, "up": 0}
    grid = InlineGrid(counting_app(counted), config.flat(), nodes=6)
    records = read_rounds(server_app.run(grid, config).path)
    assert sum(r["uplink_bytes"] for r in records) == counted["up"] > 0
    assert sum(r["downlink_bytes"] for r in records) == counted["down"] > 0


VECTOR = 128 + 4 * 200  # the header of an array, and 200 numbers


@pytest.mark.parametrize(
    ("algorithm", "up", "down"),
    [("fedavg", 1, 1), ("scaffold", 2, 2), ("fedgate", 1, 2)],
)
def test_every_vector_counts(algorithm: str, up: int, down: int, run_inline: RunInline) -> None:
    """Two of SCAFFOLD's each way; FedGATE's tracking needs a second one down, after round 1."""
    last = read_rounds(run_inline(**QUADRATIC, algorithm=algorithm))[-1]
    buffers = 128
    assert last["uplink_bytes"] == 6 * (up * VECTOR + buffers)
    assert last["downlink_bytes"] == 6 * (down * VECTOR + buffers)
    assert last["uplink_bits_nominal"] == 6 * up * 32 * 200


@pytest.fixture(scope="module")
def uncompressed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return a function that gives the last round of an algorithm that sends floats, run once."""

    @cache
    def last(algorithm: str) -> dict[str, Any]:
        keys = problem_for(algorithm) | {"algorithm": algorithm, "compressor": "none"}
        keys |= {"results_dir": str(tmp_path_factory.mktemp(algorithm))}
        config = parse_run_config(kebab(keys))
        grid = InlineGrid(client_app.app, config.flat())
        return read_rounds(server_app.run(grid, config).path)[-1]

    return last


@pytest.mark.slow
@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"uncompressed {name}"))
        for name in ALGORITHMS
    ],
)
def test_any_compressor_goes_with_any_algorithm(
    algorithm: str,
    compressor: str,
    run_inline: RunInline,
    uncompressed: Callable[[str], dict[str, Any]],
) -> None:
    if algorithm in ("diana", "vrdiana") and not make_compressor(compressor).unbiased:
        pytest.skip("biased")
    keys: dict[str, Value] = {"qsgd__levels": 64, "topk__ratio": 0.5, "randk__ratio": 0.5}
    keys |= {"algorithm": algorithm, "compressor": compressor}
    problem = problem_for(algorithm)
    first, *_, last = read_rounds(run_inline(**problem, **keys))
    assert last["failures"] == 0
    assert last["test_loss"] < first["test_loss"]
    if compressor not in ("none",):
        plain = uncompressed(algorithm)
        assert last["uplink_bytes"] < plain["uplink_bytes"]
        assert last["uplink_bits_nominal"] < plain["uplink_bits_nominal"]


@pytest.mark.slow
def test_error_feedback_makes_up_for_a_biased_compressor(run_inline: RunInline) -> None:
    """With one local step FedAvg is gradient descent, and only top-k's bias is in the way."""
    keys: dict[str, Value] = QUADRATIC | {"algorithm": "fedavg", "compressor": "topk"}
    keys |= {"quadratic__dim": 30, "num_rounds": 175, "num_clients": 3, "clients_per_round": 3}
    plain, with_feedback = (
        read_rounds(run_inline(**keys, error_feedback=feedback))[-1]["distance"]
        for feedback in (False, True)
    )
    assert with_feedback < 0.1 * plain


def test_the_clock_and_the_nominal_bits_are_the_same_again(run_inline: RunInline) -> None:
    """What the clock shows is tested in test_traffic.py."""
    keys = QUADRATIC | {"algorithm": "fedpaq", "time__comm_comp_ratio": 1000.0}
    first, second = (read_rounds(run_inline(**keys)) for _ in range(2))
    for record, again in zip(first, second, strict=True):
        assert record | {"wall_seconds": 0} == again | {"wall_seconds": 0}
        # Fewer bytes than nominal bits, so less time: entropy coding, at 1000 s for 6400 bits.
        saved = record["uplink_bits_nominal"] - 8 * record["uplink_bytes"]
        nominal = record["simulated_seconds_nominal"]
        assert nominal - record["simulated_seconds"] == pytest.approx(saved / 6.4)
    # 6 clients, one sign and 5 bits of level for each of 200 numbers, and a norm.
    assert first[0]["uplink_bits_nominal"] == 6 * (200 * 6 + 32)


class Damaging(FedAvgClient):
    """Client 2 sends something else than its payload."""

    damage = ""

    def train(self, received: Any, buffers: Any) -> Any:
        update = super().train(received, buffers)
        payload = update["u"]
        if self.client == 2:
            match self.damage:
                case "flip":
                    payload = payload.copy()
                    payload[-1] ^= 1
                case "cut":
                    payload = payload[:-1]
                case "more":
                    payload = np.append(payload, np.uint8(0))
                case "empty":
                    payload = payload[:0]
                case "floats":
                    payload = np.zeros(200, np.float32)
                case "matrix":
                    payload = payload[: len(payload) // 2 * 2].reshape(2, -1)
                case "another codec":
                    payload = np.frombuffer(
                        make_compressor("float16").encode(np.ones(200), np.random.default_rng(0)),
                        np.uint8,
                    )
                case "another size":
                    payload = np.frombuffer(
                        make_compressor("qsgd").encode(np.ones(201), np.random.default_rng(0)),
                        np.uint8,
                    )
        return replace(update, arrays=update.arrays | {"u": payload})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("flip", "checksum is wrong"),
        ("cut", "checksum is wrong"),
        ("more", "checksum is wrong"),
        ("empty", "too few for a payload"),
        ("floats", "float32 of shape (200,) instead of bytes"),
        ("matrix", "instead of bytes"),
        ("another codec", "codec 1.1 instead of 2.1"),
        ("another size", "201 numbers instead of 200"),
    ],
)
@pytest.mark.usefixtures("single_updates")
def test_a_wrong_payload_is_one_failed_client(
    damage: str,
    said: str,
    run_inline: RunInline,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fedavg = ALGORITHMS["fedavg"]
    monkeypatch.setattr(Damaging, "damage", damage)
    monkeypatch.setitem(ALGORITHMS, "fedavg", Algorithm("fedavg", "", fedavg.strategy, Damaging))
    with caplog.at_level("WARNING", logger="flwr"):
        directory = run_inline(**QUADRATIC, compressor="qsgd")
    assert [(r["clients"], r["failures"]) for r in read_rounds(directory)] == [(5, 1)] * 5
    told, *_ = [m for m in caplog.messages if m.startswith("Client 2 failed: ")]
    assert said in told
    assert np.isfinite(load_file(directory / "model.safetensors")["x"]).all()


def test_an_update_that_is_not_finite_fails_at_the_client(
    run_inline: RunInline, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DivergedError, match="lower lr"):
        run_inline(**(QUADRATIC | {"lr": 1e30, "local_steps": 3}), compressor="qsgd")
    assert any("not finite cannot be compressed" in m for m in caplog.messages)
