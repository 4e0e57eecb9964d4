"""FedBCGD: blocks, what travels, exactness with consistent control variates, and groups that fail.

Long, because FedBCGD's printed tables of blocks are in it.
"""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedapp.building import make_strategy
from fedapp.errors import ConfigError
from fedapp.models.layout import Layout, divide
from fedapp.models.networks import layout_of, make_network
from fedapp.parsing import parse_run_config
from fedapp.problems import kind_of, make_problem
from fedapp.randomness import generator, sample_cohort
from fedapp.registry import find_algorithm
from fedapp.tables import Value
from fedapp.wire import Update
from tests import oracles
from tests.conftest import RunInline, kebab, read_rounds
from tests.support.cases import groups_of, trajectory
from tests.support.commands import fedapp

# Section 6.6 of the supplement: the weights of each block's layers as printed, and of the shared block.
PRINTED: dict[str, tuple[list[list[int]], int, int]] = {
    "lenet5": ([[4800], [102400], [614400], [73728], []], 1920, 10),
    "vgg11": (
        [[1728, 73728], [294912, 589824], [1179648, 2359296], [2359296, 2359296], [0, 0]],
        102400,
        100,
    ),
    "vgg19": (
        [
            [1728, 36864, 73728, 147456, 294912, 589824, 589824, 589824],
            [1179648, 2359296],
            [2359296, 2359296],
            [2359296, 2359296],
            [2359296, 2359296, 1048576, 131072],
        ],
        25600,
        100,
    ),
    "resnet18": (
        [
            [1728, 36864, 36864, 36864, 36864],
            [73728, 147456, 147456, 147456],
            [294912, 589824, 589824, 589824],
            [1179648, 2359296],
            [2359296, 2359296],
        ],
        5120,
        10,
    ),
}


@pytest.mark.parametrize("model", PRINTED)
def test_the_tables_are_those_of_the_real_models(model: str) -> None:
    """Weights of convolutions and linear layers; the tables leave out biases, norms and 1x1 shortcuts."""
    blocks, shared, classes = PRINTED[model]
    network = make_network(model, (3, 32, 32), classes, "batch", 0)
    division = divide(layout_of(network, model), 5)
    start = 0
    found: list[list[int]] = [[] for _ in blocks]
    for module in network.blocks.modules():
        size = sum(p.numel() for p in module.parameters(recurse=False))
        if isinstance(module, nn.Conv2d | nn.Linear):
            (place,) = [j for j, b in enumerate(division.blocks) if b.start <= start < b.stop]
            assert start + size <= division.blocks[place].stop, "no layer is cut"
            if not (isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1)):
                found[place].append(module.weight.numel())
        start += size
    if model == "vgg11":  # the rows of its linear layers repeat the convolution's above them
        assert found.pop() == [2048 * 1024, 1024 * 1024]
        blocks = blocks[:-1]
    assert found == blocks
    assert network.head.weight.numel() == shared
    assert division.shared == slice(
        start, start + sum(p.numel() for p in network.head.parameters())
    )


def test_a_division_is_as_even_as_can_be() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = [int(n) for n in rng.integers(1, 100, rng.integers(3, 9))]
        count = int(rng.integers(1, 4))
        layout = Layout(tuple(sizes), tuple(sizes[:-1]), sizes[-1])
        body, borders = sum(sizes[:-1]), list(itertools.accumulate(sizes[:-1]))
        division = divide(layout, count)
        ends = [block.stop for block in division.blocks]
        assert [block.start for block in division.blocks] == [0, *ends[:-1]]
        assert ends[-1] == body == division.shared.start
        if len(sizes) - 1 < count:
            continue
        assert set(ends) <= set(borders)
        best = min(
            max(b - a for a, b in itertools.pairwise([0, *cuts, body]))
            for cuts in itertools.combinations(borders[:-1], count - 1)
        )
        assert max(block.stop - block.start for block in division.blocks) == best


def test_a_flat_problem_is_cut_evenly() -> None:
    division = divide(Layout((20,), (20,)), 3)
    assert division.blocks == (slice(0, 7), slice(7, 13), slice(13, 20))
    assert division.shared == slice(20, 20)


NETWORK: dict[str, Value] = {
    "model": "mlp-6-5",
    "dtype": "float64",
    "num_clients": 9,
    "clients_per_round": 6,
    "num_rounds": 15,
    "local_steps": 3,
    "batch_size": 16,
    "lr": 0.05,
    "weight_decay": 0.01,
    "partition": "dirichlet",
    "fedbcgd__blocks": 2,
    "fedbcgd__momentum": 0.7,
}


@pytest.mark.parametrize("rounds", [4, pytest.param(15, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("algorithm", "control", "start"),
    [
        ("fedbcgd", "consistent", "zero"),
        ("fedbcgd-plus", "consistent", "zero"),
        ("fedbcgd-plus", "consistent", "gradient"),
        ("fedbcgd-plus", "printed", "zero"),
        ("fedbcgd-plus", "printed", "gradient"),
        ("fedbcgd-plus", "equation-71", "zero"),
        ("fedbcgd-plus", "scaled", "gradient"),
    ],
)
def test_a_network_with_its_shared_head(
    algorithm: str, control: str, start: str, rounds: int
) -> None:
    """The pseudocode, with gradients of the problem's own, over sampled rounds."""
    keys: dict[str, Value] = {"algorithm": algorithm, "num_rounds": rounds}
    keys |= {"fedbcgd__control": control, "fedbcgd__start": start}
    config = parse_run_config(kebab(NETWORK | keys))
    problem: Any = make_problem(config)

    def g(k: int, i: int, t: int, y: oracles.Vector) -> oracles.Vector:
        objective = problem.objective(i)
        rng = generator(config.seed, "batches", k, i)
        batch = list(objective.batches(config.local_work, rng))[t]
        slope = objective.loss_gradient(torch.tensor(y), batch)[1].numpy().copy()
        return np.asarray(slope + config.weight_decay * y)

    def full(i: int, y: oracles.Vector) -> oracles.Vector:
        slope = problem.objective(i).full_gradient(torch.tensor(y)).numpy()
        return np.asarray(slope + config.weight_decay * y)

    cohorts = [sample_cohort(list(range(9)), 6, config.seed, k) for k in range(1, rounds + 1)]
    first, second, head = 64 * 6 + 6, 6 * 5 + 5, 5 * 10 + 10
    edges = list(itertools.accumulate([first, second, head], initial=0))
    *blocks, shared = (list(range(a, b)) for a, b in itertools.pairwise(edges))
    common: dict[str, Any] = {"tau": 3, "lr": 0.05, "blocks": blocks, "shared": shared}
    common["momentum"] = 0.7
    groups, x = groups_of(config, cohorts), problem.initial()[0]
    theirs = list(
        oracles.fedbcgd(x, g, groups, **common)
        if algorithm == "fedbcgd"
        else oracles.fedbcgd_plus(x, g, full, groups, **common, N=9, control=control, start=start)
    )
    for ours, expected in zip(trajectory(config), theirs, strict=True):
        assert np.linalg.norm(ours - expected) < 1e-8 * np.linalg.norm(expected)


EXACT: dict[str, Value] = {
    "algorithm": "fedbcgd-plus",
    "dataset": "quadratic",
    "dtype": "float64",
    "num_clients": 10,
    "clients_per_round": 10,
    "local_steps": 4,
    "lr": 0.1,
    "fedbcgd__blocks": 5,
    "fedbcgd__momentum": 0.0,
    "num_rounds": 210,
    "eval_every": 10,
}


def test_everyone_is_asked_for_a_gradient_before_training(run_inline: RunInline) -> None:
    keys: dict[str, Value] = EXACT | {"clients_per_round": 5, "num_rounds": 3, "eval_every": 1}
    asked, *trained = read_rounds(run_inline(**keys, fedbcgd__start="gradient"))
    assert [r["clients"] for r in (asked, *trained)] == [10, 5, 5]
    start = read_rounds(run_inline(**keys | {"num_rounds": 1, "lr": 1e-12}))[0]["distance"]
    assert asked["distance"] == pytest.approx(start)
    assert trained[0]["distance"] < start
    private = kebab(keys | {"fedbcgd__start": "gradient", "dp__clip": 1.0})
    with pytest.raises(ConfigError, match=r'set fedbcgd\.start = "zero"'):
        find_algorithm("fedbcgd-plus").check(parse_run_config(private))


@pytest.mark.slow
def test_consistent_control_variates_are_exact_and_printed_ones_are_not(
    run_inline: RunInline,
) -> None:
    """What stalls does so within 20 rounds."""
    consistent, printed = (
        [
            r["distance"]
            for r in read_rounds(run_inline(**EXACT | keys, fedbcgd__control=control))
            if "distance" in r
        ]
        for control, keys in (("consistent", {}), ("printed", {"num_rounds": 100}))
    )
    assert consistent[-1] < 1e-8
    fall = np.diff(np.log(consistent))[2:20]  # linear: about the same factor all the time
    assert fall.mean() < -0.5
    assert abs(fall[:9].mean() - fall[9:].mean()) < 0.2 * abs(fall.mean())
    assert printed[-1] > 1e-2


def strategy_of(**keys: Value) -> Any:
    common: dict[str, Value] = {"algorithm": "fedbcgd", "dataset": "quadratic"}
    config = parse_run_config(kebab(common | keys))
    return make_strategy(config, make_problem(config))


def test_a_block_whose_group_failed_stays_where_it_is() -> None:
    strategy = strategy_of(
        quadratic__dim=6, fedbcgd__blocks=3, fedbcgd__momentum=0.5, dtype="float64"
    )
    clients = [3, 4, 5, 6, 7, 8]
    strategy.on_cohort(clients, 1, 0)
    assert sorted(strategy.group) == clients
    assert sorted(strategy.group.values()) == [0, 0, 1, 1, 2, 2]

    def updates(but: int = -1) -> list[Update]:
        sent = {"u": np.array([-1.0, -2.0])}
        return [Update(c, sent, 1, 1, 0.0) for c in clients if strategy.group[c] != but]

    strategy.aggregate(updates())
    np.testing.assert_allclose(strategy.x, [1, 2, 1, 2, 1, 2])
    strategy.on_cohort(clients, 2, 0)
    strategy.aggregate(updates(but=1))
    np.testing.assert_allclose(strategy.v, [1.5, 3, 0.5, 1, 1.5, 3])
    np.testing.assert_allclose(strategy.x, [2.5, 5, 1, 2, 2.5, 5])


def test_groups_are_dealt_at_random_and_reproducibly() -> None:
    strategy = strategy_of()
    dealt = []
    for round_ in (1, 2, 1):
        strategy.on_cohort(list(range(10)), round_, 0)
        dealt.append(dict(strategy.group))
    assert dealt[0] == dealt[2] != dealt[1]


@pytest.mark.parametrize("clients", [1, 2, 7])
def test_every_block_has_its_turn(clients: int) -> None:
    """With fewer clients than blocks, or more than go evenly, no block is favoured."""
    strategy = strategy_of()
    count = len(strategy.division.blocks)
    times = np.zeros(count)
    for round_ in range(400):
        strategy.on_cohort(list(range(clients)), round_, 0)
        sizes = np.bincount(list(strategy.group.values()), minlength=count)
        assert sizes.max() - sizes.min() <= 1
        times += sizes
    np.testing.assert_allclose(times / times.mean(), 1, atol=0.3)


@pytest.mark.parametrize("model", ["lenet5", "vgg19", "resnet18"])
def test_a_group_uploads_what_its_row_of_the_table_says(model: str) -> None:
    """Biases, norms and 1x1 shortcuts, which the tables leave out, are within 4 % (the smallest row apart)."""
    rows, shared, classes = PRINTED[model]
    keys = kebab({"algorithm": "fedbcgd", "model": model, "norm": "group", "clients_per_round": 5})
    config = parse_run_config(keys | {"dataset": "cifar10" if classes == 10 else "cifar100"})
    strategy: Any = make_strategy(config, kind_of(config).outline(config))
    strategy.on_cohort(range(5), 1, 0)
    for client, group in strategy.group.items():
        printed, real = (
            sum(rows[group]) + shared,
            sum(piece.size for piece in strategy.sent_pieces(client)),
        )
        assert printed <= real <= 1.04 * printed + 300


def test_the_table_of_vit_base_is_no_division_of_it() -> None:
    """It prints five blocks of 14,299,520, ten encoder layers; ViT-Base has twelve, and patches."""
    network = make_network("vit-base", (3, 32, 32), 100, "batch", 0, 32)
    layers = layout_of(network, "vit-base").layers
    assert len(layers) == 13
    assert 2 * min(layers[1:]) > 14_155_776 > 14_299_520 - 2 * 74_000
    assert sum(layers) > 5 * 14_299_520 + 10_000_000


@pytest.mark.parametrize("algorithm", ["fedbcgd", "fedbcgd-plus"])
def test_only_the_block_and_the_shared_block_travel(algorithm: str, run_inline: RunInline) -> None:
    """LeNet-5 in five groups: within 2 % of what its table says, 0.20 d a client."""
    keys: dict[str, Value] = {"model": "lenet5", "num_rounds": 1, "local_steps": 1, "batch_size": 4}
    (record,) = read_rounds(
        run_inline(algorithm=algorithm, num_clients=5, clients_per_round=5, **keys)
    )
    d = make_problem(parse_run_config(kebab({"model": "lenet5", "num_clients": 5}))).layout
    vectors = {"fedbcgd": 1, "fedbcgd-plus": 2}[algorithm]
    table = 4 * vectors * (d.size - d.head + 5 * d.head)
    assert record["failures"] == 0
    assert abs(record["uplink_bytes"] / table - 1) < 0.02
    assert record["uplink_bits_nominal"] == 8 * table
    assert record["downlink_bytes"] > 5 * 4 * vectors * d.size


@pytest.mark.parametrize("algorithm", ["fedbcgd", "fedbcgd-plus"])
def test_a_block_is_compressed_tensor_by_tensor(algorithm: str, run_inline: RunInline) -> None:
    """Six bits a number, whichever block; the server refuses a payload that is cut in other tensors than the block's."""
    (record,) = read_rounds(
        run_inline(
            algorithm=algorithm, model="mlp-6-5", num_clients=4, clients_per_round=4, num_rounds=1,
            fedbcgd__blocks=2, compressor="uniform", uniform__bits=6,
        )
    )  # fmt: skip
    assert (record["clients"], record["failures"]) == (4, 0)
    assert record["uplink_nmse"] < 0.01


def test_the_blocks_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert fedapp(monkeypatch, "blocks", "-c", 'model="lenet5" dataset="cifar10"') == 0
    shown = capsys.readouterr().out
    assert "614,784" in shown
    assert "4,864" in shown  # three channels: it needs no data to know that
    assert "20." in shown.splitlines()[-2]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("server_lr", 0.5, "leave server-lr"),
        ("weighting", "examples", "uniform"),
        ("error_feedback", True, "error-feedback = false"),
    ],
)
def test_what_makes_no_sense_is_refused(key: str, value: Value, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        strategy_of(**{key: value})


def test_a_model_that_is_all_shared_is_noted() -> None:
    config = parse_run_config({"algorithm": "fedbcgd"})
    note = find_algorithm("fedbcgd").notes
    assert "blocks save nothing" in note(config, Layout((20,), (20,), head=20))[0]
    assert note(config, Layout((20,), (20,), head=19)) == []
