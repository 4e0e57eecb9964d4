"""A client in one round: the adapter to NumPyClient, and the way to the server."""

from typing import Any

import numpy as np
import pytest
import torch
from flwr.client import NumPyClient
from torch import Tensor

from clients.averaging import FedAvgClient, FedProxClient
from clients.fedbcgd import FedBCGDClient
from clients.scaffold import ScaffoldClient
from fedapp.client import Client
from fedapp.compression import NotFiniteError, make_compressor
from fedapp.config import RunConfig
from fedapp.parsing import parse_run_config
from fedapp.privacy import node_privacy
from fedapp.privacy.noise import private_update
from fedapp.problems import make_problem
from fedapp.refusals import Reason
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from fedapp.uplink import Uplink
from fedapp.wire import Update
from tests.conftest import kebab

KEYS: dict[str, Value] = {
    "dataset": "quadratic", "quadratic__dim": 6, "num_clients": 5, "local_steps": 3, "batch_size": 2,
    "lr": 0.1, "lr_schedule": "exponential", "lr_decay": 0.5,
}  # fmt: skip
LOCAL: dict[str, Value] = {
    "dp__clip": 1.0, "dp__noise_multiplier": 2.0, "dp__where": "client", "dp__noise_from": "seed",
}  # fmt: skip
V = torch.tensor([3.0, -2.0, 0.5, 0.0, 1.0, -4.0])


def config_of(**keys: Value) -> RunConfig:
    return parse_run_config(kebab(KEYS | keys))


def client_of(kind: type[Client], config: RunConfig, round_: int = 1, **more: Any) -> Client:
    options = config.table(ALGORITHMS[config.algorithm].options)
    objective = make_problem(config).objective(2)
    return kind(objective, config, 2, {}, round_=round_, options=options, **more)


def uplink_of(config: RunConfig, state: dict[str, Tensor], compressor: str | None) -> Uplink:
    codec = make_compressor(compressor, ratio=0.5) if compressor else None
    return Uplink(config, 3, 2, state, codec, node_privacy(config))


def test_fit_is_train_in_flowers_terms() -> None:
    config = config_of(algorithm="scaffold")
    x, c, buffers = (np.full(n, v, np.float32) for n, v in ((6, 0.5), (6, -1.0), (0, 0.0)))
    expected = client_of(ScaffoldClient, config, round_=3).train({"x": x, "c": c}, buffers)
    client = client_of(ScaffoldClient, config)
    assert isinstance(client, NumPyClient)
    arrays, examples, metrics = client.fit([c, x, buffers], {"round": 3, "names": "c x"})
    assert len(arrays) == 3
    for array, name in zip(arrays, ("u", "dc", "buffers"), strict=True):
        np.testing.assert_array_equal(array, expected[name], strict=True)
    assert np.abs(arrays[0]).sum() > 0
    assert examples == expected.num_examples
    assert metrics == {"steps": 3, "train-loss": expected.train_loss}
    again = client_of(ScaffoldClient, config).fit([c, x, buffers], {"round": 4, "names": "c x"})
    assert np.abs(again[0][0] - arrays[0]).sum() > 0, "the step size is the round's"


def test_fit_hides_what_local_noise_does_not_cover() -> None:
    client = client_of(FedAvgClient, config_of(**LOCAL))
    x, buffers = np.ones(6, np.float32), np.zeros(0, np.float32)
    _, examples, metrics = client.fit([x, buffers], {"round": 1, "names": "x"})
    assert (examples, metrics) == (2, {"steps": 0, "train-loss": 0.0})
    assert client.steps == 3


def test_what_is_sent_is_the_vector_without_compressor() -> None:
    uplink = uplink_of(config_of(), {}, None)
    assert uplink.send("u", V) is V
    np.testing.assert_array_equal(uplink.arrays["u"], V.numpy(), strict=True)


def test_error_feedback_adds_what_was_lost_before_and_keeps_what_is_lost_now() -> None:
    state = {"error.u": torch.tensor([0.0, 0.0, 5.0, 0.0, 0.0, 0.0])}
    uplink = uplink_of(config_of(compressor="topk", error_feedback=True), state, "topk")
    seen = uplink.send("u", V)  # the three largest of (3, -2, 5.5, 0, 1, -4)
    assert seen.tolist() == [3.0, 0.0, 5.5, 0.0, 0.0, -4.0]
    assert state["error.u"].tolist() == [0.0, -2.0, 0.0, 0.0, 1.0, 0.0]
    payload = uplink.arrays["u"]
    assert payload.dtype == np.uint8
    decoded = make_compressor("topk", ratio=0.5).decode(payload.data, 6)
    assert decoded.tolist() == seen.tolist()


@pytest.mark.parametrize(("error_feedback", "feedback"), [(True, False), (False, True)])
def test_without_feedback_the_memory_is_neither_read_nor_written(
    error_feedback: bool, feedback: bool
) -> None:
    state = {"error.u": torch.ones(6)}
    keys: dict[str, Value] = {"compressor": "topk", "error_feedback": error_feedback}
    seen = uplink_of(config_of(**keys), state, "topk").send("u", V, feedback)
    assert seen.tolist() == [3.0, -2.0, 0.0, 0.0, 0.0, -4.0]
    assert state["error.u"].tolist() == [1.0] * 6


def test_noise_comes_before_feedback_and_compression() -> None:
    config = config_of(**LOCAL, compressor="topk", error_feedback=True)
    private = private_update(V.numpy(), config, 3, 2).astype(np.float32)
    state: dict[str, Tensor] = {}
    seen = uplink_of(config, state, "topk").send("u", V)
    np.testing.assert_array_equal((seen + state["error.u"]).numpy(), private)
    assert np.abs(private - V.numpy()).sum() > 1


class Sender(FedAvgClient):
    """Asks what the server will see, and returns that."""

    def update(self, x: Tensor) -> dict[str, Tensor]:
        """Send x."""
        return {"u": self.send("u", x)}


def test_what_a_client_sends_itself_gets_noise_once() -> None:
    config = config_of(**LOCAL)
    client = client_of(Sender, config, round_=3)
    sent = client.train({"x": V.numpy()}, np.zeros(0, np.float32))["u"]
    expected = private_update(V.numpy(), config, 3, 2).astype(np.float32)
    np.testing.assert_array_equal(sent, expected)


def test_a_client_of_blocks_compresses_their_tensors() -> None:
    config = config_of(algorithm="fedbcgd", fedbcgd__blocks=2)
    codec = make_compressor("uniform", bits=8, tensors=(6,))
    client = client_of(FedBCGDClient, config, compressor=codec)
    assert client.compressor is codec
    x, block = np.ones(6, np.float32), np.array([1], np.float32)
    payload = client.train({"x": x, "block": block}, np.zeros(0, np.float32))["u"]
    assert client.compressor != codec
    sizes = tuple(part.stop - part.start for part in client.places if part.stop > part.start)
    decoded = codec.for_tensors(sizes).decode(payload.data, sum(sizes))
    assert len(decoded) == sum(sizes) < 6


# What leaves a node.

UPDATE = Update(2, {}, 30, 3, 0.5, state_lost=True, state_digest=77)


def test_without_noise_at_the_client_an_update_and_the_kind_of_an_error_are_shown() -> None:
    for keys in ({}, LOCAL | {"dp__where": "server"}):
        privacy = node_privacy(config_of(**keys))
        assert privacy.shown(UPDATE) is UPDATE
        refusal = privacy.refusal(2, ValueError("ill"))
        told = "ValueError: see this node's log"  # its text may quote a sample
        assert (refusal.reason, refusal.text) == (Reason.FAILED, told)
        refusal = privacy.refusal(2, NotFiniteError("inf"))
        assert (refusal.reason, refusal.text) == (Reason.NOT_FINITE, "NotFiniteError: inf")
        assert privacy.shows_samples == (not keys)
        assert "training loss" in privacy.sent_beside


def test_with_noise_at_the_client_all_that_has_none_is_hidden() -> None:
    privacy = node_privacy(config_of(**LOCAL))
    shown = privacy.shown(UPDATE)
    assert (shown.num_examples, shown.steps, shown.train_loss, shown.state_digest) == (2, 0, 0.0, 0)
    assert shown.state_lost, "which the server must know, and says nothing about the data"
    for error in (ValueError("sample 17"), NotFiniteError("sample 17")):
        refusal = privacy.refusal(2, error)
        assert (refusal.reason, refusal.text) == (Reason.FAILED, "it failed: see its node's log")
    assert not privacy.shows_samples
    assert "training loss" not in privacy.sent_beside


def test_a_client_reads_its_options_from_the_config() -> None:
    config = config_of(algorithm="fedprox", fedprox__mu=0.7)
    client = FedProxClient(make_problem(config).objective(2), config, 2, {})
    assert client.options.mu == 0.7


def test_a_client_that_trains_twice_sends_twice() -> None:
    config = config_of()
    client = client_of(FedAvgClient, config)
    buffers = np.zeros(0, np.float32)
    first, second = (
        client.train({"x": np.full(6, v, np.float32)}, buffers)["u"] for v in (0.0, 3.0)
    )
    assert not np.array_equal(first, second)
    again = client_of(FedAvgClient, config).train({"x": np.full(6, 3.0, np.float32)}, buffers)
    np.testing.assert_array_equal(second, again["u"])
