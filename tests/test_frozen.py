"""What is frozen is verified by its digest, and sent once to a node that made something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from safetensors.numpy import load_file, save_file

from fedapp import client_app, problems, server_app, wire
from fedapp.engine import InlineGrid
from fedapp.errors import ConfigError, RunError
from fedapp.files import load_arrays, save_arrays
from fedapp.frozen import MOST_SENT, FrozenSender
from fedapp.models.vit import vit_base
from fedapp.parsing import parse_run_config
from fedapp.problems import make_problem
from fedapp.refusals import Reason, Refusal
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.models.outside.networks import Versioned
from tests.support.frozen import FROZEN, KEYS
from tests.support.runs import trained


class NewProcesses(InlineGrid):
    """Nodes each of whose messages is served by a process of its own, as in deployment, that makes another network."""

    def __init__(
        self, config: Any, nodes: int, asked: bool, change: Callable[[bool], None]
    ) -> None:
        super().__init__(client_app.app, config.flat(), nodes)
        self.asked, self.change = asked, change
        self.received: list[bool] = []  # for each invitation, whether what is frozen came with it

    def serve(self, message: Message) -> Message:
        check = message.content.get("check")
        if self.asked and isinstance(check, ConfigRecord):  # as a server elsewhere asks
            check["shared-data"] = True
        if message.metadata.message_type == "train":
            self.received.append(wire.FROZEN in message.content)
        problems._make_problem.cache_clear()
        self.change(True)
        try:
            return super().serve(message)
        finally:
            self.change(False)
            problems._make_problem.cache_clear()


def another_version(other: bool) -> None:
    Versioned.version = 2 if other else 1


def run_apart(
    place: Path, keys: dict[str, Value] | None = None, nodes: int = 2, asked: bool = True
) -> tuple[Path, NewProcesses]:
    """Run with nodes that make another network than the server."""
    config = parse_run_config(kebab(KEYS | (keys or {})) | {"results-dir": str(place)})
    grid = NewProcesses(config, nodes, asked, another_version)
    return server_app.run(grid, config).path, grid


def test_nodes_that_made_the_same_receive_nothing(run_inline: RunInline) -> None:
    lines = read_rounds(run_inline(nodes=2, **KEYS))
    assert {line["downlink_bytes"] for line in lines} == {4 * (2 * (4 * 130 + 128) + 128)}


@pytest.mark.parametrize("kept", ["context", "state-dir"])
def test_a_node_that_made_another_receives_it_once(
    kept: str, run_inline: RunInline, tmp_path: Path
) -> None:
    whole = run_inline(nodes=2, **KEYS)
    keys: dict[str, Value] = {"state_dir": str(tmp_path / "s")} if kept == "state-dir" else {}
    apart, grid = run_apart(tmp_path / "apart", keys)
    assert grid.received == [True, True, False, False, False, False]
    (model, lines), (same, expected) = trained(apart), trained(whole)
    assert [line["downlink_bytes"] for line in lines] == [
        line["downlink_bytes"] + more
        for line, more in zip(expected, (2 * FROZEN, 0, 0), strict=True)
    ]
    assert all(np.array_equal(model[name], same[name]) for name in same)
    files = list((tmp_path / "s" / "frozen").glob("*.safetensors"))
    assert len(files) == (kept == "state-dir")
    in_context = [n for c in grid.contexts.values() for n in c.state if n.startswith("frozen.")]
    assert len(in_context) == (0 if files else 2)


def test_a_node_that_was_not_asked_says_so_in_the_round(
    run_inline: RunInline, tmp_path: Path
) -> None:
    whole = run_inline(nodes=2, **KEYS)
    apart, grid = run_apart(tmp_path / "apart", asked=False)
    assert grid.received == [False, False, True, True, False, False, False, False]
    (model, lines), (same, expected) = trained(apart), trained(whole)
    assert lines[0]["downlink_bytes"] == 2 * expected[0]["downlink_bytes"] + 2 * FROZEN
    assert lines[0]["failures"] == 4 and lines[1:] == expected[1:]
    assert all(np.array_equal(model[name], same[name]) for name in same)


@pytest.mark.parametrize("asked", [True, False])
def test_clients_that_evaluate_have_it_too(
    asked: bool, run_inline: RunInline, tmp_path: Path
) -> None:
    keys: dict[str, Value] = {"eval_clients": "all", "test_share": 0.2, "clients_per_round": 2}
    whole = run_inline(nodes=2, **KEYS | keys)
    apart, _ = run_apart(tmp_path / "apart", keys, asked=asked)
    lines, expected = trained(apart)[1], trained(whole)[1]
    bytes_of = {"downlink_bytes", "eval_downlink_bytes"}
    sent = [sum(line[name] for line in run for name in bytes_of) for run in (lines, expected)]
    if asked:  # otherwise the first round is repeated, with another cohort
        assert_model(apart, whole)
        assert sent[0] == sent[1] + 2 * FROZEN
        assert [drop(line, bytes_of) for line in lines] == [drop(e, bytes_of) for e in expected]
    assert lines[-1]["client_accuracy_mean"] is not None
    assert lines[-1]["eval_failures"] == 0


def drop(line: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in names}


def test_a_resumed_run_sends_nothing_again(run_inline: RunInline, tmp_path: Path) -> None:
    whole = run_inline(nodes=2, **KEYS)
    place, states = tmp_path / "apart", str(tmp_path / "s")
    keys: dict[str, Value] = {"run_name": "halves", "checkpoint_every": 1, "state_dir": states}
    run_apart(place, keys | {"num_rounds": 2})
    apart, grid = run_apart(place, keys | {"resume": True})
    assert grid.received == [False, False]
    assert trained(apart)[1][2] == trained(whole)[1][2]
    assert_model(apart, whole)


@pytest.mark.parametrize("wrote", ["this version", "an older one"])
def test_a_run_does_not_resume_with_another_frozen_part(
    wrote: str, run_inline: RunInline, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = KEYS | {"run_name": "halves", "checkpoint_every": 1}
    path = run_inline(**keys | {"num_rounds": 2})
    if wrote == "an older one":
        for file in (path / "checkpoint").iterdir():
            arrays, about = load_arrays(file, {})
            save_arrays(file, arrays, {n: t for n, t in about.items() if n not in ("frozen", "digest")})  # fmt: skip
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    if wrote == "this version":
        monkeypatch.setattr(Versioned, "version", 2)
        problems._make_problem.cache_clear()
        try:
            with pytest.raises(ConfigError, match=r"^The frozen part of the network is not what"):
                run_inline(**keys, resume=True)
        finally:
            monkeypatch.undo()
            problems._make_problem.cache_clear()
        kept = {file: file.read_bytes() for file in path.glob("checkpoint/*")}
        assert kept.items() <= files.items() and len(kept) == 2
    assert_model(run_inline(**keys, resume=True), run_inline(**KEYS))


def test_a_damaged_copy_is_sent_again(run_inline: RunInline, tmp_path: Path) -> None:
    states = str(tmp_path / "s")
    run_apart(tmp_path / "first", {"state_dir": states}, nodes=1)
    (copy,) = (tmp_path / "s" / "frozen").glob("*.safetensors")
    data = bytearray(copy.read_bytes())
    data[-5] ^= 1
    copy.write_bytes(data)
    apart, grid = run_apart(tmp_path / "second", {"state_dir": states}, nodes=1)
    assert grid.received == [True, False, False]
    assert_model(apart, run_inline(**KEYS))


def assert_model(one: Path, other: Path) -> None:
    models = [load_file(path / "model.safetensors") for path in (one, other)]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[1])


def test_arrays_that_are_not_those_are_refused() -> None:
    problem: Any = make_problem(parse_run_config(kebab(KEYS)))
    part = problem.frozen_part
    arrays = part.arrays()
    other = arrays | {"body.bias": arrays["body.bias"] + 1}
    with pytest.raises(ConfigError, match="not those that it named"):
        part.adopt(other, part.digest)
    for wrong in (
        {n: a for n, a in arrays.items() if n != "order"},
        arrays | {"head.bias": np.zeros(10, np.float32)},
        arrays | {"order": arrays["order"].astype(np.int32)},
        arrays | {"body.bias": np.zeros(3, np.float32)},
    ):
        with pytest.raises(ConfigError, match="do not fit the network of this node"):
            part.adopt(wrong, part.digest)
    assert all(np.array_equal(array, part.arrays()[name]) for name, array in arrays.items())


def test_a_copy_of_a_network_begins_as_it_was_made_and_leaves_it_alone() -> None:
    keys = KEYS | {"model": "tests.models.outside.networks:Fading", "trainable": ""}
    problem: Any = make_problem(parse_run_config(kebab(keys)))
    samples, x = problem.objective(0), torch.tensor(problem.initial()[0])
    for _ in range(2):  # the second time, the copy was trained too
        samples.loss_gradient(x, samples.indices[:4])
        own, last = problem.model.module, problem.model.module.last
        copied: Any = samples.frozen(x)
        assert (float(copied.scale), copied.last, hasattr(copied, "late")) == (1, None, False)
        assert float(own.scale) < 1 and own.last is last and hasattr(own, "late")
        copied(torch.ones(2, 1, 8, 8))
        assert float(copied.scale) < 1


def test_a_node_cannot_ask_without_end() -> None:
    problem: Any = make_problem(parse_run_config(kebab(KEYS)))
    sender, sent = FrozenSender(problem.frozen_part), 0
    for _ in range(10):
        sent += sender.record_for(7, lacks=True) is not None
        sender.note([Refusal(3, Reason.LACKS_FROZEN, "")], {3: 7, 4: 8})
        assert sender.record_for(8, lacks=False) is None
    assert sent == MOST_SENT


def test_a_node_that_never_keeps_it_ends_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(NewProcesses):
        def serve(self, message: Message) -> Message:
            message.content.pop(wire.FROZEN, None)
            return super().serve(message)

    config = parse_run_config(kebab(KEYS) | {"results-dir": str(tmp_path)})
    with (
        caplog.at_level("WARNING", "flwr"),
        pytest.raises(RunError, match="Round 1 had fewer than min-clients"),
    ):
        server_app.run(Forgetful(config, 1, True, another_version), config)
    assert "its node lacks the frozen parameters" in caplog.text


def test_a_digest_is_checked() -> None:
    for wrong in ("x" * 32, "ab", 7, "../../etc"):
        with pytest.raises(wire.WireError, match="digest"):
            wire.frozen_digest_of({"frozen": wrong})


@pytest.mark.slow
def test_a_node_without_the_file_of_weights_receives_them(tmp_path: Path) -> None:
    network = vit_base((1, 8, 8), 10, 16, "")
    names = {
        "blocks.0.class_token": "class_token", "blocks.0.pos_embedding": "encoder.pos_embedding",
    }  # fmt: skip
    file, away = tmp_path / "vit.safetensors", tmp_path / "away"
    state = {_torchvision_name(n, names): t.numpy() for n, t in network.state_dict().items()}
    save_file({n: t for n, t in state.items() if not n.startswith("head")}, file)

    def hide(node: bool) -> None:
        (file.rename(away) if node else away.rename(file)) if file.exists() == node else None

    keys: dict[str, Value] = KEYS | {
        "model": "vit-base", "vit__image_size": 16, "vit__weights": str(file), "num_rounds": 2,
        "num_clients": 1, "clients_per_round": 1, "local_steps": 1, "batch_size": 2, "eval_every": 9,
    }  # fmt: skip
    config = parse_run_config(kebab(keys) | {"results-dir": str(tmp_path)})
    grid = NewProcesses(config, 1, True, hide)
    lines = read_rounds(server_app.run(grid, config).path)
    assert grid.received == [True, False]
    assert lines[0]["downlink_bytes"] > 4 * 85e6 > 1000 * lines[1]["downlink_bytes"]


def _torchvision_name(name: str, names: dict[str, str]) -> str:
    if name in names:
        return names[name]
    if name.startswith("blocks.0."):
        return name.removeprefix("blocks.0.")
    if name.startswith("blocks.12.norm"):
        return f"encoder.ln{name.removeprefix('blocks.12.norm')}"
    if name.startswith("blocks.12.block"):
        return f"encoder.layers.encoder_layer_11{name.removeprefix('blocks.12.block')}"
    if name.startswith("blocks."):
        number, _, rest = name.removeprefix("blocks.").partition(".")
        return f"encoder.layers.encoder_layer_{int(number) - 1}.{rest}"
    return name
