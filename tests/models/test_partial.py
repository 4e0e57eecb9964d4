"""Partial training: only chosen parameters are trained and sent, on every engine, with every algorithm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from fedapp.building import make_strategy
from fedapp.engine.ray_workers import RayWorkers
from fedapp.errors import ConfigError
from fedapp.models.keys import LoraKeys
from fedapp.models.layout import divide
from fedapp.models.lora import merge, merged_model
from fedapp.models.networks import head_of, layout_of, make_network
from fedapp.models.partial import select
from fedapp.parsing import parse_run_config
from fedapp.problems import kind_of, make_problem
from fedapp.registry import ALGORITHMS
from fedapp.tables import Value
from tests.conftest import RunInline, kebab, read_rounds
from tests.models.outside.networks import Masked
from tests.support.runs import assert_same
from tests.support.workers import run_on

KEYS: dict[str, Value] = {
    "model": "mlp-12-6",
    "num_clients": 4,
    "clients_per_round": 4,
    "num_rounds": 3,
    "local_steps": 2,
    "train_samples": 200,
    "partition": "iid",
    "lr": 0.05,
}
TRAINABLE: dict[str, Value] = {"trainable": r"blocks\.1|head"}
LORA: dict[str, Value] = {"lora__rank": 2}
BATCHES: dict[str, Value] = {"model": "resnet20", "trainable": "head", "local_steps": 1}
SIZE = 12 * 6 + 6 + 70  # the parameters that TRAINABLE chooses


def problem_of(**keys: Value) -> Any:
    return make_problem(parse_run_config(kebab(KEYS | keys)))


def start_of(**keys: Value) -> dict[str, Any]:
    problem = problem_of(**keys)
    return dict(problem.named_tensors(*problem.initial()))


@pytest.mark.parametrize("keys", [TRAINABLE, LORA, BATCHES])
def test_the_same_bits_on_any_number_of_nodes_and_when_resumed(
    keys: dict[str, Value], run_inline: RunInline
) -> None:
    keys = KEYS | {"algorithm": "scaffold"} | keys
    whole = run_inline(**keys, run_name="whole")
    assert_same(whole, run_inline(nodes=3, **keys, run_name="nodes"))
    halves = keys | {"run_name": "halves", "checkpoint_every": 1}
    run_inline(**halves | {"num_rounds": 2})
    assert_same(whole, run_inline(**halves, resume=True))


def test_only_chosen_parameters_are_sent_and_moved(run_inline: RunInline) -> None:
    directory = run_inline(**KEYS, **TRAINABLE)
    begun, ended = start_of(**TRAINABLE), load_file(directory / "model.safetensors")
    moved = {name for name in begun if not np.array_equal(begun[name], ended[name])}
    assert moved == {"blocks.1.0.weight", "blocks.1.0.bias", "head.weight", "head.bias"}
    assert begun.keys() == ended.keys() == start_of().keys()  # the whole model
    for line in read_rounds(directory):
        assert line["uplink_bytes"] == line["downlink_bytes"] == 4 * (4 * SIZE + 2 * 128)


def test_it_is_the_gradient_of_the_whole_network() -> None:
    whole, part = problem_of(), problem_of(**TRAINABLE)
    (x, _), (y, _) = whole.initial(), part.initial()
    batch = whole.objective(0).indices[:7]
    _, all_of_it = whole.objective(0).loss_gradient(torch.tensor(x), batch)
    _, some = part.objective(0).loss_gradient(torch.tensor(y), batch)
    np.testing.assert_array_equal(x[-SIZE:], y)
    torch.testing.assert_close(some, all_of_it[-SIZE:])


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"trainable": "heed"},
            "trainable = 'heed' is not found .* choose among blocks.0.1.weight",
        ),
        ({"trainable": "("}, "trainable = '.' is not allowed: it should be a regular expression"),
        (
            {"lora__rank": 2, "lora__targets": "x"},
            "lora.targets = 'x' is not found .* blocks.0.1, bl",
        ),
        ({"lora__rank": -1}, "lora.rank = -1 is not allowed"),
        ({"trainable": "x", "dataset": "quadratic"}, "choose what is trained of a network"),
        ({"lora__rank": 1, "model": "logistic"}, "choose what is trained of a network"),
        ({"lora__rank": 1, "model": "logreg"}, "is not found in the name of any .* head"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(keys: dict[str, Value], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config = parse_run_config(kebab(KEYS | keys))
        make_strategy(config, kind_of(config).outline(config))


@pytest.mark.parametrize("keys", [{}, TRAINABLE, LORA, {"trainable": "head", "lora__rank": 1}])
def test_a_dry_run_counts_the_same_numbers(keys: dict[str, Value]) -> None:
    config = parse_run_config(kebab(KEYS | keys))
    assert kind_of(config).outline(config).layout == make_problem(config).layout


OTHERS: list[dict[str, Value]] = [
    {"dataset": "breast_cancer", "model": "mlp-16-8", "lora.rank": 2},
    {"dataset": "diabetes", "model": "mlp-16", "trainable": "head"},
    {"dataset": "speeches", "model": "gru-16", "trainable": "blocks.1|head"},
    {"dataset": "shakespeare", "model": "transformer-16", "characters.length": 20, "lora.rank": 2},
]


@pytest.mark.parametrize("keys", OTHERS, ids=lambda keys: str(keys["dataset"]))
def test_tables_and_texts_are_trained_in_part(
    keys: dict[str, Value], run_inline: RunInline
) -> None:
    run: dict[str, Value] = {"num_rounds": 2, "num_clients": 4, "clients_per_round": 3, "lr": 0.02}
    run |= {"algorithm": "scaffold", "local_steps": 2}
    one = run_inline(**run, **keys, run_name="one")
    assert_same(one, run_inline(nodes=3, **run, **keys, run_name="nodes"))
    config = parse_run_config(kebab(run | keys))
    outline, problem = kind_of(config).outline(config), make_problem(config)
    assert outline.layout == problem.layout
    size = problem.layout.size
    assert size < sum(t.size for t in load_file(one / "model.safetensors").values())
    assert read_rounds(one)[0]["uplink_bytes"] == 3 * (2 * (4 * size + 128) + 128)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("keys", [TRAINABLE, LORA])
def test_every_algorithm_trains_a_part(
    algorithm: str, keys: dict[str, Value], run_inline: RunInline
) -> None:
    needs = ALGORITHMS[algorithm].needs
    one = {"local_steps": 1} if needs.one_local_step else {}
    directory = run_inline(**KEYS | {"algorithm": algorithm, "lr": 0.01} | keys | one)
    begun, ended = start_of(**keys), load_file(directory / "model.safetensors")
    moved = {name for name in begun if not np.array_equal(begun[name], ended[name])}
    fixed = {n for n in begun if n.startswith("blocks.0") and not n.endswith((".A", ".B"))}
    assert moved and fixed and not moved & fixed
    assert all(line["failures"] == 0 for line in read_rounds(directory))


@pytest.mark.parametrize("compressor", ["qsgd", "topk", "uniform", "float16"])
def test_every_compressor_takes_a_part(compressor: str, run_inline: RunInline) -> None:
    directory = run_inline(**KEYS, **TRAINABLE, compressor=compressor)
    lines = read_rounds(directory)
    assert all(0 < line["uplink_bytes"] < 4 * (4 * SIZE + 256) for line in lines)
    assert all(line["failures"] == 0 for line in lines)


# How what is left is divided into layers, head and blocks.


def partly(model: str, trainable: str, rank: int = 0) -> nn.Module:
    network = make_network(model, (1, 28, 28), 10, "group", 0)
    select(network, trainable, LoraKeys(rank=rank))
    return network


def test_layers_and_head_are_those_that_are_trained() -> None:
    whole, part = layout_of(make_network("lenet5", (1, 28, 28), 10, "group", 0), "lenet5"), None
    part = layout_of(partly("lenet5", r"blocks\.[23]|head"), "lenet5")
    assert part.layers == whole.layers[2:] and part.head == whole.head
    assert part.tensors == whole.tensors[4:] and part.has_levels
    assert divide(part, 2).shared == slice(part.size - part.head, part.size)
    without_head = layout_of(partly("lenet5", r"blocks\.[0123]"), "lenet5")
    assert without_head.layers == whole.layers and without_head.head == 0
    # The table of blocks in the paper is for the whole network alone.
    assert divide(without_head, 5).blocks != divide(whole, 5).blocks
    only_head = layout_of(partly("lenet5", "head"), "lenet5")
    assert (only_head.layers, only_head.head) == ((), 1930)
    factors = layout_of(partly("mlp-12-6", "", rank=2), "mlp-12-6")
    assert factors.layers == (2 * (784 + 12), 2 * (12 + 6)) and factors.head == 70


def test_layout_of_a_user_s_network() -> None:
    def of(trainable: str) -> Any:
        network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 2))
        select(network, trainable, LoraKeys())
        return layout_of(network)

    assert (of("").layers, of("").head) == ((15, 12), 8)
    assert (of("^[03]").layers, of("^[03]").head) == ((15,), 8)
    assert (of("^[02]").layers, of("^[02]").head) == ((15, 12), 0)


# LoRA.


def test_lora_changes_nothing_at_the_start_and_is_merged_at_the_end() -> None:
    images = torch.randn(5, 1, 8, 8)
    for make in (Masked, lambda: make_network("mlp-12-6", (1, 8, 8), 10, "group", 0)):
        torch.manual_seed(3)
        plain: nn.Module = make()
        torch.manual_seed(3)
        adapted: nn.Module = make()
        select(adapted, "", LoraKeys(rank=2, alpha=6.0))
        plain.eval()
        adapted.eval()
        assert torch.equal(plain(images), adapted(images))
        factors = [p for name, p in adapted.named_parameters() if name.endswith(".B")]
        assert factors and all(p.requires_grad for p in factors)
        for factor in factors:
            nn.init.normal_(factor)
        assert not torch.allclose(plain(images), adapted(images))
        tensors = {name: tensor.numpy() for name, tensor in adapted.state_dict().items()}
        merged = {k: torch.tensor(v) for k, v in merge(tensors, 6.0).items()}
        plain.load_state_dict(merged)
        torch.testing.assert_close(plain(images), adapted(images))


def test_lora_trains_factors_and_the_head() -> None:
    attention = Masked()
    select(attention, "", LoraKeys(rank=2))
    trained = {name for name, p in attention.named_parameters() if p.requires_grad}
    place = "attention.parametrizations.in_proj_weight.0"
    out = "attention.out_proj.parametrizations.weight.0"
    assert trained == {
        f"{place}.A", f"{place}.B", f"{out}.A", f"{out}.B", "out.weight", "out.bias"
    }  # fmt: skip
    chosen = make_network("mlp-12-6", (1, 8, 8), 10, "group", 0)
    select(chosen, r"\.bias", LoraKeys(rank=2, targets=r"blocks\.1\.0|head"))
    trained = {name for name, p in chosen.named_parameters() if p.requires_grad}
    assert trained == {
        "blocks.0.1.bias", "blocks.1.0.bias", "head.bias",
        "blocks.1.0.parametrizations.weight.0.A", "blocks.1.0.parametrizations.weight.0.B",
        "head.parametrizations.weight.0.A", "head.parametrizations.weight.0.B",
    }  # fmt: skip


def test_the_head_of_a_network() -> None:
    body, last = nn.Linear(2, 2), nn.Linear(2, 2)
    assert head_of(nn.Sequential(body, last)) is last
    assert head_of(nn.Sequential(body, nn.LayerNorm(2))) is None
    network = nn.Sequential(body, nn.LayerNorm(2))
    network.register_module("head", last)
    assert head_of(network) is last


def test_the_model_of_a_run_is_merged(run_inline: RunInline) -> None:
    directory = run_inline(**KEYS | {"lr": 0.2, "num_rounds": 5}, **LORA, lora__alpha=4.0)
    merged = merged_model(directory)
    assert merged.keys() == start_of().keys()
    network = make_network("mlp-12-6", (1, 8, 8), 10, "group", 0)
    network.load_state_dict({name: torch.tensor(array) for name, array in merged.items()})
    plain = problem_of()
    x = torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()
    loss = plain.evaluate(x, np.zeros(0, np.float32))["test_loss"]
    lines = read_rounds(directory)
    assert loss == pytest.approx(lines[-1]["test_loss"], rel=1e-4)
    assert lines[-1]["test_loss"] < lines[0]["test_loss"]
    assert not np.array_equal(merged["blocks.0.1.weight"], start_of()["blocks.0.1.weight"])


def test_vit_base_with_rank_8_sends_less_than_a_hundredth() -> None:
    sizes = []
    for rank in (0, 8):
        config = parse_run_config({"model": "vit-base", "lora.rank": rank})
        sizes.append(kind_of(config).outline(config).layout.size)
    assert sizes[1] < sizes[0] / 100
    assert sizes[1] == 12 * 8 * ((768 + 3 * 768) + (768 + 768)) + 768 * 10 + 10


@pytest.mark.slow
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize("keys", [TRAINABLE, LORA, BATCHES])
def test_the_same_bits_on_ray(
    keys: dict[str, Value], workers: RayWorkers, run_inline: RunInline, tmp_path: Path
) -> None:
    keys = KEYS | {"algorithm": "scaffold"} | keys
    assert_same(run_on(workers, tmp_path / "ray", **keys), run_inline(**keys))
